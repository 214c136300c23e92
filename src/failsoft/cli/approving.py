"""What ``failsoft approvals …`` does: over a running server's HTTP API, or directly in a store's file.

In the file, too, an approval is resolved by a compare-and-set: whoever drives the run finds it within seconds.
"""

from __future__ import annotations

import asyncio
import datetime
import getpass
import json
import sys
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from failsoft.base.jsontext import json_text
from failsoft.cli.keeping import file_settings, opened
from failsoft.cli.main import OK
from failsoft.cli.remote import asked
from failsoft.cli.streams import visible
from failsoft.config import Settings
from failsoft.stores.approvals import ApprovalStatus

__all__ = ["list_all", "resolve"]

_MOST: Final = 1_000
"""Approvals that are listed at most."""


def list_all(url: str | None, file: Path | None, config: Path | None, *, every: bool, as_json: bool) -> int:
    """Lists approvals, newest first; gives the exit code."""
    if url is not None:
        query = f"?limit=100{'' if every else '&status=pending'}"
        found = asked(f"/v1/approvals{query}", field="approvals", url=url)["approvals"]
    else:
        found = asyncio.run(_listed(file_settings(file, config), every=every))
    if as_json:
        sys.stdout.write(json_text({"approvals": found}) + "\n")
        return OK
    for one in found:
        sys.stdout.write(_told(one) + "\n")
    if not found:
        sys.stdout.write("nothing waits\n")
    return OK


async def _listed(settings: Settings, *, every: bool) -> list[dict[str, Any]]:
    store = opened(settings)
    status: ApprovalStatus | None = None if every else "pending"
    try:
        page = (await store.list_approvals(status=status, limit=_MOST)).as_of(time.time(), status)
    finally:
        await store.aclose()
    return [one.to_dict() for one in page.approvals]


def resolve(
    approval: str,
    status: Literal["approved", "rejected"],
    url: str | None,
    file: Path | None,
    config: Path | None,
    *,
    by: str | None,
    note: str,
    as_json: bool,
) -> int:
    """Resolves one; gives the exit code."""
    who = by if by is not None else _user()
    if url is not None:
        path = f"/v1/approvals/{urllib.parse.quote(approval, safe='')}/resolve"
        done = asked(path, field="id", url=url, body={"status": status, "by": who, "note": note})
    else:
        done = asyncio.run(_resolved(approval, status, file_settings(file, config), by=who, note=note))
    sys.stdout.write((json_text(done) if as_json else _told(done)) + "\n")
    return OK


async def _resolved(
    approval: str,
    status: Literal["approved", "rejected"],
    settings: Settings,
    *,
    by: str | None,
    note: str,
) -> dict[str, Any]:
    store = opened(settings)
    try:
        return (await store.resolve_approval(approval, status, at=time.time(), by=by, note=note)).to_dict()
    finally:
        await store.aclose()


def _told(one: Mapping[str, Any]) -> str:
    until = datetime.datetime.fromtimestamp(one["expires"], datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    arguments = json.dumps(one["arguments"], ensure_ascii=False)
    who = f" by {one['by']}" if one.get("by") else ""
    line = f"{one['id']}  {one['status']}{who}  {one['tool']}({arguments[:200]})  run {one['run_id']}  until {until}"
    return visible(line)


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None
