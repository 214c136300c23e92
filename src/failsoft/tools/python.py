"""Python functions as tools: schema from the type hints, coroutine functions on the loop, plain ones in threads or in
worker processes.

::

    @tool(kind="query", downstream="warehouse", timeout=3, alternates=["replica"], stale_for="1h")
    async def revenue(region: str, quarter: str) -> list[Row]:
        "Revenue per product of one region and quarter."
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from failsoft.base.errors import BadInput, MalformedResult, ToolFailed
from failsoft.base.outcomes import Kind
from failsoft.kernel.guard import Guard
from failsoft.kernel.processes import ProcessPool
from failsoft.kernel.ticket import Ticket
from failsoft.tools.docstrings import first_paragraph, parameter_descriptions
from failsoft.tools.registry import (
    RESULT_LIMIT,
    Alternate,
    Default,
    Isolation,
    ResultTooLarge,
    ToolContext,
    ToolSpec,
    seconds,
)
from failsoft.tools.results import check_result, checked_result

__all__ = ["PythonTool", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

_ARGUMENTS: Final = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=False, frozen=True)


class _Attempts:
    """The contexts of a call's attempts. Who still works for an earlier one, or after the call, works for nobody."""

    __slots__ = ("_contexts", "_over")

    def __init__(self) -> None:
        self._contexts: list[ToolContext] = []
        self._over = False

    def begin(self, context: ToolContext) -> None:
        """An attempt starts, in whatever thread."""
        for earlier in self._contexts:
            earlier.cancelled.set()
        self._contexts.append(context)
        if self._over:  # the thread got going only after its call had been given up
            context.cancelled.set()

    def over(self) -> None:
        """The call has its result, or was given up."""
        self._over = True
        for context in self._contexts:
            context.cancelled.set()


