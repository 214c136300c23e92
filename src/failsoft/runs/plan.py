"""A plan is data: a versioned DAG of tasks that any planner may make and JSON carries unchanged.

Arguments may refer to the result of an earlier task by ``{"$from": "id"}``, or to a part of it by
``{"$from": "id", "path": "rows[0].name"}``; with ``"default"`` a missing result or part is no error. References reach
only tasks that surely ended before: those in ``needs``, directly or through others.

:func:`check_plan` is the one gate between a planner and the scheduler: a plan that passed it can be run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from failsoft.base.errors import BadInput, PlanRefused, UnknownTool
from failsoft.base.outcomes import Priority
from failsoft.tools.registry import ToolRegistry

__all__ = [
    "Fallback",
    "Plan",
    "PlanLimits",
    "Reference",
    "TaskSpec",
    "ancestors",
    "check_plan",
    "references",
    "resolve",
]

TaskKind = Literal["tool", "model", "agent", "rule"]
PriorityName = Literal["critical", "normal", "optional"]

_DEPTH: Final = 64
"""Nesting of arguments beyond which a plan is refused."""

_FROM: Final = "$from"
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")


class Fallback(BaseModel):
    """A value served when nothing else could be; ``equivalent`` when it is as good as the real one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Any = None
    equivalent: bool = False


class TaskSpec(BaseModel):
    """One task of a plan.

    ``tool`` names what runs it: a tool for ``kind="tool"``, else a model, agent or rule. ``essential`` tasks are
    tried as long as there is any budget; others are skipped when they do not fit. ``tolerates_missing`` lets the task
    start though a task it needs brought nothing: references to it give None. ``timeout`` is in seconds and covers the
    whole task with its retries and alternates; ``weight`` is its share in progress while there is no history.
    ``fallback`` is served when the task brings nothing, also when it was never started.
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

    @property
    def rank(self) -> int:
        """The priority as the kernel counts it: smaller is more important."""
        return Priority.NAMES.index(self.priority)

    @property
    def label(self) -> str:
        """The title, or the id when there is none."""
        return self.title or self.id


class Plan(BaseModel):
    """Tasks and what the planner made of the question.

    ``reading`` says back, in the question's language, what was understood; ``notes`` what was assumed. ``data`` is for
    whatever a planner wants the agent's answer function to have; plain JSON, never looked at by the platform.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    tasks: tuple[TaskSpec, ...]
    reading: str = ""
    notes: tuple[str, ...] = ()
    data: dict[str, Any] = Field(default_factory=dict)

    def task(self, task_id: str) -> TaskSpec:
        """The task of that id; raises ``KeyError``."""
        for task in self.tasks:
            if task.id == task_id:
                return task
        raise KeyError(task_id)

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
class Reference:
    """A ``$from`` in a task's arguments: whose result, which part of it, and where it stands."""

    task: str
    path: str = ""
    default: Any = None
    has_default: bool = False
    where: str = ""


class _TooDeep(Exception):
    """A signal within this module."""


def references(arguments: Mapping[str, Any]) -> list[Reference]:
    """All references in a task's arguments, in order. Raises :class:`PlanRefused` for malformed or too deep ones."""
    try:
        return list(_references(arguments, "arguments", 0))
    except _TooDeep:
        raise PlanRefused(
            f"arguments are nested more than {_DEPTH} deep", param="arguments", details={"reason": "too_deep"}
        ) from None


