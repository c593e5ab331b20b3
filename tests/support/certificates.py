"""A certificate for the names of a store that the tests stand in for, and how a JVM comes to trust it."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
PASSWORD: Final = "of-the-tests"


@dataclass(frozen=True, slots=True)
class Certificate:
    """`context` serves it; `trusted` is a store for a JVM, PKCS #12, that knows it."""

    context: ssl.SSLContext
    trusted: bytes


@cache
def made_for(*hosts: str) -> Certificate:
    """One for these hosts and for this machine, good for a day."""
    key = generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests of Tidemark")])
    now = datetime.now(UTC)
    names = [*(x509.DNSName(host) for host in hosts), x509.IPAddress(ip_address(LOOPBACK))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.write(made.public_bytes(Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    trusted = [pkcs12.PKCS12Certificate(made, b"tests")]
    return Certificate(context, pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(PASSWORD.encode())))


class Authority:
    """Vouches for servers and clients, for a day."""

    def __init__(self) -> None:
        self._key = generate_private_key(public_exponent=65537, key_size=2048)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"an authority, {token_hex(4)}")])
        own = self._certificate(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.pem = own.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def write(self, stem: Path, common_name: str) -> tuple[Path, Path]:
        """Certificate and key of a role, or of a host with this name, as two files."""
        key = generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        names = x509.SubjectAlternativeName([x509.DNSName(common_name)])
        made = self._certificate(name, key).add_extension(names, critical=False).sign(self._key, SHA256())
        files = stem.with_suffix(".pem"), stem.with_suffix(".key")
        for file, content in zip(
            files,
            (
                made.public_bytes(Encoding.PEM),
                key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            ),
            strict=True,
        ):
            file.touch(0o600)
            file.write_bytes(content)
        return files

    def _certificate(self, subject: x509.Name, key: RSAPrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )


def trust(spark: SparkSession, certificate: Certificate) -> None:
    """Before the JVM first speaks TLS: it reads its store once."""
    file = Path(spark.sparkContext.getConf().get("spark.local.dir")) / "trusted.p12"
    file.write_bytes(certificate.trusted)
    for name, value in (("trustStore", str(file)), ("trustStorePassword", PASSWORD)):
        spark.sparkContext._jvm.java.lang.System.setProperty(f"javax.net.ssl.{name}", value)
