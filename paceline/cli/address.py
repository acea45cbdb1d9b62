"""Addresses of the form ``host:port``."""

from __future__ import annotations

import argparse
import errno
import os
import random
import re
import socket
from typing import Final

from paceline.errors import ConfigurationError

DEFAULT_ADDRESS: Final = "127.0.0.1:50051"
"""Where the gateway of ``paceline up`` listens and clients look for it."""

ADDRESS_VARIABLE: Final = "PACELINE_ADDRESS"

MAX_PORT: Final = 65535

_RESOLVED: Final = re.compile(
    r"((dns|unix|unix-abstract|vsock|xds):|ipv4:[0-9.]+:|ipv6:\[[0-9A-Fa-f:.]+\]:)[!-~]+"
)
"""Targets of gRPC's other forms, which it reads itself."""

_SCHEME: Final = re.compile(r"^(dns|ipv4|ipv6):(//[^/]*/)?")

_HOST_PORT: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?\]):[0-9]{1,5}")

_FREE_PORTS: Final = range(20_000, 32_000)
"""
Below the range from which systems take the near end of outgoing connections. A port from that
range could be taken between choosing it and listening, even by a connection to itself.
"""


def add_address_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that names the gateway; ``gateway_address`` reads it."""
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help=f"the gateway (default: ${ADDRESS_VARIABLE}, else {DEFAULT_ADDRESS})",
    )


def gateway_address(given: str | None) -> str:
    """
    Return where the gateway is: as given, else as the environment says, else the usual place.

    Raises ``ConfigurationError`` naming the flag or the variable at fault.
    """
    address, source = (given, "--address") if given is not None else _from_environment()
    if "://" in address and not _RESOLVED.fullmatch(address):
        raise ConfigurationError(
            f"{source} is host:port without a scheme, such as {DEFAULT_ADDRESS}, not {address!r}"
        )
    if not _RESOLVED.fullmatch(address):
        _, port = split_address(address, source)
        if not port:
            raise ConfigurationError(f"{source} {address!r}: port 0 is none to connect to")
    return address


def _from_environment() -> tuple[str, str]:
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS, f"the variable {ADDRESS_VARIABLE}"


def split_address(address: str, option: str) -> tuple[str, int]:
    """Return host and port; raises ``ConfigurationError`` naming the option."""
    host, _, port = address.rpartition(":")
    if not _HOST_PORT.fullmatch(address) or int(port) > MAX_PORT:
        brackets = "; an IPv6 address is [in brackets]" if host.count(":") > 1 else ""
        raise ConfigurationError(
            f"{option} is host:port, such as 127.0.0.1:50051, not {address!r}{brackets}"
        )
    return host.strip("[]"), int(port)


def bindable_address(address: str, option: str) -> str:
    """Return the address, port 0 replaced by a free one; raises if it cannot be bound."""
    host, port = split_address(address, option)
    if port:
        _bind(host, port, option)
        return address
    shown_host = address.rpartition(":")[0]
    for candidate in random.sample(_FREE_PORTS, 50):
        try:
            _bind(host, candidate, option)
        except ConfigurationError:
            continue
        return f"{shown_host}:{candidate}"
    raise ConfigurationError(f"cannot listen on {address}: no port is free; name one with {option}")


def answers(address: str, timeout_seconds: float = 1.0) -> bool:
    """Return whether anything accepts connections at an address."""
    host, _, port = _SCHEME.sub("", address).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_seconds):
            return True
    except (OSError, ValueError):
        return False


def _bind(host: str, port: int, option: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            cause = "the port is in use" if in_use else error.strerror or str(error)
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {cause}; choose another address with {option}"
            ) from None
