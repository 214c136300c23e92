"""Which network addresses a request may be sent to: the public ones, and what was allowed besides.

A tool that fetches what somebody else names must not become a way into the network that it runs in (server-side
request forgery). So the address itself is judged, at the moment of connecting, and not the name, which may mean
something else a moment later.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

__all__ = ["AddressRule"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
"""Link-local addresses, and those where clouds tell a machine its secrets; ``private`` does not allow them."""

_EMBEDDED: Final = tuple(
    (ipaddress.IPv6Network(text), shift)
    for text, shift in (
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated (SIIT)
        ("::/96", 0),  # IPv4-compatible
        ("64:ff9b::/96", 0),  # NAT64
        ("2002::/16", 80),  # 6to4
    )
)
"""IPv6 addresses that stand for an IPv4 one, and by how many bits that is shifted; RFC 4291, 2765, 6052, 3056."""

_NEVER: Final = tuple(ipaddress.ip_network(text) for text in ("64:ff9b:1::/48", "2001::/32", "fec0::/10"))
"""IPv6 networks that lead to local or tunnelled addresses although Python calls some of them global."""


@dataclass(frozen=True, slots=True)
class AddressRule:
    """Public addresses, and those in ``allow``: networks (``10.1.0.0/16``), single addresses, or the words ``private``
    (RFC 1918, RFC 4193, loopback not included) and ``loopback``. Link-local addresses and those of cloud metadata are
    allowed only when a network in ``allow`` names them. Raises ``ValueError`` for what is none of these.
    """

    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _parsed(self.allow)

    def refusal(self, address: str) -> str | None:
        """Why `address` (a literal, perhaps with a scope) must not be connected to; None when it may be."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return "not an address"
        networks, words = _parsed(self.allow)
        meant = _meant(found)
        if any(one.version == network.version and one in network for one in {found, meant} for network in networks):
            return None
        if any(meant.version == network.version and meant in network for network in _METADATA):
            return "a link-local or metadata address"
        if meant.is_unspecified:
            return "the unspecified address"
        if meant.is_loopback:
            return None if "loopback" in words else "a loopback address"
        if meant.is_multicast or meant.is_reserved:
            return "a multicast or reserved address"
        if any(meant.version == network.version and meant in network for network in _NEVER):
            return "a tunnelled or site-local address"
        if not meant.is_global:
            return None if "private" in words and meant.is_private else "a private address"
        return None


def _meant(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 one stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address) and int(address) > 1:
        for network, shift in _EMBEDDED:
            if address in network:
                return ipaddress.IPv4Address((int(address) >> shift) & 0xFFFFFFFF)
    return address


@lru_cache(maxsize=256)
def _parsed(allow: tuple[str, ...]) -> tuple[tuple[_Network, ...], frozenset[str]]:
    words = frozenset(one for one in allow if one in ("private", "loopback"))
    networks = []
    for one in allow:
        if one not in words:
            try:
                networks.append(ipaddress.ip_network(one, strict=False))
            except ValueError:
                raise ValueError(f"{one!r} is no network: write 10.1.0.0/16, an address, private or loopback") from None
    return tuple(networks), words
