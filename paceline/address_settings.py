"""Types of settings that hold an address. The checks themselves need no settings: ``address``."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator

from paceline.address import EXAMPLE, check_target, is_host_port
from paceline.errors import ConfigurationError

_DIALED: Final = "must be host:port or [v6]:port, such as 127.0.0.1:50061"


def _listening(address: str) -> str:
    if not (address.startswith("unix:") or is_host_port(address, least_port=0)):
        raise ValueError(f"must be host:port, such as {EXAMPLE}")
    return address


def _listening_or_none(address: str) -> str:
    if address and not is_host_port(address, least_port=0):
        raise ValueError("must be host:port, such as 127.0.0.1:9090, or empty")
    return address


def _dialed(address: str) -> str:
    if not is_host_port(address):
        raise ValueError(_DIALED)
    return address


def _dialed_target(address: str) -> str:
    try:
        check_target(address, "the address")
    except ConfigurationError:
        raise ValueError(_DIALED) from None
    return address


def _dialed_or_looked_up(address: str) -> str:
    if not is_host_port(address.removeprefix("dns:")) or address.startswith("dns:["):
        raise ValueError("must be host:port, [v6]:port or dns:name:port")
    return address


ListenAddress: TypeAlias = Annotated[str, AfterValidator(_listening)]
"""Setting: where a server listens; port 0 takes a free one."""

AdminAddress: TypeAlias = Annotated[str, AfterValidator(_listening_or_none)]
"""Setting: where a server listens for HTTP; empty: nowhere."""

DialedAddress: TypeAlias = Annotated[str, AfterValidator(_dialed)]
"""Setting: one server to dial."""

DialedTarget: TypeAlias = Annotated[str, AfterValidator(_dialed_target)]
"""Setting: one server to dial, or several in one of gRPC's forms, such as ``dns:///name:port``."""

DialedName: TypeAlias = Annotated[str, AfterValidator(_dialed_or_looked_up)]
"""Setting: one server to dial, or after ``dns:`` all behind a name."""
