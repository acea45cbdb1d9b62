"""
Certificates from files: a server's, taken up anew when they change, and a dialing client's.

It decides no policy: which files there are is in the settings.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from paceline.errors import ConfigurationError
from paceline.file_watch import FileWatch

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of a server."""

    certificate: Path
    """Chain, the server's own first."""
    private_key: Path
    client_ca: Path | None = None
    """Authority of client certificates; when given, clients must show one."""


@dataclass(frozen=True, slots=True)
class DialTls:
    """PEM files of a process that dials servers."""

    ca: Path | str | None = None
    """None: the authorities that gRPC itself brings along."""
    certificate: Path | str | None = None
    """What to show to servers that ask for it."""
    private_key: Path | str | None = None
    server_name: str = ""
    """Name that the server's certificate must show; empty: the host of its address."""


class _Encrypted(Exception):
    """The key wants a password."""


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """
    Return credentials that follow their files; raises ``ConfigurationError``.

    Each new connection sees the files as they are; while they are unusable, the last good ones.
    """
    files = _ServerFiles(tls)
    return grpc.dynamic_ssl_server_credentials(
        files.read(),
        files.changed,  # type: ignore[arg-type]  # None: unchanged, which the stub does not know
        require_client_authentication=tls.client_ca is not None,
    )


def channel_credentials(tls: DialTls) -> grpc.ChannelCredentials:
    """Return credentials from the files as they are now; raises ``ConfigurationError``."""
    if (tls.certificate is None) != (tls.private_key is None):
        raise ConfigurationError("a client certificate needs its private key, and the reverse")
    certificate, private_key = None, None
    if tls.certificate is not None and tls.private_key is not None:
        certificate, private_key = _identity(Path(tls.certificate), Path(tls.private_key))
    ca = None if tls.ca is None else _authority(Path(tls.ca))
    return grpc.ssl_channel_credentials(ca, private_key, certificate)


class _ServerFiles:
    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        paths = (tls.certificate, tls.private_key, tls.client_ca)
        self._watch = FileWatch(path for path in paths if path is not None)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Return the files' content; raises ``ConfigurationError``."""
        tls = self._tls
        certificate, private_key = _identity(tls.certificate, tls.private_key)
        ca = None if tls.client_ca is None else _authority(tls.client_ca)
        return grpc.ssl_server_certificate_configuration([(private_key, certificate)], ca)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the content if a file changed; gRPC asks at every new connection."""
        if not self._watch.has_changed():
            return None
        try:
            configuration = self.read()
        except ConfigurationError as error:
            log.warning("certificate_refused", detail=error.message)
            return None
        log.info("certificate_changed", certificate=str(self._tls.certificate))
        return configuration


def _identity(certificate: Path, private_key: Path) -> tuple[bytes, bytes]:
    chain, key = _read(certificate, "certificate"), _read(private_key, "private key")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, private_key, password=_refuse_password)
    except _Encrypted:
        raise ConfigurationError(
            f"private key {private_key} is encrypted; store it decrypted (openssl pkey -in FILE), "
            "readable by this service alone"
        ) from None
    except (ssl.SSLError, OSError, ValueError) as error:
        cause = getattr(error, "reason", None) or "not PEM"
        raise ConfigurationError(
            f"certificate {certificate} and private key {private_key} cannot be used ({cause}); "
            "give a PEM chain and the key that belongs to it"
        ) from None
    return chain, key


def _authority(path: Path) -> bytes:
    content = _read(path, "certificate authority")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError, ValueError):
        raise ConfigurationError(
            f"certificate authority {path} holds no PEM certificate; give one"
        ) from None
    return content


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{what} {path}: {error.strerror}; correct the path") from None


def _refuse_password() -> str:
    raise _Encrypted
