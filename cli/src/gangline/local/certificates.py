"""An authority of the platform's own, and certificates by it, for the listeners of one machine.

Keys are of the curve P-256. Files with keys have mode 0600. A file NAME.pem holds a key in PKCS#8
and its chain, as both Kafka and librdkafka take it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gangline_service.private_file import write_private

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 365
RENEW_DAYS = 60
"""A certificate that ends sooner is replaced at the next start."""
_SKEW = timedelta(minutes=5)


class Authority:
    """The authority whose files are in `folder`: `ca.pem` and `ca-key.pem`, made at first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "ca.pem"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key_path = folder / "ca-key.pem"
        if self.path.exists() and key_path.exists():
            key = load_pem_private_key(key_path.read_bytes(), None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError(f"{key_path} holds no key of an elliptic curve")
            self._key = key
            self._certificate = x509.load_pem_x509_certificate(self.path.read_bytes())
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Gangline's own authority")])
        self._certificate = (
            _builder(name, name, self._key, AUTHORITY_DAYS)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, SHA256())
        )
        write_private(key_path, _pem(self._key))
        write_private(self.path, self._certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str) -> Path:
        """Write a new certificate and key for `name`, valid for 127.0.0.1; returns its file."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = [x509.IPAddress(IPv4Address("127.0.0.1")), x509.DNSName("localhost")]
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(subject, self._certificate.subject, key, CERTIFICATE_DAYS)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(issued_by, critical=False)
            .sign(self._key, SHA256())
        )
        path = self._folder / f"{name}.pem"
        chain = certificate.public_bytes(Encoding.PEM)
        write_private(path, _pem(key) + chain)
        return path

    def keep(self, name: str) -> Path:
        """The file of `name`; a new certificate if it has none of ours that stays valid."""
        path = self._folder / f"{name}.pem"
        return path if path.exists() and self._stays_valid(path) else self.issue(name)

    def _stays_valid(self, path: Path) -> bool:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except InvalidSignature:  # by an authority that is gone
            return False
        return (certificate.not_valid_after_utc - datetime.now(UTC)).days > RENEW_DAYS


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
