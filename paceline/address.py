"""Addresses of servers, ``host:port`` and gRPC's other forms, checked before any use."""

from __future__ import annotations

import re
from typing import Final

from paceline.errors import ConfigurationError

MAX_PORT: Final = 65535

EXAMPLE: Final = "127.0.0.1:50051"

_RESOLVED: Final = re.compile(
    r"((unix|unix-abstract|vsock|xds):"
    r"|dns:(//[!-.0-~]*/)?(?=[^/]+:[0-9]{1,5}$)"
    r"|ipv4:[0-9.]+:|ipv6:\[[0-9A-Fa-f:.]+\]:)[!-~]+"
)
"""Targets of gRPC's other forms, which it reads itself. For a name without a port it takes 443."""

_HOST_PORT: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?\]):[0-9]{1,5}")


def split_address(address: str, source: str) -> tuple[str, int]:
    """Return host and port; raises ``ConfigurationError`` naming the source, such as a flag."""
    host, _, port = address.rpartition(":")
    if not _HOST_PORT.fullmatch(address) or int(port) > MAX_PORT:
        brackets = "; an IPv6 address is [in brackets]" if host.count(":") > 1 else ""
        raise ConfigurationError(
            f"{source} is host:port, such as {EXAMPLE}, not {address!r}{brackets}"
        )
    return host.strip("[]"), int(port)


def check_target(target: object, source: str) -> None:
    """Raise ``ConfigurationError`` naming the source of what no gRPC client can dial."""
    if not isinstance(target, str):
        raise ConfigurationError(f"{source} is host:port, such as {EXAMPLE}, not {target!r}")
    if _RESOLVED.fullmatch(target):
        return
    if "://" in target and not target.startswith("dns:"):
        raise ConfigurationError(
            f"{source} is host:port without a scheme, such as {EXAMPLE}, not {target!r}"
        )
    if target.startswith("dns:"):
        raise ConfigurationError(f"{source} is dns:///host:port, port included, not {target!r}")
    _, port = split_address(target, source)
    if not port:
        raise ConfigurationError(f"{source} {target!r}: port 0 is none to connect to")


def is_host_port(address: str, *, least_port: int = 1) -> bool:
    """Return whether an address is ``host:port`` or ``[v6]:port`` with a port from the least on."""
    port = address.rpartition(":")[2]
    return bool(_HOST_PORT.fullmatch(address)) and least_port <= int(port) <= MAX_PORT
