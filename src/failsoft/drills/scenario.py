"""Scenarios: what a drill does, as a YAML file says it.

A scenario has a *system* (downstreams with known data, the settings that Failsoft runs under, the runs that clients
ask for), a *load*, *faults* over time, a *baseline* to compare with, and *goals*. Times in the file are already
scaled; ``scale`` says by how much (10: what took 20 s takes 2 s, with every limit alike).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from failsoft.base.errors import BadInput
from failsoft.config.keys import Seconds, Section
from failsoft.drills.faults import made_toxic
from failsoft.drills.toxics import Toxic

__all__ = [
    "ArmName", "BackendSpec", "BaselineSpec", "ClientSpec", "FaultSpec", "GoalSpec", "LoadSpec", "RunSpec", "Scenario",
    "Stage", "TaskUse", "ViewSpec", "load_scenario", "mistake",
]  # fmt: skip

ArmName = Literal["healthy", "baseline", "failsoft"]


class BackendSpec(Section):
    """A fake downstream: lognormal latency, perhaps a capacity, and data that is known.

    ``median`` seconds, ``sigma`` of the logarithm. ``capacity``: calls that it serves at once, further ones queue
    inside it; None: any number. ``heeds``: stops working when its caller has gone.
    """

    median: Seconds = Field(default=0.05, gt=0)
    sigma: float = Field(default=0.25, ge=0, le=3)
    capacity: int | None = Field(default=None, ge=1)
    heeds: bool = True


class TaskUse(Section):
    """A task of a run: the downstream to ``use`` (``faulted``: the one drawn by the seed, ``other``: one of the others,
    a different one for each), and the tasks whose results it ``needs``: ``t0`` for the first, and so on.
    """

    use: str
    needs: tuple[str, ...] = ()
    essential: bool = True


class RunSpec(Section):
    """A kind of request. Either ``tasks`` are listed, or ``draw`` different downstreams are drawn for each request.

    ``shape``: ``parallel``, ``chain``, or ``join`` (the last needs all others). ``tenant`` and ``priority`` as in the
    API. ``fan_out``: so many calls of each task's downstream, each with a key of its own.
    """

    name: str = "lookup"
    weight: float = Field(default=1.0, gt=0)
    tasks: tuple[TaskUse, ...] = ()
    draw: int = Field(default=0, ge=0)
    shape: Literal["parallel", "chain", "join"] = "parallel"
    tenant: str | None = None
    priority: Literal["critical", "normal", "optional"] = "normal"
    fan_out: int = Field(default=1, ge=1, le=50)


class Stage(Section):
    """So many requests a second, ``for`` so long."""

    rate: float = Field(gt=0, le=5000)
    lasting: Seconds = Field(alias="for", gt=0)


class ClientSpec(Section):
    """How clients are. ``budget``: what they tell the platform; ``patience``: when they leave; ``retries``: how often
    they ask again when they got an error or left, after ``pause`` seconds.
    """

    budget: Seconds = Field(default=8.0, gt=0)
    patience: Seconds | None = None
    retries: int = Field(default=0, ge=0, le=10)
    pause: Seconds = 0.0


class LoadSpec(Section):
    """Open loop: requests come when they come, whether earlier ones were answered or not.

    ``warmup`` seconds at the first stage's rate come before, without a fault; they are not measured. ``most``: in
    flight at most; a drill that would need more is void.
    """

    arrivals: Literal["poisson", "constant"] = "poisson"
    stages: tuple[Stage, ...] = Field(min_length=1)
    warmup: Seconds = 5.0
    clients: ClientSpec = Field(default_factory=ClientSpec)
    most: int = Field(default=5000, ge=1, le=50_000)


class FaultSpec(Section):
    """A toxic at a downstream; ``on: faulted`` is the one that the seed draws. ``after`` counts from the end of the
    warm-up.
    """

    on: str = "faulted"
    toxic: str
    figures: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        """``{on, toxic, share, delay, …}``: what is no key of ours is a figure of the toxic's."""
        if not isinstance(given, dict) or "figures" in given:
            return given
        own = {"on", "toxic"}
        renamed = {"flap_on": "on", "flap_off": "off"}
        figures = {renamed.get(str(name), str(name)): value for name, value in given.items() if name not in own}
        return {**{name: value for name, value in given.items() if name in own}, "figures": figures}

    def made(self) -> Toxic:
        """The toxic itself."""
        return made_toxic(self.toxic, **self.figures)

    @model_validator(mode="after")
    def _sound(self) -> FaultSpec:
        try:
            self.made()
        except BadInput as error:
            raise ValueError(error.message) from None
        return self


class BaselineSpec(Section):
    """The naive platform, see :mod:`failsoft.drills.baseline.platform`: its one semaphore, its limit per call in
    seconds, its blind retries, the planning call between them, its one connection pool (None: no bound of its own).
    ``fallback``: where a call goes that has failed for good, by its downstream.
    ``breaker``: failures in ten seconds that open a downstream's breaker (None: there are no breakers).
    ``deadline``: of a run (None, as in the reports: none); ``proxy``: when the front proxy answers 504.
    """

    permits: int = Field(default=100, ge=1)
    limit: Seconds = Field(default=30.0, gt=0)
    retries: int = Field(default=1, ge=0, le=10)
    replan: Seconds = 0.0
    connections: int | None = Field(default=None, ge=1)
    fallback: dict[str, str] = Field(default_factory=dict)
    breaker: int | None = Field(default=None, ge=1)
    deadline: Seconds | None = None
    proxy: Seconds | None = None