def _references(value: Any, where: str, depth: int) -> Iterator[Reference]:
    if depth > _DEPTH:
        raise _TooDeep
    if isinstance(value, dict):
        if _FROM in value:
            yield _reference(value, where)
            return
        for key, item in value.items():
            yield from _references(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _references(item, f"{where}[{i}]", depth + 1)


def _reference(value: Mapping[str, Any], where: str) -> Reference:
    task, path = value[_FROM], value.get("path", "")
    if not isinstance(task, str) or not isinstance(path, str) or not value.keys() <= {_FROM, "path", "default"}:
        raise PlanRefused(
            f'{where} is no reference: write {{"$from": "task", "path": "optional.path", "default": …}}',
            param=where,
            details={"reason": "bad_reference"},
        )
    return Reference(task, path, value.get("default"), "default" in value, where)


def resolve(arguments: Mapping[str, Any], values: Mapping[str, Any], missing: Collection[str] = ()) -> dict[str, Any]:
    """The arguments with each reference replaced by what it refers to.

    ``values`` are results by task id; a task in ``missing`` brought nothing and gives the reference's default, else
    None. Raises :class:`~failsoft.base.errors.BadInput` naming the argument when a path leads nowhere.
    """
    return {key: _resolved(value, values, missing, key) for key, value in arguments.items()}


def _resolved(value: Any, values: Mapping[str, Any], missing: Collection[str], where: str) -> Any:
    if isinstance(value, dict):
        if _FROM in value:
            reference = _reference(value, where)
            if reference.task in missing:
                return reference.default
            return _follow(values[reference.task], reference)
        return {key: _resolved(item, values, missing, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(item, values, missing, f"{where}[{i}]") for i, item in enumerate(value)]
    return value


def _follow(value: Any, reference: Reference) -> Any:
    """Walks a path through mappings, sequences and the fields of dataclasses and models, nothing else."""
    for match in _STEP.finditer(reference.path):
        name, index = match.groups()
        try:
            if index is not None:
                value = value[int(index)] if isinstance(value, list | tuple) else _nowhere()
            elif isinstance(value, Mapping):
                value = value[name]
            elif name in _field_names(value):
                value = getattr(value, name)
            else:
                _nowhere()
        except (KeyError, IndexError):
            if reference.has_default:
                return reference.default
            raise BadInput(
                f"the result of {reference.task!r} has no {reference.path!r}",
                param=reference.where,
                details={"reason": "no_such_part", "task": reference.task, "path": reference.path},
            ) from None
    return value


def _nowhere() -> Any:
    raise KeyError


def _field_names(value: Any) -> Collection[str]:
    if dataclasses.is_dataclass(value):
        return {field.name for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return type(value).model_fields.keys()
    return getattr(type(value), "_fields", ())


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
    if not plan.tasks:
        raise _refused("the plan has no task", "tasks", "no_task")
    if len(plan.tasks) > limits.max_tasks:
        raise _refused(
            f"the plan has {len(plan.tasks)} tasks, more than the {limits.max_tasks} allowed", "tasks", "too_many_tasks"
        )
    seen: set[str] = set()
    for i, task in enumerate(plan.tasks):
        if task.id in seen:
            raise _refused(f"two tasks have the id {task.id!r}", f"tasks[{i}].id", "duplicate_id")
        seen.add(task.id)
        if task.kind not in limits.kinds:
            raise _refused(
                f"nothing here runs tasks of kind {task.kind!r}; there are: {', '.join(sorted(limits.kinds))}",
                f"tasks[{i}].kind",
                "unknown_kind",
            )
    for i, task in enumerate(plan.tasks):
        for need in task.needs:
            if need not in seen:
                raise _refused(
                    f"task {task.id!r} needs {need!r}, which is not in the plan", f"tasks[{i}].needs", "unknown_need"
                )
    above = ancestors(plan)
    for i, task in enumerate(plan.tasks):
        _check_arguments(i, task, tools, above[task.id])
    return plan


def _refused(message: str, param: str, reason: str, **details: Any) -> PlanRefused:
    return PlanRefused(message, param=param, details={"reason": reason, **details})


def _check_arguments(i: int, task: TaskSpec, tools: ToolRegistry, above: Collection[str]) -> None:
    where = f"tasks[{i}]"
    try:
        found = references(task.arguments)
    except PlanRefused as error:
        raise _refused(error.message, f"{where}.{error.param}", str(error.details["reason"])) from None
    for reference in found:
        if reference.task not in above:
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
    needs = {task.id: task.needs for task in plan.tasks}
    above: dict[str, set[str]] = {}
    for root in needs:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(root, False)]
        on_path: set[str] = set()
        while stack:
            node, leaving = stack.pop()
            if leaving:
                path.pop()
                on_path.discard(node)
                above[node] = set(needs[node]).union(*(above[need] for need in needs[node]))
            elif node in on_path:
                cycle = [*path[path.index(node) :], node]
                raise _refused("the plan has a cycle: " + " → ".join(cycle), "tasks", "cycle", cycle=cycle)
            elif node not in above:
                path.append(node)
                on_path.add(node)
                stack.append((node, True))
                stack.extend((need, False) for need in needs[node])
    return above
