"""Addresses of this machine and of the gateway, as flags and the environment give them."""

from __future__ import annotations

import argparse
import errno
import os
import random
import re
import socket
from typing import Final

from paceline.address import check_target, split_address
from paceline.errors import ConfigurationError

DEFAULT_ADDRESS: Final = "127.0.0.1:50051"
"""Where the gateway of ``paceline up`` listens and clients look for it."""

ADDRESS_VARIABLE: Final = "PACELINE_ADDRESS"

_SCHEME: Final = re.compile(r"^(dns|ipv4|ipv6):(//[^/]*/)?")

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
    check_target(address, source)
    return address


def _from_environment() -> tuple[str, str]:
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS, f"the variable {ADDRESS_VARIABLE}"


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
    try:
        with socket.create_connection(host_and_port(address), timeout_seconds):
            return True
    except (OSError, ValueError):
        return False


def host_and_port(address: str) -> tuple[str, int]:
    """Return what a socket connects to; raises ``ValueError`` if that is no host and port."""
    host, _, port = _SCHEME.sub("", address).rpartition(":")
    return host.strip("[]"), int(port)


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