class ViewSpec(Section):
    """A part of the requests: by time since the end of the warm-up, by kind (or kinds), tenant or priority, by whether
    they use the faulted downstream.
    """

    after: Seconds | None = None
    before: Seconds | None = None
    kind: str | None = None
    kinds: tuple[str, ...] = ()
    tenant: str | None = None
    not_tenant: str | None = None
    priority: str | None = None
    uses: bool | None = None


class GoalSpec(Section):
    """``value`` (minus ``minus``, over ``over``) against a bound; each is a path like ``failsoft.p99_ms`` or
    ``failsoft.views.unrelated.p99_ms``. Text for people is made from it when ``goal`` is not given.
    """

    name: str
    value: str
    minus: str | None = None
    over: str | None = None
    plus: tuple[str, ...] = ()
    at_most: float | None = None
    at_least: float | None = None
    goal: str = ""

    @model_validator(mode="after")
    def _bounded(self) -> GoalSpec:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("a goal has either at_most or at_least")
        for path in (self.value, *filter(None, (self.minus, self.over)), *self.plus):
            if path.partition(".")[0] not in get_args(ArmName):
                raise ValueError(f"{path!r} begins with no arm: {', '.join(get_args(ArmName))}")
        return self


class Scenario(Section):
    """All of a scenario's file."""

    id: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")
    title: str = ""
    kind: Literal["agents", "models", "process"] = "agents"
    scale: float = Field(default=1.0, gt=0)
    before: str = ""
    after: str = ""
    notes: str = ""
    downstreams: dict[str, BackendSpec] = Field(min_length=1)
    faulted: tuple[str, ...] = ()
    settings: dict[str, Any] = Field(default_factory=dict)
    runs: tuple[RunSpec, ...] = Field(default=(RunSpec(draw=3),), min_length=1)
    load: LoadSpec
    healthy: LoadSpec | None = None
    faults: tuple[FaultSpec, ...] = ()
    baseline: BaselineSpec = Field(default_factory=BaselineSpec)
    views: dict[str, ViewSpec] = Field(default_factory=dict)
    goals: tuple[GoalSpec, ...] = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("runs")
    @classmethod
    def _told_what(cls, runs: tuple[RunSpec, ...]) -> tuple[RunSpec, ...]:
        for run in runs:
            if bool(run.tasks) == bool(run.draw):
                raise ValueError(f"run {run.name!r} has either tasks or draw")
        return runs

    @model_validator(mode="after")
    def _known(self) -> Scenario:
        known = set(self.downstreams)
        used = {task.use for run in self.runs for task in run.tasks} | set(self.faulted)
        used |= {fault.on for fault in self.faults} - {"faulted"}
        for name in sorted(used - known):
            if name not in ("faulted", "other"):
                raise ValueError(f"there is no downstream {name!r}; there are {', '.join(self.downstreams)}")
        sections = self.settings.get("downstreams", {})
        if not isinstance(sections, dict) or not all(isinstance(one, dict) for one in sections.values()):
            raise ValueError("settings.downstreams: should be sections by the downstreams' names")
        unused = set(sections) - known - {"each"} if self.kind != "models" else set()
        if unused:
            raise ValueError(f"settings.downstreams: there is no downstream {min(unused)!r}: `each` is for all of them")
        if not self.faulted and ("faulted" in used or any(fault.on == "faulted" for fault in self.faults)):
            raise ValueError("something is on `faulted`, and `faulted` names no downstream to draw from")
        for run in self.runs:
            ids = {f"t{index}" for index in range(len(run.tasks))}
            for task in run.tasks:
                if not set(task.needs) <= ids:
                    raise ValueError(f"run {run.name!r}: needs are {', '.join(sorted(ids))}")
            if sum(task.use == "other" for task in run.tasks) > len(known) - 1:
                raise ValueError(f"run {run.name!r} uses more others than there are")
            if run.draw > len(known):
                raise ValueError(f"run {run.name!r} draws {run.draw} of {len(known)} downstreams")
        return self


def load_scenario(file: Path | str) -> Scenario:
    """Reads a scenario; raises :class:`~failsoft.base.errors.BadInput` naming file and place."""
    path = Path(file)
    try:
        with path.open("rb") as stream:
            text = stream.read(1_000_001)
        if len(text) > 1_000_000:
            raise BadInput(f"{path}: a scenario has at most 1 MB", param="scenario")
        data = YAML(typ="safe", pure=True).load(text.decode())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", param="scenario") from None
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f":{line + 1}" if line is not None else ""
        raise BadInput(f"{path}{where}: not YAML", param="scenario") from None
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise mistake(path, text.decode(), f"{place}: {message}" if place else message, first["loc"]) from None


def mistake(path: Path, text: str, message: str, loc: Sequence[int | str] = ()) -> BadInput:
    """The error for a mistake at `loc` of a scenario's `text`; without one, where the name it quotes stands."""
    line = _line(text, loc)
    if line is None and (quoted := re.search(r"'([^']+)'", message)) is not None:
        word = re.compile(rf"(?<![\w-]){re.escape(quoted[1])}(?![\w-])")
        line = next((number for number, one in enumerate(text.split("\n"), 1) if word.search(one)), None)
    where = "" if line is None else f":{line}"
    return BadInput(f"{path}{where}: {message}", param="scenario")


def _line(text: str, loc: Sequence[int | str]) -> int | None:
    """The line of the innermost part of `loc` that is in the text, from 1."""
    node, line = YAML(typ="rt", pure=True).load(text), None
    for part in loc:
        try:
            line = (node.lc.item(part) if isinstance(part, int) else node.lc.key(part))[0] + 1
            node = node[part]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return line
