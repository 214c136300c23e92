"""A plan is data: a versioned DAG of tasks that any planner may make and JSON carries unchanged.

Arguments may refer to the result of an earlier task, see :mod:`~failsoft.runs.references`. References reach only tasks
that surely ended before: those in ``needs``, directly or through others.

:func:`check_plan` is the one gate between a planner and the scheduler: a plan that passed it can be run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from failsoft.base.errors import BadInput, PlanRefused, UnknownTool
from failsoft.base.outcomes import Priority
from failsoft.runs.conditions import Condition
from failsoft.runs.references import ITEM, Reference, reference_of, references, resolve
from failsoft.runs.shape import Shape
from failsoft.tools.registry import ToolRegistry

__all__ = [
    "Each",
    "Fallback",
    "Plan",
    "PlanLimits",
    "Reference",
    "Step",
    "TaskSpec",
    "ancestors",
    "check_plan",
    "references",
    "resolve",
]

TaskKind = Literal["tool", "model", "agent", "rule"]
PriorityName = Literal["critical", "normal", "optional"]


class Fallback(BaseModel):
    """A value served when nothing else could be; ``equivalent`` when it is as good as the real one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Any = None
    equivalent: bool = False


class Each(BaseModel):
    """A task is done once for each item of a list: ``over`` is the list, or a reference to one.

    At most ``width`` items are under way at once, and at most ``limit`` are done at all; what is beyond is left out,
    which makes the result a truncated one. In the arguments ``{"$item": "path"}`` stands for the item or a part of it.
    The result is the list of the items' results in their order, with None for those that brought nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    over: list[Any] | dict[str, Any]
    width: int = Field(default=8, ge=1, le=1_000)
    limit: int = Field(default=100, ge=1, le=10_000)


class TaskSpec(BaseModel):
    """One task of a plan.

    ``tool`` names what runs it: a tool for ``kind="tool"``, else a model, agent or rule. ``essential`` tasks are
    tried as long as there is any budget; others are skipped when they do not fit. ``tolerates_missing`` lets the task
    start though a task it needs brought nothing: references to it give None. ``timeout`` is in seconds and covers the
    whole task with its retries and alternates; ``weight`` is its share in progress while there is no history.
    ``fallback`` is served when the task brings nothing, also when it was never started.

    ``when``: the task is done only when this holds; else it is left out, with all that needs it, and nothing is
    missing.
    ``map``: it is done for each item of a list. ``join="any"``: it starts as soon as one of its ``needs`` brought
    something, and not only when all have. ``retries``: how often the whole of it is tried again when it failed with
    what may pass; only what may be repeated (a query) is, and only while the run's budget has room for it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_\-]{0,63}$")
    tool: str = Field(min_length=1, max_length=200)
    kind: TaskKind = "tool"
    arguments: dict[str, Any] = Field(default_factory=dict)
    needs: tuple[str, ...] = ()
    title: str = Field(default="", max_length=500)
    essential: bool = True
    priority: PriorityName = "normal"
    fallback: Fallback | None = None
    timeout: float | None = Field(default=None, gt=0)
    weight: float = Field(default=1.0, gt=0)
    tolerates_missing: bool = False
    when: Condition | None = None
    map: Each | None = None
    join: Literal["all", "any"] = "all"
    retries: int = Field(default=0, ge=0, le=3)

    @property
    def rank(self) -> int:
        """The priority as the kernel counts it: smaller is more important."""
        return Priority.NAMES.index(self.priority)

    @property
    def label(self) -> str:
        """The title, or the id when there is none."""
        return self.title or self.id


class Step:
    """A task as who runs it reads it, many times: plain attributes, which cost a tenth of a model's."""

    __slots__ = (
        "arguments", "essential", "id", "key", "kind", "label", "map", "needs", "rank", "retries", "spec", "timeout",
        "tool", "when",
    )  # fmt: skip

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.id = spec.id
        self.tool = spec.tool
        self.kind = spec.kind
        self.key = f"{spec.kind}:{spec.tool}"
        """What the history knows it by."""
        self.arguments = spec.arguments
        self.needs = spec.needs
        self.label = spec.label
        self.essential = spec.essential
        self.rank = spec.rank
        self.timeout = spec.timeout
        self.when = spec.when
        self.map = spec.map
        self.retries = spec.retries


