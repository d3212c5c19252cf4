"""Certificates for tests: an authority, and a server and a client that it signed."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Write all files; they are good for a day and for 127.0.0.1."""
    made = Certificates(*(folder / f"{name}.pem" for name in ("ca", "server", "server-key", "client", "client-key")))
    ca_key = ec.generate_private_key(ec.SECP256R1())
    _write(made.authority, _certify("authority", ca_key, "authority", ca_key))
    for name, path, key_path in (("server", made.server, made.server_key), ("client", made.client, made.client_key)):
        key = ec.generate_private_key(ec.SECP256R1())
        _write(path, _certify(name, key, "authority", ca_key))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return made


def _certify(name: str, key: Key, issuer: str, issuer_key: Key) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    is_ca = name == issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_ca:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
