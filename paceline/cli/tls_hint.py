"""Why TLS may keep a server that takes connections from answering, in the flags that mend it."""

from __future__ import annotations

import argparse
import socket
import ssl
from typing import Final

from paceline.cli.access import Access
from paceline.cli.address import host_and_port
from paceline.tls import DialTls

TIMEOUT_SECONDS: Final = 2.0


def tls_hint(address: str, access: Access) -> str:
    """Return what does not fit and its remedy; empty: TLS is not the cause, or nobody listens."""
    found = _speaks_tls(address)
    if found is None:
        return ""
    if access.tls is None:
        told = "it speaks TLS; name its authority with --ca (and for mutual TLS --certificate)"
        return told if found else ""
    if not found:
        return "it speaks no TLS; leave --ca out"
    if access.tls.certificate is None:
        return (
            "it speaks TLS, but the handshake failed; give a client certificate (--certificate and "
            "--private-key) if it wants one, and see that its own is of --ca and for this host"
        )
    return (
        "it speaks TLS, but the handshake failed; see that its certificate is of --ca and for this "
        "host, and that it trusts the authority of --certificate"
    )


def access_shown(options: argparse.Namespace) -> Access:
    """Return what a command that has failed had dialed with, by its flags."""
    ca = getattr(options, "ca", None)
    return Access(tls=None if ca is None else DialTls(ca, getattr(options, "certificate", None)))


def _speaks_tls(address: str) -> bool | None:
    """Return whether a server shows a certificate, whoever's; None if nothing listens there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Nothing is sent: only whether the handshake begins matters.
    context.verify_mode = ssl.CERT_NONE
    try:
        place = host_and_port(address)
        with (
            socket.create_connection(place, TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=place[0]),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except ConnectionResetError:
        return False
    except (OSError, ValueError):
        return None
