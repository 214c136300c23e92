"""The environment given to child processes: the parent's, less what looks like a secret.

By name: a word such as ``KEY``, ``TOKEN``, ``SECRET``, ``PASSWORD``, ``CREDENTIALS``, ``AUTH``, ``COOKIE``, ``DSN``.
By value: an address with a password in it, a private key, the prefixes of well-known tokens. A tool that needs one
of them says so: ``allow=("WAREHOUSE_PASSWORD",)``.

This keeps secrets from leaking through logs, dumps and grandchildren. It is no wall: a process of the same user can
read its parent's memory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

__all__ = ["looks_secret", "without_secrets"]

_NAME: Final = re.compile(
    r"""(?xi)
    password | passwd | passphrase | passfile | secret | credential | api_?key | access_?key | private_?key
    | token (?! iz) | jwt | bearer | cookie
    | (?: ^ | _ ) (?: keys? | pass | pwd | x?auth | authorization | x?authority | dsn | pat | salt | creds )
      (?: _ | \d* $ )
    """
)
_NOT: Final = frozenset({"PWD", "OLDPWD"})  # directories
_VALUE: Final = re.compile(
    r"""(?x)
    [a-z][a-z0-9+.-]* :// [^/\s@]* : [^/\s@]+ @       # scheme://user:password@host
    | -----BEGIN [ A-Z]* PRIVATE\ KEY
    | ^ (?: sk-[A-Za-z0-9] | gh[opsur]_ | github_pat_ | glpat- | xox[abprs]- | A[KS]IA[0-9A-Z]{12} | AIza )
    | ^ eyJ [\w-]+ \. eyJ                               # a JSON web token
    """
)


def looks_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _NAME.search(name) is not None and name not in _NOT


def without_secrets(environment: Mapping[str, str], allow: Collection[str] = ()) -> dict[str, str]:
    """`environment` without variables that look like secrets, except those named in `allow`."""
    return {
        name: value
        for name, value in environment.items()
        if name in allow or not (looks_secret(name) or _VALUE.search(value))
    }
