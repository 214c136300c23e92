"""``failsoft drill proxy`` and ``failsoft drill hold``."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from failsoft.base.errors import BadInput
from failsoft.cli.main import INTERRUPTED, OK
from failsoft.config import parse_duration
from failsoft.drills.faults import parse_toxic
from failsoft.drills.proxy import DrillProxy, parse_target
from failsoft.drills.proxy_control import control, held

__all__ = ["Proxying", "run_hold", "run_proxy"]


@dataclass(frozen=True, slots=True)
class Proxying:
    """What was asked for on the command line."""

    listen: str
    to: str
    toxics: Sequence[str]
    control: str
    tcp: bool
    expose: bool
    seed: int | None
    as_json: bool


def run_proxy(asked: Proxying) -> int:
    """Runs the proxy until a signal; gives the exit code."""
    listen = _address(asked.listen, "listen", expose=asked.expose)
    managed = _address(asked.control, "control", expose=asked.expose)
    target = parse_target(asked.to)
    toxics = [parse_toxic(text) for text in asked.toxics]

    async def serve() -> int:
        async with DrillProxy(target, host=listen[0], port=listen[1], tcp=asked.tcp, seed=asked.seed) as proxy:
            for toxic in toxics:
                proxy.faults.add(toxic)
            async with control(proxy, host=managed[0], port=managed[1]) as url:
                host, port = proxy.address
                if asked.as_json:
                    sys.stdout.write(json.dumps({"address": f"{host}:{port}", "control": url}) + "\n")
                else:
                    faults = ", ".join(map(str, toxics)) or "none yet"
                    sys.stdout.write(f"listening on {host}:{port}, control on {url}, faults: {faults}\n")
                sys.stdout.flush()
                return await _until_signal(None)

    return asyncio.run(serve())


def run_hold(url: str, toxics: Sequence[str], lasting: str | None, lease: str) -> int:
    """Holds the faults; gives the exit code."""
    seconds = None if lasting is None else _seconds(lasting, "for")
    for text in toxics:
        parse_toxic(text)

    async def hold() -> int:
        async with held(url, list(toxics), lease=_seconds(lease, "lease")) as ids:
            sys.stdout.write(f"holding {', '.join(ids)}\n")
            sys.stdout.flush()
            return await _until_signal(seconds)

    return asyncio.run(hold())


def _seconds(text: str, flag: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise BadInput(f"--{flag}: {error}", param=flag) from None
    if not seconds > 0:
        raise BadInput(f"--{flag}: should be more than 0", param=flag)
    return seconds


def _address(text: str, flag: str, *, expose: bool) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not colon or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"--{flag}: {text!r} should be HOST:PORT", param=flag)
    if not expose and not _loopback(host):
        raise BadInput(
            f"--{flag}: {host} can be reached from other machines; add --expose if that is meant", param=flag
        )
    return host, int(port)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _until_signal(seconds: float | None) -> int:
    """Waits for SIGTERM (0), Ctrl-C (130), or `seconds` (0)."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopped.done():
            stopped.set_result(code)

    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGTERM, stop, OK)
        loop.add_signal_handler(signal.SIGINT, stop, INTERRUPTED)
    try:
        return await asyncio.wait_for(stopped, seconds)
    except TimeoutError:
        return OK