class Plan(BaseModel):
    """Tasks and what the planner made of the question.

    ``reading`` says back, in the question's language, what was understood; ``notes`` what was assumed; ``unread`` what
    of the question no task answers, in its own words: a run with any of it is never more than degraded. ``data`` is for
    whatever a planner wants the agent's answer function to have; plain JSON, never looked at by the platform.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    tasks: tuple[TaskSpec, ...]
    reading: str = ""
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    data: dict[str, Any] = Field(default_factory=dict)

    def task(self, task_id: str) -> TaskSpec:
        """The task of that id; raises ``KeyError``."""
        for task in self.tasks:
            if task.id == task_id:
                return task
        raise KeyError(task_id)

    @property
    def shape(self) -> Shape:
        """Who needs whom; worked out once. A cycle shows in it as tasks that are in no order."""
        known: Shape | None = self.__dict__.get("_shape")
        if known is None or known.tasks is not self.tasks:
            known = self.__dict__["_shape"] = Shape(self.tasks)
        return known

    @property
    def steps(self) -> list[Step]:
        """The tasks as they are run; made once, so not to be changed."""
        known: list[Step] | None = self.__dict__.get("_steps")
        if known is None:
            known = self.__dict__["_steps"] = [Step(task) for task in self.tasks]
        return known

    @property
    def outline(self) -> list[dict[str, Any]]:
        """What is told of its tasks before they run, as plain JSON data; made once, so not to be changed."""
        known: list[dict[str, Any]] | None = self.__dict__.get("_outline")
        if known is None:
            known = self.__dict__["_outline"] = [
                {
                    "id": task.id,
                    "title": task.label,
                    "tool": task.tool,
                    "kind": task.kind,
                    "needs": list(task.needs),
                    "essential": task.essential,
                }
                for task in self.tasks
            ]
        return known

    def to_json(self) -> str:
        """JSON that :meth:`from_json` reads back as an equal plan."""
        return self.model_dump_json(exclude_defaults=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Reads a plan strictly; raises :class:`~failsoft.base.errors.PlanRefused` naming the place."""
        return _read(lambda: cls.model_validate_json(text))

    @classmethod
    def from_dict(cls, data: object) -> Plan:
        """Reads a plan from plain data; raises :class:`~failsoft.base.errors.PlanRefused` naming the place."""
        return _read(lambda: cls.model_validate(data))


def _read(make: Any) -> Plan:
    from pydantic import ValidationError

    try:
        plan: Plan = make()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = dotted(first["loc"])
        raise PlanRefused(
            f"the plan does not fit its schema at {where or 'the top'}: {first['msg']}",
            param=where or "plan",
            details={"reason": "schema"},
        ) from None
    except RecursionError:
        raise PlanRefused("the plan is nested too deeply", param="plan", details={"reason": "too_deep"}) from None
    return plan


def dotted(loc: Sequence[int | str]) -> str:
    """Pydantic's place of an error as people write it: ``tasks[2].needs``."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What a plan may be: how many tasks, and of which kinds (those that something here can run)."""

    max_tasks: int = 100
    kinds: frozenset[str] = frozenset({"tool"})


