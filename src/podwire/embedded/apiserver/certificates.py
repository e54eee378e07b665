"""Certificates, keys and kubeconfig files of a local cluster.

One authority signs everything: ECDSA P-256, ten years, made in about a millisecond each. ``cryptography`` is
imported when the first one is made. Key files are created with mode 0600, never readable in between.
"""

import base64
import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

Usage = Literal["server", "client", "both"]

_YEARS = 10


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def import_library() -> None:
    """Imports what makes and signs certificates, before a fork: 50 ms, which child processes save."""
    from cryptography import x509  # noqa: F401
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: F401
    from cryptography.hazmat.primitives.asymmetric import ec, utils  # noqa: F401
    from cryptography.x509.oid import NameOID  # noqa: F401


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _key_text(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    text: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return text


def _subject(common_name: str, organizations: Sequence[str]) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: Any, issuer: Any, public_key: Any, now: datetime.datetime) -> Any:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
    )


def make_authority(common_name: str, now: datetime.datetime) -> KeyPair:
    """A new certificate authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = _subject(common_name, ())
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=True, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(_certificate_text(certificate), _key_text(key))


def _certificate_text(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    text: bytes = certificate.public_bytes(form.Encoding.PEM)
    return text


def issue(
    authority: KeyPair, common_name: str, organizations: Sequence[str], names: Sequence[str], usage: Usage,
    now: datetime.datetime,
) -> KeyPair:  # fmt: skip
    """A certificate for ``common_name`` (the user) and ``organizations`` (the groups).

    ``names`` are the DNS names and addresses that a server answers to.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer: Any = load_pem_private_key(authority.key, password=None)
    key = _new_key()
    purposes = []
    if usage in ("server", "both"):
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    if usage in ("client", "both"):
        purposes.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    builder = (
        _builder(_subject(common_name, organizations), issuer.subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )  # fmt: skip
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
    return KeyPair(_certificate_text(builder.sign(signer, hashes.SHA256())), _key_text(key))


def _general_name(text: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def make_signing_key() -> bytes:
    """A private key (PEM) for signing ServiceAccount tokens."""
    return _key_text(_new_key())


def write_private(path: Path, data: bytes) -> None:
    """Writes a file with mode 0600, in place of an old one at once."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)


def write_pair(directory: Path, name: str, pair: KeyPair) -> tuple[Path, Path]:
    """Writes ``NAME.crt`` and ``NAME.key``; returns their paths."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    write_private(certificate, pair.certificate)
    write_private(key, pair.key)
    return certificate, key


def kubeconfig(cluster: str, server: str, authority: bytes, user: str, pair: KeyPair) -> bytes:
    """A kubeconfig (YAML) with everything inside; cluster, user and context carry the names given."""
    import yaml

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": text(authority)}}],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": text(pair.certificate),
                    "client-key-data": text(pair.key),
                },
            }
        ],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        "current-context": cluster,
    }
    rendered: str = yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False)
    return rendered.encode()
