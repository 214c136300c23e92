"""Pin what pyproject.toml asks for: rewrite its constraint block from a fresh resolution.

uv.lock names the registry that a machine happens to use, so it is not committed. This writes what matters
of it, the exact versions of everything in every extra and group, for every supported Python, and no hosts
or hashes. Standard library only: it runs before anything is installed.

    python scripts/lock.py [--uv PATH]   resolve anew and rewrite the block
    python scripts/lock.py --check       fail if a direct dependency has no pin, or a pin is not exact
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
BEGIN = "# --- exact versions, written by `make lock`; do not edit ---\n"
PIN = re.compile(r"([a-z0-9][a-z0-9.-]*)==[0-9][^ ;]*( ; .+)?")


def without_block(text: str) -> str:
    """The hand-written part of pyproject.toml."""
    return text.partition(BEGIN)[0]


def resolved(uv: str, text: str) -> list[str]:
    """Exact requirements for the project described by `text`, resolved as if nothing were pinned."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        package = project / "src" / "failsoft"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text('__version__ = "0"\n')
        for name in ("README.md", "LICENSE"):
            (project / name).touch()
        (project / "pyproject.toml").write_text(text)
        done = subprocess.run(
            [uv, "export", "--quiet", "--all-extras", "--all-groups", "--no-emit-project", "--no-hashes",
             "--no-header", "--no-annotate", "--python", sys.executable],
            cwd=project, env={k: v for k, v in os.environ.items() if k != "UV_PROJECT_ENVIRONMENT"},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip() and not line.startswith("#")]
    if wrong := [line for line in lines if not PIN.fullmatch(line)]:
        sys.exit(f"not exact requirements, refusing to write them: {wrong}")
    return lines


def block(lines: list[str]) -> str:
    """The pins as they stand in pyproject.toml."""
    quoted = "".join(f"    {line!r},\n" if '"' in line else f'    "{line}",\n' for line in lines)
    return f"{BEGIN}constraint-dependencies = [\n{quoted}]\n"


def problems(text: str) -> list[str]:
    """What is wrong with the committed pins."""
    data = tomllib.loads(text)
    pins = data["tool"]["uv"].get("constraint-dependencies", [])
    found = [f"not an exact version: {pin}" for pin in pins if not PIN.fullmatch(pin)]
    pinned = {normal(pin) for pin in pins}
    asked = [*data["project"]["dependencies"]]
    for more in (*data["project"]["optional-dependencies"].values(), *data["dependency-groups"].values()):
        asked += more
    names = {normal(requirement) for requirement in asked} - {"failsoft"}
    found += [f"no pin for {name}" for name in sorted(names - pinned)]
    return found


def normal(requirement: str) -> str:
    """The normalised distribution name at the head of a requirement."""
    name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uv", default="uv", help="the uv to resolve with")
    parser.add_argument("--check", action="store_true", help="judge the committed pins, change nothing")
    options = parser.parse_args()
    text = PYPROJECT.read_text()
    if not options.check:
        uv = str(Path(options.uv).resolve()) if os.sep in options.uv else options.uv
        lines = resolved(uv, without_block(text))
        PYPROJECT.write_text(without_block(text).rstrip("\n") + "\n" + block(lines))
        print(f"{len(lines)} versions pinned in {PYPROJECT.name}")
    elif found := problems(text):
        sys.exit("\n".join([*found, "run `make lock`"]))


if __name__ == "__main__":
    main()
