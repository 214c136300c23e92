"""Secrets taken out of texts, JSON and log lines, before anything is stored or logged.

Two things tell a secret: the name it stands under (a header, a field), and its own shape (a key of a known kind, a
bearer token, a password in a URL). Both lists can be extended. Whatever is replaced stays valid JSON.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["NAMES", "PATTERNS", "REDACTED", "RedactingFilter", "Redactor"]

REDACTED: Final = "[redacted]"

NAMES: Final = (
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "api-key",
    "apikey",
    "x-auth-token",
    "access-token",
    "refresh-token",
    "id-token",
    "client-secret",
    "secret",
    "secret-key",
    "private-key",
    "password",
    "passwd",
)
"""Names of headers and fields whose values are secrets; ``-``, ``_`` and nothing between words are the same."""

PATTERNS: Final = (
    r"\bsk-[A-Za-z0-9_\-]{16,}",
    r"\b(?:ghp|gho|ghu|ghs|ghr|github_pat|glpat|xox[abprs])[_-][A-Za-z0-9_\-]{16,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\bwhsec_[A-Za-z0-9+/=_\-]{16,}",
    r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*",
    r"\b(?:bearer|Bearer|BEARER)\s+[A-Za-z0-9._~+/=\-]{8,}",
    r"(?<=://)[^/\s:@\"\\]{1,200}:[^/\s@\"\\]{1,200}(?=@)",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"]*?-----END [A-Z ]*PRIVATE KEY-----",
)
"""Shapes of secrets, as regular expressions."""


_HINTS: Final = ("auth", "cookie", "api", "token", "secret", "private", "passw")
"""What every one of the names holds one of."""
_MARKS: Final = (
    *("sk-", "ghp", "gho", "ghu", "ghs", "ghr", "github_pat", "glpat", "xox", "AKIA", "whsec_", "eyJ"),
    *("bearer", "Bearer", "BEARER", "://", "PRIVATE KEY"),
)
"""What whatever looks like a secret holds one of."""


class Redactor:
    """Takes secrets out. Made once; used from any thread."""

    __slots__ = ("_field", "_hints", "_line", "_marks", "_shape")

    def __init__(self, *, patterns: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        """`patterns` and `names` come in addition to those that are known; raises ``re.error`` for a wrong one."""
        known = [r"[-_]?".join(map(re.escape, re.split(r"[-_\s]+", name))) for name in (*NAMES, *names) if name]
        # Most texts hold no secret, and to look for a few letters is a hundred times quicker than for all patterns.
        self._hints = (*_HINTS, *(re.split(r"[-_\s]+", name)[0].lower() for name in names if name))
        self._marks = None if any(patterns := tuple(patterns)) else _MARKS
        alternatives = "|".join(sorted(known, key=len, reverse=True))
        self._shape = re.compile("|".join(f"(?:{one})" for one in (*PATTERNS, *patterns)))
        self._field = re.compile(rf'("(?i:{alternatives})"\s*:\s*)"(?:[^"\\]|\\.)*"')
        self._line = re.compile(
            rf"((?<![\w])['\"]?(?i:{alternatives})['\"]?\s*[:=]\s*)(?:(['\"])[^'\"\n]*\2|[^\s,;&'\"]+(?:\s+[A-Za-z0-9._~+/=\-]{{8,}})?)"
        )

    def json(self, text: str) -> str:
        """JSON text without secrets; it stays JSON, whatever patterns were added."""
        if self._hinted(text):
            text = self._field.sub(rf'\1"{REDACTED}"', text)
        return self._shape.sub(_within_a_string, text) if self._marked(text) else text

    def jsons(self, texts: Sequence[str]) -> Sequence[str]:
        """The same for each of many; to look once through all of them is much quicker when none holds anything."""
        whole = "\n".join(texts)
        return [self.json(text) for text in texts] if self._hinted(whole) or self._marked(whole) else texts

    def text(self, text: str) -> str:
        """Any text, a log line for example, without secrets."""
        if self._hinted(text):
            text = self._line.sub(rf"\1{REDACTED}", text)
        return self._shape.sub(REDACTED, text) if self._marked(text) else text

    def _hinted(self, text: str) -> bool:
        lower = text.lower()
        for hint in self._hints:  # noqa: SIM110 - any() takes several times as long, for every text that is written
            if hint in lower:
                return True
        return False

    def _marked(self, text: str) -> bool:
        if self._marks is None:
            return True
        for mark in self._marks:  # noqa: SIM110 - as above
            if mark in text:
                return True
        return False

    def __repr__(self) -> str:
        return "<Redactor>"


def _within_a_string(match: re.Match[str]) -> str:
    """What replaces a match in JSON: at most up to the end of the string, or the escape, that it stands in."""
    found = match.group()
    end = next((i for i, character in enumerate(found) if character in '"\\'), len(found))
    return REDACTED + found[end:] if end else found


class RedactingFilter(logging.Filter):
    """Takes secrets out of every log record that passes."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True; the record's text is made here, once, without its secrets."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - the handler tells of a wrong format itself
            return True
        clean = self._redactor.text(text)
        if clean != text:
            record.msg, record.args = clean, None
        return True
