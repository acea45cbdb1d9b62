"""
Certificates from files: a server's, taken up anew when they change, and a dialling client's.

It decides no policy: which files there are is in the settings.
"""

from __future__ import annotations

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
    private_key: Path
    client_ca: Path | None = None
    """Authority of client certificates; when given, clients must show one."""


@dataclass(frozen=True, slots=True)
class DialTls:
    """PEM files of a process that dials servers."""

    ca: Path
    certificate: Path | None = None
    """What to show to servers that ask for it."""
    private_key: Path | None = None


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
    return grpc.ssl_channel_credentials(
        root_certificates=_pem(tls.ca),
        private_key=_private_key(tls.private_key) if tls.private_key else None,
        certificate_chain=_pem(tls.certificate) if tls.certificate else None,
    )


class _ServerFiles:
    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        paths = (tls.certificate, tls.private_key, tls.client_ca)
        self._watch = FileWatch(path for path in paths if path is not None)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Return the files' content; raises ``ConfigurationError``."""
        tls = self._tls
        return grpc.ssl_server_certificate_configuration(
            [(_private_key(tls.private_key), _pem(tls.certificate))],
            root_certificates=_pem(tls.client_ca) if tls.client_ca else None,
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the content if a file changed; gRPC asks at every new connection."""
        if not self._watch.has_changed():
            return None
        try:
            configuration = self.read()
        except ConfigurationError as error:
            log.error("certificate_refused", detail=error.message)
            return None
        log.info("certificate_changed", certificate=str(self._tls.certificate))
        return configuration


def _private_key(path: Path) -> bytes:
    key = _pem(path)
    if b"ENCRYPTED" in key:
        raise ConfigurationError(f"{path} is encrypted; give the key without a passphrase")
    return key


def _pem(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if b"-----BEGIN" not in content:
        raise ConfigurationError(f"{path} is not a PEM file")
    return content
