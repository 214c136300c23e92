"""House rules that a reader would otherwise have to watch for (CONTRIBUTING.md says why each is there)."""

import ast
import functools
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "failsoft"
MODULES = sorted(SOURCE.rglob("*.py"))
FORBIDDEN_WORDS = re.compile(
    r"(?i)(?<![a-z])(managers?|helpers?|utils?|utilities|services?(?! time))(?![a-z])"
)  # service time is what a queue divides by
LINES = 600


@functools.cache
def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def words(name: str) -> str:
    """A name's words: PoolManager and pool_manager both give 'pool manager'."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).lower()


def names_defined(module: Path) -> list[str]:
    return [module.stem, *re.findall(r"(?m)^ *(?:async def|def|class) +(\w+)", module.read_text())]


def test_names_say_what_a_thing_is():
    vague = [f"{module}: {name}" for module in MODULES for name in names_defined(module) if is_vague(name)]
    assert not vague


def is_vague(name: str) -> bool:
    return FORBIDDEN_WORDS.search(words(name)) is not None


def test_long_modules_give_their_reason():
    texts = {module: module.read_text() for module in MODULES}
    long = [module for module, text in texts.items() if text.count("\n") > LINES]
    assert not [module for module in long if not re.search(r"(?i)over 600 lines because", texts[module])]


def test_randomness_is_injected():
    drawn = [
        f"{module}, line {node.lineno}: random.{node.attr}"
        for module in MODULES
        if "random." in module.read_text()
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        if node.attr not in {"Random", "SystemRandom"}
    ]  # fmt: skip
    assert not drawn


@pytest.mark.parametrize(
    "module",
    # the root loads its names when they are first used: tests/test_public_names.py
    [path for path in MODULES if path.name == "__init__.py" and path.parent.name != "failsoft"],
    ids=lambda path: path.parent.name,
)
def test_init_re_exports_and_nothing_else(module):
    allowed = (ast.Import, ast.ImportFrom)
    other = [
        ast.unparse(node)
        for node in parsed(module).body
        if not isinstance(node, allowed)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"__all__", "__version__"})
    ]
    assert not other


@pytest.mark.parametrize("name", ["PoolManager", "string_utils", "TestHelper", "run_service", "services"])
def test_vague_names_are_found(name):
    assert FORBIDDEN_WORDS.search(words(name))


@pytest.mark.parametrize("name", ["contextmanager", "serviceable", "managed", "service_time"])
def test_other_names_are_not(name):
    assert not FORBIDDEN_WORDS.search(words(name))
