"""A list of sections as Markdown and as one HTML file: no scripts, nothing from elsewhere, light and dark."""

from __future__ import annotations

import base64
import html as escape
import re
from collections.abc import Sequence

from failsoft.examples.analyst import wording
from failsoft.examples.analyst.answer import Section, Table

_STATUS = {
    "partial": ("Incomplete", "不完整"),
    "stale": ("Not up to date", "非最新"),
    "missing": ("Missing", "缺失"),
}
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #616e7c; --line: #d9dee4; --paper: #ffffff;
  --band: #f5f7fa; --alert: #b93815; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --soft: #9aa5b1; --line: #3b4754; --paper: #161c23; --band: #1f2730;
    --alert: #ff9466; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans SC", "PingFang SC",
    "Microsoft YaHei", sans-serif; }
main { max-width: 54rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 1.5rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
section:first-of-type > p:first-of-type { font-size: 1.15rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; border-bottom-width: 2px; }
tbody tr:nth-child(even) { background: var(--band); }
.number { text-align: right; white-space: nowrap; }
img { max-width: 100%; height: auto; background: #fff; border-radius: .4rem; }
.from { color: var(--soft); font-size: .85rem; margin: .6rem 0 0; }
.status { border-left: 4px solid var(--alert); padding: .2rem 0 .2rem .8rem; color: var(--alert); }
pre { background: var(--band); padding: .8rem; overflow-x: auto; font-size: .8rem; border-radius: .4rem; }
summary { color: var(--soft); font-size: .85rem; cursor: pointer; }
"""


def _status(section: Section, language: str) -> str:
    if section.status == "ok":
        return ""
    word = wording.pick(language, *_STATUS[section.status])
    colon = wording.pick(language, ": ", "：")
    return f"{word}{colon}{section.reason}" if section.reason else word


def _more(table: Table, language: str) -> str:
    return (
        wording.pick(language, f"{table.more:,} more rows are not shown.", f"另有 {table.more:,} 行未显示。")
        if table.more
        else ""
    )


def markdown(title: str, sections: Sequence[Section], *, language: str = "en", images: Sequence[str] = ()) -> str:
    """The report as Markdown.

    `images` are the file names of the sections' pictures, in order; a picture without one is embedded as a data URI.
    """
    names = iter(images)
    parts = [f"# {_plain(title)}"]
    for section in sections:
        parts.append(f"## {_plain(section.title)}")
        if status := _status(section, language):
            parts.append(f"> **{_plain(status)}**")
        if section.body:
            parts.append(_plain(section.body))
        if section.items:
            parts.append("\n".join(f"- {_plain(item)}" for item in section.items))
        if section.table is not None:
            parts.append(_markdown_table(section.table))
            if more := _more(section.table, language):
                parts.append(more)
        if section.image is not None:
            target = next(names, None)
            target = _data_uri(section.image) if target is None else target.replace(" ", "%20")
            parts.append(f"![{_plain(title)}]({target})")
        if section.provenance:
            parts.append(f"*{_plain(section.provenance)}*")
        if section.sql:
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", section.sql)), default=0))
            parts.append(f"{fence}sql\n{section.sql}\n{fence}")
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """`text` with everything that Markdown or HTML would take as markup made harmless."""
    text = re.sub(r"\s*[\r\n]+\s*", " ", text)
    text = re.sub(r"([\\`*_\[\]|~])", r"\\\1", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"^(\s*)([#+-]|\d+[.)])(?=\s)", r"\1\\\2", text)


def _markdown_table(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_plain(c) or " " for c in cells) + " |"

    rule = "|" + "|".join("---:" if i in table.numeric else ":---" for i in range(len(table.head))) + "|"
    return "\n".join([line(table.head), rule, *(line(row) for row in table.rows)])


def html(title: str, sections: Sequence[Section], *, language: str = "en") -> str:
    """The report as one HTML file with everything in it."""
    body = "\n".join(_html_section(s, title, language) for s in sections)
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="{wording.pick(language, "en", "zh-CN")}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape.escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _html_section(section: Section, title: str, language: str) -> str:
    text = escape.escape
    parts = [f"<h2>{text(section.title)}</h2>"]
    if status := _status(section, language):
        parts.append(f'<p class="status" role="status">{text(status)}</p>')
    if section.body:
        parts.append(f"<p>{text(section.body)}</p>")
    if section.items:
        parts.append("<ul>" + "".join(f"<li>{text(item)}</li>" for item in section.items) + "</ul>")
    if section.table is not None:
        parts.append(_html_table(section.table))
        if more := _more(section.table, language):
            parts.append(f"<p>{text(more)}</p>")
    if section.image is not None:
        parts.append(f'<img alt="{text(title)}" src="{_data_uri(section.image)}">')
    if section.provenance:
        parts.append(f'<p class="from">{text(section.provenance)}</p>')
    if section.sql:
        parts.append(f"<details><summary>SQL</summary><pre>{text(section.sql)}</pre></details>")
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _html_table(table: Table) -> str:
    def cell(tag: str, i: int, value: str) -> str:
        number = ' class="number"' if i in table.numeric else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{number}>{escape.escape(value)}</{tag}>"

    head = "".join(cell("th", i, c) for i, c in enumerate(table.head))
    rows = "\n".join("<tr>" + "".join(cell("td", i, c) for i, c in enumerate(row)) + "</tr>" for row in table.rows)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