class PythonTool(Generic[P, R]):
    """A function as a tool; calling it directly calls the function, unguarded."""

    __slots__ = ("__wrapped__", "_context_name", "_fields", "_free", "_model", "_validate", "spec")

    def __init__(
        self, function: Callable[P, R], spec: ToolSpec, model: type[BaseModel], context_name: str | None
    ) -> None:
        self.__wrapped__ = function
        self.spec = spec
        self._model = model
        self._validate = model.__pydantic_validator__.validate_python
        self._context_name = context_name
        self._free = model.model_config.get("extra") == "allow"
        # A parameter may have a name that pydantic keeps for itself; its field then has the parameter's name as alias.
        self._fields = {field: info.alias or field for field, info in model.model_fields.items()}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself."""
        return self.__wrapped__(*args, **kwargs)

    # --- arguments ---

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments with the types of the hints; raises :class:`BadInput` naming the argument."""
        try:
            model = self._validate(arguments)
        except ValidationError as error:
            raise self._misfit(error) from None
        except RecursionError:
            raise BadInput("the arguments are nested too deeply", param="arguments") from None
        values = model.__dict__
        bound = {name: values[field] for field, name in self._fields.items()}
        if self._free and model.model_extra:
            bound.update(model.model_extra)
        return bound

    def check(self, arguments: Mapping[str, Any], *, unknown: Collection[str] = ()) -> None:
        """See :class:`~failsoft.tools.registry.Tool`."""
        if not unknown:
            self.bind(arguments)
            return
        try:
            self._model.model_validate(arguments)
        except ValidationError as error:
            errors = [
                e
                for e in error.errors(include_url=False, include_input=False)
                if e["loc"][:1] not in {(u,) for u in unknown}
            ]
            if errors:
                raise self._misfit(error, errors[0]) from None
        except RecursionError:
            raise BadInput("the arguments are nested too deeply", param="arguments") from None

    def _misfit(self, error: ValidationError, first: Any = None) -> BadInput:
        first = first or error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        known = ", ".join(self._fields.values()) or "none"
        if first["type"] == "extra_forbidden":
            text = f"tool {self.spec.name!r} takes no argument {where[:80]!r}; it takes: {known}"
        elif first["type"] == "missing":
            text = f"tool {self.spec.name!r} lacks the argument {where!r}"
        else:
            text = f"argument {where!r} of tool {self.spec.name!r}: {first['msg']}"
        return BadInput(text, param=where or None, details={"tool": self.spec.name, "type": first["type"]})

    # --- calls ---

    async def call(self, guard: Guard, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """See :class:`~failsoft.tools.registry.Tool`."""
        bound = self.bind(arguments)
        spec = self.spec
        key = None if spec.kind == "query" else context.idempotency_key  # what may be repeated needs none in its scope
        attempts = _Attempts()
        try:
            if spec.isolation is not None:
                return await guard.call(
                    partial(self.__wrapped__, **bound),  # type: ignore[arg-type]  # awaited by the runner
                    kind=spec.kind,
                    timeout=spec.timeout,
                    idempotency_key=key,
                    runner=self._in_process,
                )
            if spec.blocking:
                return await guard.call_sync(
                    self._in_thread,
                    bound,
                    context,
                    attempts,
                    kind=spec.kind,
                    timeout=spec.timeout,
                    idempotency_key=key,
                )
            return await guard.call(
                self._on_loop,
                bound,
                context,
                attempts,
                kind=spec.kind,
                timeout=spec.timeout,
                idempotency_key=key,
            )
        finally:
            attempts.over()

    def _begin(self, bound: dict[str, Any], context: ToolContext, attempts: _Attempts) -> dict[str, Any]:
        if self._context_name is None:
            return bound
        attempt = context.attempt()
        attempts.begin(attempt)
        return {**bound, self._context_name: attempt}

    async def _on_loop(self, bound: dict[str, Any], context: ToolContext, attempts: _Attempts) -> Any:
        kwargs = self._begin(bound, context, attempts)
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        try:
            value = await self.__wrapped__(**kwargs)  # type: ignore[call-arg, misc]  # checked by bind()
        except asyncio.CancelledError:
            if task is not None and task.cancelling() > before:
                raise
            raise ToolFailed(f"tool {self.spec.name!r} raised CancelledError by itself") from None
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:
            raise _fatal(self.spec.name, error) from error
        return await checked_result(value, self.spec)

    async def _in_process(self, guard: Guard, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        isolation = self.spec.isolation
        assert isolation is not None
        pool = guard.keep(
            f"processes {isolation} {self.spec.result_limit}", partial(_pool, isolation, self.spec.result_limit)
        )
        try:
            value = await pool.runner(guard, ticket, fn, args)
        except MalformedResult as error:
            if "limit" not in error.details:
                raise
            limit = self.spec.result_limit
            text = f"tool {self.spec.name!r} returned more than {limit} bytes"
            raise ResultTooLarge(text, downstream=guard.name, details={"limit": limit}) from None
        return await checked_result(value, self.spec)

    def _in_thread(self, bound: dict[str, Any], context: ToolContext, attempts: _Attempts) -> Any:
        kwargs = self._begin(bound, context, attempts)
        try:
            value = self.__wrapped__(**kwargs)  # type: ignore[call-arg]  # checked by bind()
        except Exception:
            raise
        except BaseException as error:
            raise _fatal(self.spec.name, error) from error
        return check_result(value, self.spec)

    def __repr__(self) -> str:
        return f"<PythonTool {self.spec.name} kind={self.spec.kind} downstream={self.spec.downstream}>"


def _pool(isolation: Isolation, result_limit: int) -> ProcessPool:
    return ProcessPool(
        isolation.workers,
        memory_limit=isolation.memory_limit,
        allow_env=isolation.allow_env,
        max_result_bytes=2 * result_limit + 65_536,
    )


def _fatal(name: str, error: BaseException) -> ToolFailed:
    return ToolFailed(f"tool {name!r} raised {type(error).__name__}", details={"exception": type(error).__qualname__})


# --- the decorator -------------------------------------------------------------------------------------------------


@overload
def tool(function: Callable[P, R], /) -> PythonTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    kind: Kind = "query",
    downstream: str | None = None,
    timeout: float | str | None = None,
    alternates: Iterable[str | Alternate] = (),
    stale_for: float | str | None = None,
    fallback: Default | None = None,
    approval: bool | Callable[[Mapping[str, Any]], bool] = False,
    idempotent: bool = False,
    result_limit: int = RESULT_LIMIT,
    isolation: Literal["process"] | Isolation | None = None,
    usual: float | str | None = None,
    cost: float | None = None,
) -> Callable[[Callable[P, R]], PythonTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    kind: Kind = "query",
    downstream: str | None = None,
    timeout: float | str | None = None,
    alternates: Iterable[str | Alternate] = (),
    stale_for: float | str | None = None,
    fallback: Default | None = None,
    approval: bool | Callable[[Mapping[str, Any]], bool] = False,
    idempotent: bool = False,
    result_limit: int = RESULT_LIMIT,
    isolation: Literal["process"] | Isolation | None = None,
    usual: float | str | None = None,
    cost: float | None = None,
) -> Any:
    """Makes a function a tool; see :class:`~failsoft.tools.registry.ToolSpec` for what the options mean.

    The name and description default to the function's and the first paragraph of its docstring, the descriptions of
    parameters to what the docstring says of them, the downstream to the name. Durations are in seconds or text like
    ``1h``. Every parameter needs a type hint that pydantic understands; a parameter annotated
    :class:`~failsoft.tools.registry.ToolContext` gets the call's context. A coroutine function runs on the loop, a
    plain one in a thread, or with ``isolation="process"`` in a worker process: for code that may hang, crash or leak.
    Raises ``TypeError`` for a function that cannot be called so.
    """

    def decorate(function: Callable[..., Any]) -> PythonTool[..., Any]:
        own_name = name or function.__name__
        model, context_name = _arguments_of(function, own_name)
        isolated = Isolation() if isolation == "process" else isolation
        if isolated is not None:
            _check_isolated(function, own_name, context_name)
        spec = ToolSpec(
            name=own_name,
            description=description if description is not None else first_paragraph(function),
            kind=kind,
            downstream=downstream or own_name,
            timeout=None if timeout is None else seconds(timeout),
            alternates=tuple(Alternate(a) if isinstance(a, str) else a for a in alternates),
            stale_for=None if stale_for is None else seconds(stale_for),
            fallback=fallback,
            approval=approval,
            idempotent=idempotent,
            parameters=_schema(model),
            result_limit=result_limit,
            blocking=not inspect.iscoroutinefunction(function),
            isolation=isolated,
            usual=None if usual is None else seconds(usual),
            cost=cost,
        )
        return PythonTool(function, spec, model, context_name)

    return decorate if function is None else decorate(function)


def _check_isolated(function: Callable[..., Any], name: str, context_name: str | None) -> None:
    """Raises ``TypeError`` for what cannot run in a worker process: where it is decorated, not where it is called."""
    why = None
    if inspect.iscoroutinefunction(function):
        why = "a worker process runs plain functions"
    elif context_name is not None:
        why = f"parameter {context_name!r}: the context of a call stays in its process"
    elif "<" in function.__qualname__:
        why = "a worker finds functions by their names: define it at the top of a module"
    elif function.__module__ == "__main__":
        why = "a worker does not have the main program: define it in a module that can be imported"
    if why is not None:
        raise TypeError(f"tool {name!r} cannot be isolated: {why}")


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True)
    schema.pop("title", None)
    for part in schema.get("properties", {}).values():
        part.pop("title", None)
    return schema


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], str | None]:
    """A model of the function's parameters, and the name of the one that takes the context."""
    from pydantic import Field

    hints = get_type_hints(function, include_extras=True)
    described = parameter_descriptions(function)
    fields: dict[str, Any] = {}
    context_name: str | None = None
    config = _ARGUMENTS
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            config = ConfigDict(**{**_ARGUMENTS, "extra": "allow"})
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} cannot be given by name")
        hint = hints.get(parameter.name)
        if hint is None:
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} needs a type hint")
        if hint is ToolContext:
            context_name = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # Fields have names of our own so that a parameter may be called `schema` or `_x`; the alias is what callers
        # write.
        more = _described(hint, described.get(parameter.name))
        fields[f"p{len(fields)}"] = (hint, Field(default, alias=parameter.name, **more))
    return create_model(name, __config__=config, **fields), context_name


def _described(hint: Any, description: str | None) -> dict[str, Any]:
    """The docstring's description, unless the hint brings its own (``Annotated[int, Field(description=…)]``)."""
    own = any(getattr(one, "description", None) for one in getattr(hint, "__metadata__", ()))
    return {"description": description} if description and not own else {}
