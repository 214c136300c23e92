"""The documentation check sees what can drift between pages and code."""

from typing import Annotated

import pytest
import typer

from failsoft.base.errors import FailsoftError
from scripts import docs_parity

app = typer.Typer(help="Answers.")


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What to answer.")],
    budget: Annotated[float, typer.Option(help="Seconds.")] = 8.0,
):
    """Answer one question."""


@app.command()
def runs(number: Annotated[int, typer.Option()] = 3):
    pass


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A repository with a page, under the check; returns a function that writes a page and says what is wrong."""
    monkeypatch.setattr(docs_parity, "ROOT", tmp_path)
    monkeypatch.setattr(docs_parity, "typer_app", lambda: app)
    (tmp_path / "Makefile").write_text("demo: x\n\techo\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "there.md").write_text("# There\n\n## A heading, with `code`\n")

    def write(text: str) -> list[str]:
        (tmp_path / "README.md").write_text(text)
        return [*docs_parity.commands_problems(), *docs_parity.links_problems()]

    return write


@pytest.mark.parametrize(
    "text",
    [
        "Run `make demo`, then `failsoft ask` and `failsoft ask 'how many?' --budget 5`.",
        "```console\n$ uv run failsoft ask x \\\n    --budget 3 | less --no-such-option\n```",
        "`failsoft …` is the command. A word such as failsoft is not a command.",
        "[a](docs/there.md) [b](docs/there.md#a-heading-with-code) [c](#top) [d](https://example.invalid/x)\n\n# Top",
        "```python\nprint('failsoft gone')\n```\n```\n[not a link](nowhere.md)\n```",
    ],
)
def test_what_is_true_passes(here, text):
    assert here(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("`failsoft gone`", "README.md: there is no command `failsoft gone`"),
        ("```\nfailsoft ask x --gone 3\n```", "README.md: `failsoft ask` has no option --gone"),
        ("`make gone`", "README.md: there is no `make gone`"),
        ("[a](docs/gone.md)", "README.md: link to docs/gone.md, which is not there"),
        ("![a](docs/gone.png)", "README.md: link to docs/gone.png, which is not there"),
        ("[a](docs/there.md#gone)", "README.md: link to docs/there.md#gone, which has no such heading"),
        ("[a](../outside.md)", "README.md: link to ../outside.md, which is not there"),
    ],
)
def test_what_is_false_is_named(here, text, problem):
    assert here(text) == [problem]


def test_commands_and_options_must_explain_themselves(here):
    assert list(docs_parity.cli_problems()) == [
        "`failsoft runs` has no help text",
        "`failsoft runs --number` has no help text",
    ]


def test_command_page_has_every_command_argument_and_option(here):
    page = docs_parity.cli_page()
    for part in ("failsoft ask [options] QUESTION", "| `QUESTION` |  | What to answer. |", "| `--budget` | `8.0` |"):
        assert part in page


def test_written_text_around_the_generated_part_stays():
    page = docs_parity.with_generated("# Mine\n\nBefore.\n", "Title", "old")
    page = docs_parity.with_generated(page + "\nAfter.\n", "Title", "new")
    assert page.startswith("# Mine\n\nBefore.\n")
    assert page.endswith("\nAfter.\n")
    assert "new" in page
    assert "old" not in page


def test_stale_page_is_named_and_then_written(here, tmp_path, monkeypatch):
    monkeypatch.setattr(docs_parity, "PAGES", {"docs/x.md": ("X", lambda: "fresh\n", lambda: iter(()))})
    assert list(docs_parity.pages_problems(write=False)) == ["docs/x.md is stale: run `make fix`"]
    assert list(docs_parity.pages_problems(write=True)) == []
    assert list(docs_parity.pages_problems(write=False)) == []
    assert "fresh" in (tmp_path / "docs" / "x.md").read_text()


def test_every_error_code_is_on_the_errors_page():
    page = docs_parity.errors_page()
    assert f"| `{FailsoftError.code}` |" in page
    assert page.count("\n") == len(docs_parity.error_classes()) + 2
