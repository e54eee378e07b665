"""Parses certificate requests, checks them against the rules of their signer, and signs them.

Source: Kubernetes' "Certificates and Certificate Signing Requests";
``k8s.io/kubernetes/pkg/controller/certificates/signer``. ``cryptography`` is imported when the first request is read.
"""

import datetime
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from podwire.errors import ConfigError

CLIENT = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING = "kubernetes.io/kubelet-serving"
LEGACY = "kubernetes.io/legacy-unknown"
SIGNERS = (CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY)
"""The signers whose requests are signed here."""

MASTERS = "system:masters"
NODES = "system:nodes"
_NODE_PREFIX = "system:node:"
_LIFE = datetime.timedelta(days=365)
_SKEW = datetime.timedelta(minutes=5)
"""How long before its signing a certificate becomes valid, for machines whose clocks are behind."""

_KEY_USAGES = {
    "signing": "digital_signature", "digital signature": "digital_signature",
    "content commitment": "content_commitment", "key encipherment": "key_encipherment",
    "key agreement": "key_agreement", "data encipherment": "data_encipherment",
    "cert sign": "key_cert_sign", "crl sign": "crl_sign", "encipher only": "encipher_only",
    "decipher only": "decipher_only",
}  # fmt: skip
_EXTENDED_USAGES = {
    "any": "2.5.29.37.0", "server auth": "1.3.6.1.5.5.7.3.1", "client auth": "1.3.6.1.5.5.7.3.2",
    "code signing": "1.3.6.1.5.5.7.3.3", "email protection": "1.3.6.1.5.5.7.3.4", "s/mime": "1.3.6.1.5.5.7.3.4",
    "ipsec end system": "1.3.6.1.5.5.7.3.5", "ipsec tunnel": "1.3.6.1.5.5.7.3.6", "ipsec user": "1.3.6.1.5.5.7.3.7",
    "timestamping": "1.3.6.1.5.5.7.3.8", "ocsp signing": "1.3.6.1.5.5.7.3.9", "microsoft sgc": "1.3.6.1.4.1.311.10.3.3",
    "netscape sgc": "2.16.840.1.113730.4.1",
}  # fmt: skip
USAGES = frozenset(_KEY_USAGES) | frozenset(_EXTENDED_USAGES)
"""The usages that a request may name."""

_OPTIONAL = {"key encipherment", "digital signature"}


class RequestedCertificate(msgspec.Struct, frozen=True):
    """The content of a certificate request."""

    common_name: str
    organizations: tuple[str, ...]
    dns_names: tuple[str, ...]
    addresses: tuple[str, ...]
    other_names: bool = False
    """Whether it asks for e-mail addresses or URIs."""


def parse_request(text: bytes) -> RequestedCertificate:
    """The content of a PEM certificate request, whose signature is checked.

    Raises: ConfigError when the text is no certificate request.
    """
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    request = _load(text)

    def values(oid: Any) -> tuple[str, ...]:
        return tuple(str(attribute.value) for attribute in request.subject.get_attributes_for_oid(oid))

    try:
        names: Any = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    addresses = tuple(str(address) for address in names.get_values_for_type(x509.IPAddress))
    has_other_names = any(names.get_values_for_type(kind) for kind in (x509.RFC822Name, x509.UniformResourceIdentifier))
    common = values(NameOID.COMMON_NAME)
    organizations = values(NameOID.ORGANIZATION_NAME)
    dns_names = tuple(names.get_values_for_type(x509.DNSName))
    return RequestedCertificate(
        common[0] if common else "", organizations, dns_names, addresses, other_names=has_other_names
    )


def _load(text: bytes) -> Any:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    if b"-----BEGIN CERTIFICATE REQUEST-----" not in text:
        raise ConfigError("CertificateSigningRequest", "spec.request", "PEM block type must be CERTIFICATE REQUEST")
    try:
        request = x509.load_pem_x509_csr(text)
        valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as failure:
        raise ConfigError("CertificateSigningRequest", "spec.request", str(failure)) from failure
    if not valid:
        raise ConfigError("CertificateSigningRequest", "spec.request", "the signature does not match the key")
    return request


def refusal(signer: str, requested: RequestedCertificate, usages: Collection[str]) -> str:
    """Why a signer does not sign a request, in Kubernetes' words; empty when it does."""
    check = _CHECKS.get(signer)
    return check(requested, set(usages)) if check is not None else ""


def _client(requested: RequestedCertificate, usages: set[str]) -> str:
    if "client auth" not in usages or usages - _OPTIONAL - {"client auth"}:
        return f"usages did not match {sorted({'client auth'} | _OPTIONAL)}"
    return ""


def _kubelet_client(requested: RequestedCertificate, usages: set[str]) -> str:
    if requested.organizations != (NODES,):
        return f"organization does not match {NODES}"
    if requested.dns_names or requested.addresses or requested.other_names:
        return "subject alternative names are not allowed"
    if not requested.common_name.startswith(_NODE_PREFIX):
        return f"subject common name does not begin with {_NODE_PREFIX}"
    return _client(requested, usages)


def _kubelet_serving(requested: RequestedCertificate, usages: set[str]) -> str:
    if requested.organizations != (NODES,):
        return f"organization does not match {NODES}"
    if not requested.dns_names and not requested.addresses:
        return "either DNS names or IP addresses are required"
    if requested.other_names:
        return "only DNS names and IP addresses are allowed"
    if not requested.common_name.startswith(_NODE_PREFIX):
        return f"subject common name does not begin with {_NODE_PREFIX}"
    if "server auth" not in usages or usages - _OPTIONAL - {"server auth"}:
        return f"usages did not match {sorted({'server auth'} | _OPTIONAL)}"
    return ""


_CHECKS: dict[str, Callable[[RequestedCertificate, set[str]], str]] = {
    CLIENT: _client,
    KUBELET_CLIENT: _kubelet_client,
    KUBELET_SERVING: _kubelet_serving,
}


def sign(
    authority: tuple[bytes, bytes], text: bytes, usages: Collection[str], expiration_s: int | None,
    now: datetime.datetime,
) -> bytes:  # fmt: skip
    """The certificate (PEM) for a request; ``authority`` are certificate and key of the signer.

    It is valid for ``expiration_s`` seconds, at most and by default one year, and never longer than the authority.

    Raises: ConfigError when the request cannot be read.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    request = _load(text)
    issuer = x509.load_pem_x509_certificate(authority[0])
    key: Any = load_pem_private_key(authority[1], password=None)
    life = min(datetime.timedelta(seconds=expiration_s), _LIFE) if expiration_s else _LIFE
    builder = (
        x509.CertificateBuilder()
        .subject_name(request.subject)
        .issuer_name(issuer.subject)
        .public_key(request.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(min(now - _SKEW + life, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    set_bits = {_KEY_USAGES[usage] for usage in usages if usage in _KEY_USAGES}
    if set_bits:
        bits = dict.fromkeys(_KEY_USAGES.values(), False) | dict.fromkeys(set_bits, True)
        builder = builder.add_extension(x509.KeyUsage(**bits), critical=True)
    extended = [x509.ObjectIdentifier(_EXTENDED_USAGES[usage]) for usage in usages if usage in _EXTENDED_USAGES]
    if extended:
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(dict.fromkeys(extended))), critical=False)
    try:
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        builder = builder.add_extension(names.value, critical=names.critical)
    except x509.ExtensionNotFound:
        pass
    certificate: bytes = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return certificate
