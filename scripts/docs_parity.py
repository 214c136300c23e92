"""Keep the documentation true: what can be read off the code is generated from it, the rest is compared with it.

    python scripts/docs_parity.py           fail, naming each page and place that is stale
    python scripts/docs_parity.py --write   write the generated parts first

Generated, between marks in a page (text around them is written by people):
  docs/errors.md          every error: code, family, HTTP status, whether trying later may help
  docs/configuration.md   every key: default, unit, scope
  docs/cli.md             every command and option
  docs/failures.md        every failure of a model and what is done about it

Compared: `failsoft …` commands and options and `make …` targets wherever a page shows them; links and their
anchors; every public name of the package has a docstring.
"""

import argparse
import importlib
import inspect
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN = "<!-- generated from the code by scripts/docs_parity.py: run `make fix`, do not edit -->"
END = "<!-- end of the generated part -->"


class NotThereYet(Exception):
    """The code that a page is generated from does not exist yet."""


def module(name: str) -> ModuleType:
    """Import a module of ours; an error inside it is an error, its absence is not."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotThereYet(name) from None
        raise


def attribute(of: str, name: str) -> Any:
    """A module's attribute, or NotThereYet."""
    try:
        return getattr(module(of), name)
    except AttributeError:
        raise NotThereYet(f"{of}.{name}") from None


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [
        head,
        ["---"] * len(head),
        *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def first_paragraph(doc: str | None) -> str:
    """The opening paragraph of a docstring, on one line, in Markdown."""
    text = " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


# --- errors ------------------------------------------------------------------------------------------------


def error_classes() -> list[type[Exception]]:
    """Every error class of ours that has a code of its own, in the order of the class tree."""
    root: type[Exception] = attribute("failsoft.base.errors", "FailsoftError")
    package = module("failsoft")
    for found in pkgutil.walk_packages(package.__path__, "failsoft."):
        if not found.name.endswith(".__main__"):
            importlib.import_module(found.name)  # so that subclasses elsewhere are known, too

    def below(cls: type[Exception]) -> Iterator[type[Exception]]:
        if "code" in vars(cls) and cls.__module__.startswith("failsoft."):
            yield cls
        for sub in cls.__subclasses__():
            yield from below(sub)

    return list(dict.fromkeys(below(root)))


def errors_page() -> str:
    """The table of errors."""
    rows = [
        [
            f"`{error.code}`",  # type: ignore[attr-defined] # the root class's contract
            f"`{error.type}`",  # type: ignore[attr-defined]
            str(error.status),  # type: ignore[attr-defined]
            "yes" if error.retryable else "no",  # type: ignore[attr-defined]
            f"`{error.__name__}`",
            first_paragraph(error.__doc__),
        ]
        for error in error_classes()
    ]
    return table(["code", "type", "HTTP", "may succeed later", "class", "meaning"], rows)


def errors_problems() -> Iterator[str]:
    """Codes are stable names: two classes must not share one."""
    seen: dict[str, str] = {}
    for error in error_classes():
        code = error.code  # type: ignore[attr-defined]
        if code in seen:
            yield f"error code {code!r} belongs to both {seen[code]} and {error.__name__}"
        seen[code] = error.__name__
        if "__doc__" not in vars(error) or not error.__doc__:
            yield f"{error.__name__} ({code}) has no docstring"


# --- configuration -----------------------------------------------------------------------------------------


def configuration_page() -> str:
    """The tables of settings, one for each section."""
    keys = list(attribute("failsoft.config", "keys")())
    sections: dict[str, list[Any]] = {}
    for key in keys:
        sections.setdefault(key.path.rpartition(".")[0], []).append(key)
    return "\n".join(
        (f"### `{section}`\n\n" if section else "### Top level\n\n")
        + table(
            ["key", "values", "default", "unit", "scope", "meaning"],
            [
                [
                    f"`{key.path}`",
                    key.type,
                    f"`{key.default}`".replace("`–`", ""),
                    key.unit or "",
                    f"`{key.scope}`",
                    key.description,
                ]
                for key in found
            ],
        )
        for section, found in sections.items()
    )


def configuration_problems() -> Iterator[str]:
    """Every key says what it means and what its change may touch."""
    for key in attribute("failsoft.config", "keys")():
        if key.scope not in {"run", "downstream", "process"}:
            yield f"setting {key.path} has no valid scope: {key.scope!r}"
        if not key.description:
            yield f"setting {key.path} has no description"


# --- command line ------------------------------------------------------------------------------------------


def typer_app() -> Any:
    """The application behind the `failsoft` command, whatever it is called there."""
    typer = importlib.import_module("typer").Typer
    for place in ("failsoft.cli", "failsoft.cli.main"):
        for value in vars(module(place)).values():
            if isinstance(value, typer):
                return value
    raise NotThereYet("typer application in failsoft.cli")


def commands(command: Any = None, path: str = "failsoft") -> Iterator[tuple[str, Any]]:
    """Every command with its path, parents first."""
    if command is None:
        command = importlib.import_module("typer.main").get_command(typer_app())
    yield path, command
    for name, sub in getattr(command, "commands", {}).items():
        if not sub.hidden:
            yield from commands(sub, f"{path} {name}")


def options_of(command: Any) -> list[Any]:
    """The command's options, without what every command has or what is hidden."""
    return [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]


def cli_page() -> str:
    """One section for each command."""
    sections = []
    for path, command in commands():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = [path, *(["[options]"] if options_of(command) else [])]
        usage += [(f"{p.name.upper()}" if p.required else f"[{p.name.upper()}]") for p in arguments]
        usage += ["<command>"] if getattr(command, "commands", None) else []
        text = f"### `{path}`\n\n```\n{' '.join(usage)}\n```\n\n{prose(command.help)}\n"
        rows = [[f"`{p.name.upper()}`", "", getattr(p, "help", None) or ""] for p in arguments]
        for p in options_of(command):
            names = ", ".join(f"`{name}`" for name in (*p.opts, *p.secondary_opts))
            rows.append([names, default_of(p), getattr(p, "help", None) or ""])
        sections.append(text + ("\n" + table(["", "default", "meaning"], rows) if rows else ""))
    return "\n".join(sections)


def prose(help_text: str | None) -> str:
    """A command's help as Markdown: paragraphs under the mark that keeps lines as they are become code blocks."""
    paragraphs = inspect.cleandoc(help_text or "").split("\n\n")
    return "\n\n".join(
        f"```\n{text.removeprefix(chr(8)).strip()}\n```"
        if text.startswith("\b") and "\n  " in text
        else text.lstrip("\b\n")
        for text in paragraphs
    )


def default_of(option: Any) -> str:
    """An option's default, as it would be typed."""
    value = option.default
    shown = getattr(option, "show_default", None)
    if isinstance(shown, str):
        return shown
    if value is None or callable(value) or value in ((), [], False) or "UNSET" in repr(value):
        return ""
    return f"`{value}`"


def cli_problems() -> Iterator[str]:
    """Every command and option explains itself."""
    for path, command in commands():
        if not command.help:
            yield f"`{path}` has no help text"
        for p in options_of(command):
            if not getattr(p, "help", None):
                yield f"`{path} {p.opts[0]}` has no help text"


# --- failures of models ------------------------------------------------------------------------------------


def failures_page() -> str:
    """The table of symptoms and readings."""
    head, *rows = attribute("failsoft.models.failure_table", "markdown_rows")()
    return table(head, rows)


def failures_problems() -> Iterator[str]:
    """The client never sees another status than these."""
    for name, row in attribute("failsoft.models.failure_table", "ROWS").items():
        if row.status not in {400, 429, 499, 502, 503, 504}:
            yield f"model failure {name} has status {row.status}"


# --- pages -------------------------------------------------------------------------------------------------

PAGES: dict[str, tuple[str, Callable[[], str], Callable[[], Iterator[str]]]] = {
    "docs/errors.md": ("Errors", errors_page, errors_problems),
    "docs/configuration.md": ("Configuration", configuration_page, configuration_problems),
    "docs/cli.md": ("Command line", cli_page, cli_problems),
    "docs/failures.md": ("How failures of models are read", failures_page, failures_problems),
}


def with_generated(text: str, title: str, generated: str) -> str:
    """The page with its generated part replaced, or added at its end."""
    part = f"{BEGIN}\n\n{generated}\n{END}"
    if BEGIN in text and END in text:
        head, _, rest = text.partition(BEGIN)
        return head + part + rest.partition(END)[2]
    return (text.rstrip("\n") or f"# {title}") + f"\n\n{part}\n"


def pages_problems(write: bool) -> Iterator[str]:
    """Stale generated parts; with `write` they are brought up to date first."""
    for name, (title, generate, problems) in PAGES.items():
        page = ROOT / name
        try:
            yield from problems()
            old = page.read_text() if page.exists() else ""
            new = with_generated(old, title, generate())
        except NotThereYet as missing:
            print(f"{name}: skipped, there is no {missing} yet")
            continue
        if new != old:
            if write:
                page.write_text(new)
                print(f"{name}: written")
            else:
                yield f"{name} is stale: run `make fix`"


def markdown() -> list[Path]:
    """Every page of the repository."""
    top = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
    return [page for page in (*top, *sorted((ROOT / "docs").rglob("*.md"))) if page.exists()]


def shown_commands(text: str) -> Iterator[str]:
    """Commands that a page shows, in code blocks or in line."""
    blocks = re.findall(r"^```(?:console|bash|sh|shell|text)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in (*lines, *inline):
        yield re.sub(r"^\s*(\$ )?(?:uv run |\.venv/bin/)?", "", line)


def commands_problems() -> Iterator[str]:
    """Commands, options and make targets that pages show but that do not exist."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    try:
        known = dict(commands())
    except NotThereYet as missing:
        print(f"commands shown in pages: skipped, there is no {missing} yet")
        known = None
    for page in markdown():
        text = page.read_text()
        for line in shown_commands(text):
            if made := re.match(r"make ([a-z-]+)$|make ([a-z-]+) ", line):
                target = made[1] or made[2]
                if target not in targets:
                    yield f"{page.relative_to(ROOT)}: there is no `make {target}`"
            if known is not None and re.match(r"failsoft( |$)", line):
                for problem in command_problems(line, known):
                    yield f"{page.relative_to(ROOT)}: {problem}"


def command_problems(line: str, known: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one shown command line."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return  # an apostrophe in a sentence, not a command line
    if ("…" in line and len(words) == 2) or "|" in words:
        words = words[: words.index("|")] if "|" in words else words[:1]
    path, rest = words[0], words[1:]
    while rest and f"{path} {rest[0]}" in known:
        path, rest = f"{path} {rest[0]}", rest[1:]
    command = known[path]
    if (
        getattr(command, "commands", None)
        and rest
        and re.fullmatch(r"[a-z-]+", rest[0])
        and not rest[0].startswith("-")
    ):
        yield f"there is no command `{path} {rest[0]}`"
        return
    existing = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    for word in rest:
        option = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*", option) and option not in existing:
            yield f"`{path}` has no option {option}"


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings get."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#{1,6} +(.+?) *#*$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links_problems() -> Iterator[str]:
    """Links inside the repository that lead nowhere."""
    for page in markdown():
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", prose):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or not file.is_relative_to(ROOT):
                yield f"{page.relative_to(ROOT)}: link to {target}, which is not there"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                yield f"{page.relative_to(ROOT)}: link to {target}, which has no such heading"


def names_problems() -> Iterator[str]:
    """Public names that do not exist or do not say what they are."""
    package = module("failsoft")
    for name in package.__all__:
        value = getattr(package, name, None)
        if value is None:
            yield f"failsoft.__all__ names {name}, which is not there"
        elif (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value):
            yield f"failsoft.{name} has no docstring"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the generated parts first")
    write = parser.parse_args().write
    problems = [*pages_problems(write), *commands_problems(), *links_problems(), *names_problems()]
    if problems:
        sys.exit("\n".join(problems))
    print(f"documentation: {len(markdown())} pages agree with the code")


if __name__ == "__main__":
    main()
