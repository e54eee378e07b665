"""Certificates for engines from Secrets of type ``kubernetes.io/tls``, and the one that serves where there is none.

Authorities come from the key ``ca.crt`` of ConfigMaps, and from the file that the system has.
"""

import base64
import binascii
import datetime
import ssl
from pathlib import Path
from typing import Any

from podwire.gateway.routes import Certificate, TrustedAuthority

_DEFAULT_NAME = "podwire default certificate"
_YEARS = 10


def secret_values(secret: dict[str, Any]) -> dict[str, bytes]:
    """The values of a Secret by key; those that are not base64 are left out."""
    values = {}
    for key, text in (secret.get("data") or {}).items():
        try:
            values[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError):
            continue
    return values


def certificate_of(name: str, secret: dict[str, Any] | None) -> Certificate | str:
    """The certificate chain and key of a Secret, or the reason why they cannot be served."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if secret is None:
        return f"Secret {name} does not exist"
    values = secret_values(secret)
    missing = [key for key in ("tls.crt", "tls.key") if not values.get(key)]
    if missing:
        return f"Secret {name} has no {' and no '.join(missing)}"
    try:
        certificates = x509.load_pem_x509_certificates(values["tls.crt"])
        key: Any = load_pem_private_key(values["tls.key"], password=None)
        fits = certificates[0].public_key() == key.public_key()
        chain, key_text = values["tls.crt"].decode(), values["tls.key"].decode()
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        return f"Secret {name} holds no certificate and key in PEM form that can be served: {problem}"
    if not fits:
        return f"Secret {name}: tls.key does not belong to the first certificate of tls.crt"
    return Certificate(name=name, chain=chain, key=key_text)


def authority_of(name: str, config_map: dict[str, Any] | None) -> TrustedAuthority | str:
    """The certificates of authorities in a ConfigMap, or the reason why they cannot be used."""
    from cryptography import x509

    if config_map is None:
        return f"ConfigMap {name} does not exist"
    text = (config_map.get("data") or {}).get("ca.crt") or ""
    if not text:
        return f"ConfigMap {name} has no ca.crt"
    try:
        x509.load_pem_x509_certificates(text.encode())
    except ValueError as problem:
        return f"ConfigMap {name}: ca.crt holds no certificate in PEM form: {problem}"
    return TrustedAuthority(name=name, chain=text)


def client_authority(name: str, secret: dict[str, Any] | None) -> TrustedAuthority | str:
    """The authorities of clients in the key ``ca.crt`` of a Secret, or the reason why they cannot be used."""
    from cryptography import x509

    if secret is None:
        return f"Secret {name} does not exist"
    chain = secret_values(secret).get("ca.crt", b"")
    if not chain:
        return f"Secret {name} has no ca.crt"
    try:
        x509.load_pem_x509_certificates(chain)
        text = chain.decode()
    except ValueError as problem:
        return f"Secret {name}: ca.crt holds no certificate in PEM form: {problem}"
    return TrustedAuthority(name=f"clients {name}", chain=text)


def system_authorities() -> str:
    """The certificates of authorities that this system trusts, in PEM form; empty where it has none."""
    paths = ssl.get_default_verify_paths()
    file = Path(paths.cafile or paths.openssl_cafile)
    for candidate in (file, Path("/etc/ssl/certs/ca-certificates.crt")):
        if candidate.is_file():
            return candidate.read_text(encoding="utf-8")
    return ""


def self_signed(now: datetime.datetime) -> Certificate:
    """A certificate for clients that ask for a name without one; no client can trust it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _DEFAULT_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("invalid")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain = certificate.public_bytes(serialization.Encoding.PEM).decode()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return Certificate(name="default", chain=chain, key=text)
