"""Telling whoever is on call, by signed webhooks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from failsoft.base.jsontext import json_text
from failsoft.base.transport import Transport
from failsoft.config import Settings
from failsoft.kernel.guard import Kernel

if TYPE_CHECKING:
    from pydantic import SecretStr

    from failsoft.models.webhook import Webhook

__all__ = ["pager"]


def pager(
    url: str, secret: SecretStr | None, event: str, settings: Settings, kernel: Kernel, transport: Transport
) -> tuple[Webhook, Callable[[dict[str, Any]], None]]:
    """A webhook for messages of one kind, to be closed, and what sends one: redacted, off its caller's path."""
    from failsoft.base.redaction import Redactor
    from failsoft.models.webhook import Webhook, WebhookPolicy

    key = None if secret is None else secret.get_secret_value()
    webhook = Webhook(WebhookPolicy(url, key, events=frozenset({event}), retries=3), kernel, transport)
    redactor = Redactor(patterns=settings.redaction.patterns, names=settings.redaction.names)
    return webhook, lambda data: webhook.say(event, json.loads(redactor.json(json_text(data))))
