"""Changes the kernel in one small place at a time, and sees whether a test notices.

    python bench/mutants.py [--sample 300] [--seed 1] [--modules breaker,queue] [--minutes 40] [--json]

A mutant is one changed comparison, operator, number, truth value, or a statement left out. Each runs in a forked child
that gets the changed module from an import hook: first the tests of its module, then those of the whole guard, until
one fails. What survives is printed; docs/mutants.md explains those that stay. The kernel has some three thousand
mutants; `--sample` draws that many at random, `--minutes` bounds the time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / "src/failsoft/kernel"
LIMIT = 120
"""Seconds of processor time after which a mutant that still runs its tests counts as noticed: it goes round and round.
Not by the clock, which on a busy machine would take slow tests for tests that fail; nor do tests have their own limit
here.
"""
HANGS = 600
"""Seconds by the clock after which it counts as noticed, too: it waits for ever."""

K, P = "tests/kernel/test_", "tests/properties/test_"
WHOLE = (
    K + "guard.py",
    K + "seeing.py",
    K + "small_print.py",
    "tests/composition/test_pairs.py",
    "tests/issues/test_starts_in_time.py",
    "tests/cancellation/test_guarded_call.py",
    K + "traps.py",
    "tests/composition/test_stall.py",
)
TOGETHER = (
    P + "small_model.py::test_every_order_and_end_does_what_the_model_says[True-1 permit, 2 wait]",
    P + "small_model.py::test_every_order_and_end_does_what_the_model_says[True-2 permits, 2 wait]",
    P + "interleavings.py::test_every_invariant_holds[0]",
    P + "interleavings.py::test_every_invariant_holds[1]",
)
"""For the modules in which time and tasks meet; the others are functions of their arguments."""
BREAKER = (K + "breaker.py", K + "breaker_traps.py", K + "breaker_policy.py", P + "breaker_machine.py")
BULKHEAD = (K + "bulkhead.py", P + "bulkhead_machine.py")
TESTS: dict[str, tuple[str, ...]] = {
    "adaptive": (K + "adaptive.py", P + "adaptive_limit.py", *BULKHEAD),
    "admission": (),
    "breaker": (*BREAKER, K + "breaker_interleavings.py"),
    "breaker_policy": BREAKER,
    "budget": (K + "policy.py", K + "retry.py", K + "hedge.py"),
    "bulkhead": BULKHEAD,
    "bulkhead_policy": (K + "policy.py", *BULKHEAD),
    "cache": (K + "policy.py", K + "cache.py"),
    "callee": (K + "threads.py", K + "hedge.py"),
    "classify": (K + "stream.py", "tests/drills"),
    "codel": BULKHEAD,
    "deadline": (P + "deadline_heap.py", K + "deadline.py", K + "stream.py"),
    "ending": (K + "deadline.py",),
    "fetch": (K + "cache.py",),
    "flights": (K + "cache.py",),
    "guard": (K + "hedge.py", K + "stream.py", K + "threads.py", K + "cache.py"),
    "hedge": (K + "hedge.py",),
    "ladder": (K + "ladder.py",),
    "latency": (P + "latency_model.py", K + "latency.py"),
    "policy": (K + "policy.py",),
    "probes": BREAKER,
    "queue": BULKHEAD,
    "retry": (K + "policy.py", K + "retry.py"),
    "scope": (K + "deadline.py",),
    "stream": (K + "stream.py",),
    "threads": (K + "threads.py",),
    "ticket": (),
    "timeout": (P + "latency_model.py", K + "policy.py", K + "latency.py"),
    "views": (),
    "window": (K + "window.py", *BREAKER),
}

MEETING = {"admission", "callee", "deadline", "ending", "fetch", "flights", "guard", "hedge", "stream", "ticket"}

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.LShift: ast.RShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip

Change = tuple[int, str, Callable[[], None]]


# --- what can be changed -------------------------------------------------------------------------------------------


def unseen(node: ast.AST) -> bool:
    """What no behaviour hangs on: how things show themselves, and what only type checkers read."""
    if isinstance(node, ast.FunctionDef):
        return node.name == "__repr__"
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )


def children(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Children with their places, without annotations."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "type_comment"}:
            continue
        if isinstance(value, ast.AST):
            yield node, field, None, value
        elif isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, ast.AST):
                    yield node, field, index, one


def put(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> None:
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def changes_of(tree: ast.AST) -> Iterator[Change]:
    """Every change of a tree, as (line, what, do it), always in the same order."""
    stack: list[tuple[ast.AST, str, int | None, ast.AST]] = list(children(tree))[::-1]
    while stack:
        parent, field, index, node = stack.pop()
        if unseen(node):
            continue
        line = getattr(node, "lineno", getattr(parent, "lineno", 0))
        for what, new in variants(node, parent):
            yield line, what, partial(put, parent, field, index, new)
        stack.extend(list(children(node))[::-1])


def variants(node: ast.AST, parent: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if type(node) in SWAPS:
        new = SWAPS[type(node)]
        yield f"{type(node).__name__} -> {new.__name__} in {short(parent)}", new()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield f"{short(node)} -> {short(node.operand)}", node.operand
    elif isinstance(node, ast.Constant):
        value: Any = node.value
        if isinstance(value, bool):
            yield f"{value} -> {not value} in {short(parent)}", ast.Constant(not value)
        elif isinstance(value, int | float):
            yield f"{value} -> {value + 1} in {short(parent)}", ast.Constant(value + 1)
    elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield f"without {short(node)}", ast.Pass()
    elif isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            yield f"without {short(node)}", ast.Pass()
    elif isinstance(node, ast.Break):
        yield "break -> continue", ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "continue -> break", ast.Break()


def short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else text[:87] + "…"


def parsed(module: str) -> ast.Module:
    tree = ast.parse((KERNEL / f"{module}.py").read_text())
    tree.body = [node for node in tree.body if not names_only(node)]
    return tree


def names_only(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


# --- a mutant's life -----------------------------------------------------------------------------------------------


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves one module with its changed code."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.name = f"failsoft.kernel.{module}"
        self.path = str(KERNEL / f"{module}.py")
        self.code = compile(ast.fix_missing_locations(tree), self.path, "exec")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=self.path)
        if spec is not None:
            spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.path
        exec(self.code, module.__dict__)


def survives(module: str, number: int | None) -> bool:
    """Runs the tests against a mutant in a child; True when none fails."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        status = 3
        try:
            status = tested(module, number)
        finally:
            os._exit(status)
    began = time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        if time.monotonic() - began > HANGS:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.02)


