"""Faults as people write them: a toxic, how often it strikes, and when.

``latency:share=0.05,delay=20s`` strikes one call in twenty; ``hang:after=10s,for=30s`` begins after ten seconds and
lasts thirty; ``http_error:on=2s,off=1s`` flaps; ``latency:delay=3s,ramp=1m`` grows from nobody to everybody in a
minute.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from failsoft.base.errors import BadInput
from failsoft.config.durations import parse_duration
from failsoft.drills.toxics import ERROR_CODES, KINDS, Call, Chunks, Delay, Error, Exchange, Hang, Term, Toxic

__all__ = ["Strike", "ends_after", "made_toxic", "parse_fault", "parse_toxic"]

_WHEN: Final = ("share", "after", "for", "ramp", "on", "off")
_DURATIONS: Final = frozenset({"delay", "up_to", "every", "retry_after", "after", "for", "ramp", "on", "off"})


@dataclass(frozen=True, slots=True)
class Strike(Toxic):
    """A toxic that strikes a ``share`` of the calls, from ``after`` seconds after its lease began, for ``lasting``.

    ``ramp``: seconds in which the share grows from nothing to its full. With ``on`` and ``off`` (seconds) it flaps:
    ``on`` at its share, ``off`` without harm, again and again.
    """

    kind: ClassVar[str] = "strike"
    toxic: Toxic = field(default_factory=Toxic)
    share: float = 1.0
    after: float = 0.0
    lasting: float = math.inf
    ramp: float = 0.0
    on: float = math.inf
    off: float = 0.0

    def share_at(self, elapsed: float) -> float:
        """The share of calls that it strikes `elapsed` seconds after its lease began."""
        since = elapsed - self.after
        if since < 0 or since >= self.lasting:
            return 0.0
        if self.on < math.inf and since % (self.on + self.off) >= self.on:
            return 0.0
        return self.share * min(1.0, since / self.ramp) if self.ramp > 0 else self.share

    def strikes(self, elapsed: float, drawn: float) -> bool:
        """Whether it strikes a call that has `drawn` a number from [0, 1)."""
        return drawn < self.share_at(elapsed)

    def _now(self, term: Term) -> bool:
        from asyncio import get_running_loop

        return self.strikes(get_running_loop().time() - term.began, term.rng.random())

    async def apply(self, call: Call, ended: Term) -> Any:
        """See :class:`Toxic`."""
        return await (self.toxic.apply(call, ended) if self._now(ended) else call())

    def struck(self, exchange: Exchange) -> Toxic:
        """In a proxy: the toxic for this exchange, one without harm when it does not strike."""
        return self.toxic if self._now(exchange.term) else Toxic()

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        return await self.struck(exchange).ask(exchange)

    def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """See :class:`Toxic`."""
        return self.struck(exchange).body(chunks, exchange)

    def __str__(self) -> str:
        own = (("share", 1.0), ("after", 0.0), ("lasting", math.inf), ("ramp", 0.0), ("on", math.inf), ("off", 0.0))
        given = [
            f"{'for' if name == 'lasting' else name}={getattr(self, name):g}"
            for name, usual in own
            if getattr(self, name) != usual
        ]
        kind, _, inner = str(self.toxic).partition(":")
        if isinstance(self.toxic, Delay):
            kind, inner = "latency", f"delay={self.toxic.delay:g}"
        elif isinstance(self.toxic, Error):
            inner = f"code={self.toxic.code}"
        shown = ",".join([*([inner] if inner else []), *given])
        return f"{kind}:{shown}" if shown else kind


def ends_after(toxic: Toxic) -> float:
    """Seconds after which it does no harm any more, and what hangs in it is to go on; ``inf`` if it has no end."""
    return toxic.after + toxic.lasting if isinstance(toxic, Strike) else math.inf


def made_toxic(kind: str, **given: Any) -> Toxic:
    """The toxic called `kind` with its figures, struck as ``share``, ``after``, ``for``, ``ramp``, ``on``, ``off`` say.

    Figures may be text. Raises :class:`~failsoft.base.errors.BadInput` naming what does not fit.
    """
    made = KINDS.get(kind)
    if made is None:
        raise BadInput(f"unknown kind of toxic {kind!r}; known are {', '.join(KINDS)}", param="toxic")
    known = {each.name: each for each in dataclasses.fields(made)}
    figures: dict[str, Any] = {}
    when: dict[str, float] = {}
    for name, value in given.items():
        if name in known and not (name in _WHEN and kind not in ("stall", "cut")):
            figures[name] = _figure(kind, name, value, str(known[name].type))
        elif name in _WHEN:
            when["lasting" if name == "for" else name] = _figure(kind, name, value, "float")
        else:
            raise BadInput(
                f"{kind} has no {name!r}; it takes {', '.join((*known, *(w for w in _WHEN if w not in known)))}",
                param=name,
            )
    try:
        toxic = made(**figures)
    except TypeError:
        lacking = next(each.name for each in known.values() if each.name not in figures)
        raise BadInput(f"{kind} needs {lacking}, for instance {kind}:{lacking}=2s", param=lacking) from None
    if not when:
        return toxic
    if not 0 <= when.get("share", 1.0) <= 1:
        raise BadInput(f"share is between 0 and 1, not {when['share']:g}", param="share")
    if when.get("on", 1.0) <= 0:
        raise BadInput("on must be more than 0", param="on")
    return Strike(toxic, **when)


def _figure(kind: str, name: str, value: Any, wanted: str) -> Any:
    try:
        if wanted == "str":
            text = str(value)
            if kind == "error" and text not in ERROR_CODES:
                raise ValueError(f"known are {', '.join(ERROR_CODES)}")
            return text
        if name in _DURATIONS and wanted == "float":
            return parse_duration(value)
        number = float(value)
        if not math.isfinite(number) or number < 0 or (name in ("rate", "size") and number == 0):
            raise ValueError("should be a finite number above 0")
        return int(number) if wanted == "int" else number
    except (TypeError, ValueError) as error:
        raise BadInput(f"{kind}: {name}: {error}", param=name) from None


def parse_toxic(text: str) -> Toxic:
    """Reads ``KIND[:name=value,…]``: ``latency:share=0.05,delay=20s``, ``stall:after=3``, ``reset``."""
    kind, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    for part in filter(None, (one.strip() for one in rest.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise BadInput(f"{part!r} should be name=value, as in latency:share=0.05,delay=20s", param="toxic")
        given[name.strip()] = value.strip()
    return made_toxic(kind.strip(), **given)


def parse_fault(text: str) -> tuple[str, Toxic]:
    """Reads ``NAME=KIND[:argument]``: ``warehouse=hang``, ``charts=delay:300ms``, ``warehouse=error:reset``.

    Every toxic can be named with its figures, too: ``warehouse=latency:share=0.05,delay=20s``.
    """
    name, equals, rest = text.partition("=")
    kind, colon, argument = rest.partition(":")
    name, kind, argument = name.strip(), kind.strip(), argument.strip()
    if not equals or not name:
        raise _refused("should be NAME=KIND, for instance warehouse=hang")
    if kind == "hang" and not colon:
        return name, Hang()
    if kind == "delay":
        try:
            return name, Delay(parse_duration(argument))
        except ValueError:
            raise _refused("delay needs a duration, for instance charts=delay:300ms") from None
    if kind == "error" and "=" not in argument:
        if not colon or argument in ERROR_CODES:
            return name, Error(argument or "unavailable")
        raise _refused(f"unknown error; known are {', '.join(ERROR_CODES)}")
    if kind in KINDS:
        try:
            return name, parse_toxic(f"{kind}:{argument}")
        except BadInput as error:
            raise _refused(error.message) from None
    raise _refused(f"unknown kind of fault; known are hang, delay:DURATION, error[:CODE] and {', '.join(KINDS)}")


def _refused(reason: str) -> BadInput:
    return BadInput(f"--fault: {reason}", param="fault")
