"""The agent of the tickets: looks for what there is, asks a person, opens one ticket.

::

    failsoft serve --load failsoft.examples.tickets.agent:tickets

By rules alone it understands "Open a ticket: the printer is broken (high)" and "Find tickets about the printer". With a
model (an alias of the gateway called ``assistant``, or ``TICKETS_MODEL``) it is a loop, too, for whatever the
rules do not understand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from failsoft.base.errors import BadInput
from failsoft.examples.tickets.desk import Priority, TicketDesk
from failsoft.runs.agents import Agent
from failsoft.runs.answer import Answer, Parts
from failsoft.runs.loop import TASK, Loop, LoopPlanner
from failsoft.runs.loop_model import LoopModel
from failsoft.runs.plan import Plan, PlanLimits, TaskSpec
from failsoft.runs.planner import Planner, PlanRequest, RulesPlanner
from failsoft.tools.python import PythonTool, tool
from failsoft.tools.registry import Default, ToolContext

__all__ = ["NAME", "desk_tools", "make_tickets", "tickets"]

NAME: Final = "tickets"

_OPEN: Final = re.compile(
    r"\s*(?:please\s+)?(?:open|create|file)\s+(?:a\s+|another\s+)?ticket\b[\s:,]*(?:for|about|that)?\s*(?P<title>.+)"
    r"|\s*(?:请)?(?:新建|创建|提交|开)(?:一个|一张|个|张)?工单[\s：:，,]*(?P<title_zh>.+)",
    re.IGNORECASE | re.DOTALL,
)
_FIND: Final = re.compile(
    r"\s*(?:please\s+)?(?:find|show|list|search)\s+(?:the\s+|all\s+)?tickets\b\s*(?:about|for|on|with)?\s*(?P<text>.+)"
    r"|\s*(?:查找|搜索|查询)(?:关于)?(?P<text_zh>.+?)的?工单",
    re.IGNORECASE | re.DOTALL,
)
_PRIORITY: Final = re.compile(
    r"[\s(（,，]*(?:priority\s*[:=]?\s*)?\b(?P<word>low|normal|high|urgent)\b(?:\s+priority)?[\s)）.]*$"
    r"|[（(，,\s]*(?P<word_zh>低|普通|高|紧急)优先级?[）)。\s]*$",
    re.IGNORECASE,
)
_PRIORITIES: Final[dict[str, Priority]] = {
    "low": "low", "normal": "normal", "high": "high", "urgent": "high", "低": "low", "普通": "normal", "高": "high",
    "紧急": "high",
}  # fmt: skip
_TITLE: Final = 200
_INSTRUCTIONS: Final = (
    "You are a help desk. Look for tickets that are alike before you open one, and open none when one is there. "
    "Opening a ticket asks a person first; when that is refused, say so and do not try again."
)


def desk_tools(desk: TicketDesk) -> list[PythonTool[..., Any]]:
    """The desk's tools: looking is a query that a run can do without, opening an action; a person is asked about it."""

    @tool(kind="query", downstream="desk", timeout=2, stale_for="1h", fallback=Default([]))
    def find_tickets(text: str) -> list[dict[str, Any]]:
        """Tickets that are about something: number, title and priority, the newest first."""
        return [{k: v for k, v in asdict(one).items() if k != "key"} for one in desk.find(text)]

    @tool(kind="action", downstream="desk", timeout=5, approval=True, idempotent=True)
    def create_ticket(title: str, context: ToolContext, priority: Priority = "normal") -> dict[str, Any]:
        """Opens a ticket. A person is asked first."""
        if not title.strip() or len(title) > _TITLE:
            raise BadInput(f"a title has 1 to {_TITLE} characters", param="title")
        made = desk.create(title.strip(), priority, context.idempotency_key or "")
        return {"number": made.number, "title": made.title, "priority": made.priority}

    return [find_tickets, create_ticket]


def make_tickets(desk: TicketDesk, model: str | LoopModel | None = None) -> Agent:
    """The agent over a desk; with a `model` it is a loop for what the rules do not understand."""
    planners: list[Planner] = [RulesPlanner(_plan)]
    if model is not None:
        planners.append(LoopPlanner(NAME))
    return Agent(
        NAME,
        "Opens tickets, after asking a person, and finds those there are.",
        desk_tools(desk),
        planners,
        answer=_answer,
        limits=PlanLimits(kinds=frozenset({"tool", "agent"})),
        loop=None if model is None else Loop(model, _INSTRUCTIONS),
        makes_up_for=("create_ticket",),
    )


def tickets() -> Agent:
    """The agent over the file that ``TICKETS_FILE`` names, else ``tickets.json`` here."""
    path = Path(os.environ.get("TICKETS_FILE", "tickets.json"))
    return make_tickets(TicketDesk(path), os.environ.get("TICKETS_MODEL") or None)


def _plan(request: PlanRequest) -> Plan | None:
    zh = request.language == "zh"
    opened = _OPEN.fullmatch(request.input)
    if opened is not None:
        title, priority = _title_of(opened["title"] or opened["title_zh"])
        if not title:
            return None
        look = TaskSpec(
            id="alike",
            tool="find_tickets",
            arguments={"text": title},
            essential=False,
            title="类似的工单" if zh else "Tickets that are alike",
        )
        make = TaskSpec(
            id="ticket",
            tool="create_ticket",
            arguments={"title": title, "priority": priority},
            needs=("alike",),
            tolerates_missing=True,
            title="新工单" if zh else "The new ticket",
        )
        reading = f"新建工单“{title}”（{priority}）" if zh else f"Open a ticket: {title} ({priority})"
        return Plan(tasks=(look, make), reading=reading)
    found = _FIND.fullmatch(request.input)
    if found is not None:
        text = (found["text"] or found["text_zh"]).strip().rstrip("?？.。")
        title = "工单" if zh else "Tickets"
        return Plan(tasks=(TaskSpec(id="found", tool="find_tickets", arguments={"text": text}, title=title),))
    return None


def _title_of(text: str) -> tuple[str, Priority]:
    """The title and the priority behind it, if there is one."""
    priority: Priority = "normal"
    match = _PRIORITY.search(text)
    if match is not None and match.start() > 0:
        priority = _PRIORITIES[(match["word"] or match["word_zh"]).lower()]
        text = text[: match.start()]
    return " ".join(text.split()).rstrip(".。")[:_TITLE], priority


def _answer(parts: Parts) -> Answer:
    """What was opened and what there was already."""
    zh = parts.language == "zh"
    said = parts.value(TASK)
    if isinstance(said, str):
        return Answer(said)
    lines: list[str] = []
    made = parts.value("ticket")
    if isinstance(made, Mapping):
        text = (
            "已新建工单 #{number}：{title}（{priority}）。" if zh else "Ticket #{number} is open: {title} ({priority})."
        )
        lines.append(text.format(**made))
    elif parts.plan is not None and any(task.id == "ticket" for task in parts.plan.tasks):
        lines.append("没有新建工单。" if zh else "No ticket was opened.")
    others = [one for one in parts.value("alike") or parts.value("found") or () if one != made]
    if others:
        lines.append("已有的工单：" if zh else "There are:")
        lines += [f"- #{one['number']} {one['title']} ({one['priority']})" for one in others]
    elif made is None and parts.value("found") is not None:
        lines.append("没有找到工单。" if zh else "There are no such tickets.")
    return Answer("\n".join(lines))
