"""A certificate for the names of a store that the tests stand in for, and how a JVM comes to trust it."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
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

PASSWORD: Final = "of-the-tests"
LOOPBACK: Final = "127.0.0.1"


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


def trust(spark: SparkSession, certificate: Certificate) -> None:
    """Before the JVM first speaks TLS: it reads its store once."""
    file = Path(spark.sparkContext.getConf().get("spark.local.dir")) / "trusted.p12"
    file.write_bytes(certificate.trusted)
    for name, value in (("trustStore", str(file)), ("trustStorePassword", PASSWORD)):
        spark.sparkContext._jvm.java.lang.System.setProperty(f"javax.net.ssl.{name}", value)