def check_plan(plan: Plan, tools: ToolRegistry, limits: PlanLimits | None = None) -> Plan:
    """Returns `plan` when it can be run; raises :class:`~failsoft.base.errors.PlanRefused` otherwise.

    ``param`` names the place and ``details["reason"]`` the cause: ``no_task``, ``too_many_tasks``, ``unknown_kind``,
    ``duplicate_id``, ``unknown_need``, ``cycle``, ``unknown_tool``, ``bad_arguments``, ``not_a_dependency``,
    ``bad_reference``, ``too_deep``.
    """
    limits = limits or PlanLimits()
    passed = plan.__dict__.get("_passed")
    mark = (plan.tasks, tools, len(tools), limits)
    if passed is not None and passed[0] is plan.tasks and passed[1] is tools and passed[2:] == mark[2:]:
        return plan  # the same plan again: of a static planner
    if not plan.tasks:
        raise _refused("the plan has no task", "tasks", "no_task")
    if len(plan.tasks) > limits.max_tasks:
        raise _refused(
            f"the plan has {len(plan.tasks)} tasks, more than the {limits.max_tasks} allowed", "tasks", "too_many_tasks"
        )
    shape = plan.shape
    for i, task in enumerate(plan.tasks):
        if shape.places[task.id] != i:
            raise _refused(f"two tasks have the id {task.id!r}", f"tasks[{i}].id", "duplicate_id")
        if task.kind not in limits.kinds:
            raise _refused(
                f"nothing here runs tasks of kind {task.kind!r}; there are: {', '.join(sorted(limits.kinds))}",
                f"tasks[{i}].kind",
                "unknown_kind",
            )
    for i, task in enumerate(plan.tasks):
        for need in task.needs:
            if need not in shape.places:
                raise _refused(
                    f"task {task.id!r} needs {need!r}, which is not in the plan", f"tasks[{i}].needs", "unknown_need"
                )
    if (cycle := shape.cycle()) is not None:
        raise _refused("the plan has a cycle: " + " → ".join(cycle), "tasks", "cycle", cycle=cycle)
    for i, task in enumerate(plan.tasks):
        _check_task(i, task, tools, shape)
    plan.__dict__["_passed"] = mark
    return plan


def _refused(message: str, param: str, reason: str, **details: Any) -> PlanRefused:
    return PlanRefused(message, param=param, details={"reason": reason, **details})


def _check_task(i: int, task: TaskSpec, tools: ToolRegistry, shape: Shape) -> None:
    where = f"tasks[{i}]"
    try:
        found = references(task.arguments) if task.arguments else []
        others: list[Reference] = []
        if task.when is not None:
            others.append(reference_of(task.when.of, "when.of"))
        if task.map is not None and isinstance(task.map.over, dict):
            others.append(reference_of(task.map.over, "map.over"))
    except PlanRefused as error:
        raise _refused(error.message, f"{where}.{error.param}", str(error.details["reason"])) from None
    for reference in (*found, *others):
        if reference.task == ITEM:
            if task.map is None or reference in others:
                raise _refused(
                    f"task {task.id!r} is not mapped over a list, so there is no item",
                    f"{where}.{reference.where}",
                    "bad_reference",
                )
        elif not shape.above(reference.task, i):
            raise _refused(
                f"task {task.id!r} refers to {reference.task!r}, which it does not need",
                f"{where}.{reference.where}",
                "not_a_dependency",
            )
    if task.kind != "tool":
        return
    try:
        tool = tools.get(task.tool)
    except UnknownTool as error:
        raise _refused(error.message, f"{where}.tool", "unknown_tool", **error.details) from None
    # What comes from other tasks is not known yet: its argument is checked for presence now, for its type when it is
    # there.
    unknown = {reference.where.split(".")[1].split("[")[0] for reference in found}
    try:
        tool.check(task.arguments, unknown=unknown)
    except BadInput as error:
        raise _refused(
            f"the arguments of task {task.id!r} do not fit: {error.message}",
            f"{where}.arguments.{error.param}" if error.param else f"{where}.arguments",
            "bad_arguments",
        ) from None


def ancestors(plan: Plan) -> dict[str, set[str]]:
    """For each task the ids of all tasks that end before it starts; raises :class:`PlanRefused` naming a cycle."""
    shape = plan.shape
    if (cycle := shape.cycle()) is not None:
        raise _refused("the plan has a cycle: " + " → ".join(cycle), "tasks", "cycle", cycle=cycle)
    return {
        task.id: {other.id for other in plan.tasks if shape.above(other.id, i)} for i, task in enumerate(plan.tasks)
    }
