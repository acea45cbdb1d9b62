"""Certificates for tests: an authority, what it signs, and the files of both."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from paceline.tls import DialTls, ServerTls

_LIFE = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """The files of one certificate."""

    certificate: Path
    private_key: Path

    def replace_by(self, other: Identity) -> None:
        """Put another certificate in place of this one, as a Secret's update does."""
        for mine, theirs in (
            (self.private_key, other.private_key),
            (self.certificate, other.certificate),
        ):
            beside = mine.with_suffix(".new")
            beside.write_bytes(theirs.read_bytes())
            beside.replace(mine)


class Authority:
    """Signs certificates for the loopback."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        signed = self._signed(self._name, self._key, is_authority=True)
        self.ca = folder / f"{name}.crt"
        self.ca.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def identity(self, name: str, *, password: bytes | None = None) -> Identity:
        """Return a new certificate for 127.0.0.1, localhost and its own name."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, private_key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        signed = self._signed(_name(name), key, is_authority=False)
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private_key.write_bytes(_pem(key, password))
        return Identity(certificate, private_key)

    def server(self, identity: Identity, *, mutual: bool = False) -> ServerTls:
        """Return what a server shows, and with ``mutual`` demands."""
        return ServerTls(identity.certificate, identity.private_key, self.ca if mutual else None)

    def dial(self, identity: Identity | None = None, server_name: str = "") -> DialTls:
        """Return what a client trusts and shows."""
        if identity is None:
            return DialTls(self.ca, server_name=server_name)
        return DialTls(self.ca, identity.certificate, identity.private_key, server_name)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        common_name = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        names = [
            x509.DNSName("localhost"),
            x509.DNSName(common_name),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFE)
            .not_valid_after(now + _LIFE)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key: ec.EllipticCurvePrivateKey, password: bytes | None) -> bytes:
    cipher: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        cipher = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher)