def tested(module: str, number: int | None) -> int:
    import pytest

    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    if number is not None:
        tree = parsed(module)
        list(changes_of(tree))[number][2]()
        sys.meta_path.insert(0, Mutated(module, tree))
    options = ["-x", "-q", "-n0", "--timeout=0", "--no-header", "--hypothesis-seed=0"]
    options += ["-p", "no:cacheprovider", "-p", "no:randomly"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # some were loaded before the fork
    for files in (TESTS[module], WHOLE, TOGETHER if module in MEETING else ()):  # few are collected for most mutants
        if files and (status := int(pytest.main([*options, *files]))):
            return status
    return 0


def preload() -> None:
    """What every child needs and no mutant changes, imported once."""
    for name in ("pytest", "hypothesis", "hypothesis.stateful", "aiohttp.web", "blockbuster", "msgspec"):
        importlib.import_module(name)
    assert not any(name.startswith("failsoft") for name in sys.modules)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="how many mutants; 0 for all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modules", default=",".join(TESTS))
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--list", action="store_true", help="only count the mutants there are")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sites = [
        (module, number, line, what)
        for module in options.modules.split(",")
        for number, (line, what, _) in enumerate(changes_of(parsed(module)))
    ]
    if options.list:
        print(json.dumps({**Counter(module for module, *_ in sites), "all": len(sites)}))
        return 0
    random.Random(options.seed).shuffle(sites)
    chosen = sites[: options.sample or None]
    preload()
    if not survives(chosen[0][0], None):
        sys.exit("the tests fail without any change")
    began, survivors, tried = time.monotonic(), [], Counter[str]()
    for count, (module, number, line, what) in enumerate(chosen, 1):
        if time.monotonic() - began > options.minutes * 60:
            break
        tried[module] += 1
        if survives(module, number):
            survivors.append({"module": module, "line": line, "change": what})
            print(f"\nsurvives: {module}.py:{line} {what}", file=sys.stderr)
        print(f"\r{count}/{len(chosen)} tried, {len(survivors)} survive ", end="", file=sys.stderr, flush=True)
    total = tried.total()
    figures = {
        "mutants": total,
        "of": len(sites),
        "seed": options.seed,
        "killed": total - len(survivors),
        "killed_share": round(1 - len(survivors) / total, 4) if total else None,
        "by_module": {
            module: [n, sum(one["module"] == module for one in survivors)] for module, n in sorted(tried.items())
        },
        "survivors": survivors,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
