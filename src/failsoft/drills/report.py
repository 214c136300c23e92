"""A drill's report: one page of HTML that needs nothing else, to be read in a minute."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from failsoft.base.errors import BadInput
from failsoft.drills.plots import drawn
from failsoft.drills.running import Drilled
from failsoft.drills.verdict import FIGURES

__all__ = ["page", "write_report"]

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#1f2933}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .9em .25em 0;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}.ok{color:#1b7f6b}.short{color:#9b2226;font-weight:600}
svg{width:100%;height:auto}h1{font-size:1.3em}.quiet{color:#617083}
"""


def page(drilled: Drilled) -> str:
    """The whole page."""
    told, scenario = drilled.verdict, drilled.scenario
    arms = [arm for arm in ("healthy", "baseline", "failsoft") if arm in told]
    faulted = next((one.faulted for one in drilled.arms.values() if one.faulted), None)
    verdict = '<span class="ok">passed</span>' if told["pass"] else '<span class="short">not passed</span>'
    facts = f"scale {told['scale']:g}, seed {told['seed']}" + (f", faulted: {faulted}" if faulted else "")
    head = "".join(f"<th>{arm}</th>" for arm in arms)
    rows = "".join(
        f"<tr><td>{name}</td>" + "".join(f'<td class="n">{_number(told[arm][name])}</td>' for arm in arms) + "</tr>"
        for name in FIGURES
    )
    goals = "".join(
        f"<tr><td>{html.escape(goal['name'])}</td><td>{html.escape(goal['goal'])}</td>"
        f'<td class="n">{_number(goal["value"])}</td>'
        + ('<td class="ok">reached</td></tr>' if goal["pass"] else '<td class="short">short</td></tr>')
        for goal in told["goals"]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(scenario.id)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(scenario.id)}: {html.escape(scenario.title)} — {verdict}</h1>"
        f'<p class="quiet">{html.escape(facts)}. {html.escape(scenario.notes)}</p>'
        f"<table><tr><th>goal</th><th>wanted</th><th>value</th><th></th></tr>{goals}</table>"
        f"{drawn(drilled)}"
        f"<table><tr><th></th>{head}</tr>{rows}</table></body></html>\n"
    )


def write_report(drilled: Drilled, file: Path) -> None:
    """Writes the page; raises :class:`~failsoft.base.errors.BadInput` when it cannot be written."""
    text = page(drilled)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--report: {file} cannot be written: {error.strerror}", param="report") from None


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}"
