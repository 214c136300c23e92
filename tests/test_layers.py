"""The import contracts bite: a package that breaks each of them is refused, naming the import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    "base",
    "kernel",
    "transports",
    "tools",
    "memory",
    "stores",
    "engines",
    "telemetry",
    "runs",
    "testing",
    "config",
    "app",
    "server",
    "cli",
    "drills",
    "examples",
]
VIOLATIONS = {
    "kernel": ("from failsoft import runs", "failsoft.kernel -> failsoft.runs"),
    "base": ("import aiohttp", "failsoft.base imports aiohttp"),
    "telemetry": ("from failsoft import stores", "failsoft.telemetry -> failsoft.stores"),
    "server": ("from failsoft import testing", "failsoft.server -> failsoft.testing"),
}


def lint(package: Path, **modules: str) -> subprocess.CompletedProcess[str]:
    """Lint a package of empty layers, but for `modules`, under this project's own contracts."""
    for layer in LAYERS:
        (package / "failsoft" / layer).mkdir(parents=True)
        (package / "failsoft" / layer / "__init__.py").write_text(modules.pop(layer, ""))
    (package / "failsoft" / "__init__.py").touch()
    for name, text in modules.items():
        (package / "failsoft" / f"{name}.py").write_text(text)
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--config", ROOT / "pyproject.toml", "--no-cache"],
        env=os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{ROOT}"},
        cwd=package, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


@pytest.mark.timeout(60)
def test_contracts_bite(tmp_path):
    done = lint(tmp_path, **{layer: statement for layer, (statement, _) in VIOLATIONS.items()})
    assert done.returncode != 0
    for _, complaint in VIOLATIONS.values():
        assert complaint in done.stdout


@pytest.mark.timeout(60)
def test_a_new_layer_must_be_given_its_place(tmp_path):
    done = lint(tmp_path, newcomer="")
    assert done.returncode != 0
    assert "failsoft.newcomer" in done.stdout


@pytest.mark.timeout(60)
def test_empty_layers_pass(tmp_path):
    done = lint(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
