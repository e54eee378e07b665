"""Reading and signing certificate requests."""

import datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from podwire.embedded.apiserver import certificates
from podwire.embedded.certificates import signing
from podwire.embedded.certificates.signing import RequestedCertificate
from podwire.errors import ConfigError

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
AUTHORITY = certificates.make_authority("test", NOW)


def request(common_name: str, organization: str = "", names: tuple[Any, ...] = ()) -> bytes:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    key = ec.generate_private_key(ec.SECP256R1())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_request_is_read() -> None:
    text = request("anna", "team", (x509.DNSName("a.example"),))
    assert signing.parse_request(text) == RequestedCertificate("anna", ("team",), ("a.example",), ())


FRAME = b"-----BEGIN CERTIFICATE REQUEST-----\n%s\n-----END CERTIFICATE REQUEST-----"


@pytest.mark.parametrize("text", [b"", b"junk", FRAME % b"AAAA", FRAME % b"$"])
def test_broken_requests_are_refused(text: bytes) -> None:
    with pytest.raises(ConfigError):
        signing.parse_request(text)


NODE = RequestedCertificate("system:node:n", ("system:nodes",), (), ())
SERVER = RequestedCertificate("system:node:n", ("system:nodes",), ("n",), ())
USER = RequestedCertificate("anna", (), (), ())


@pytest.mark.parametrize(
    ("signer", "requested_certificate", "usages", "refused"),
    [
        (signing.CLIENT, USER, {"client auth"}, False),
        (signing.CLIENT, USER, {"client auth", "digital signature", "key encipherment"}, False),
        (signing.CLIENT, USER, {"server auth"}, True),
        (signing.CLIENT, USER, {"client auth", "server auth"}, True),
        (signing.KUBELET_CLIENT, NODE, {"client auth"}, False),
        (signing.KUBELET_CLIENT, USER, {"client auth"}, True),
        (signing.KUBELET_CLIENT, SERVER, {"client auth"}, True),
        (signing.KUBELET_SERVING, SERVER, {"server auth"}, False),
        (signing.KUBELET_SERVING, NODE, {"server auth"}, True),
        (signing.KUBELET_SERVING, SERVER, {"client auth"}, True),
        (signing.LEGACY, USER, {"any"}, False),
    ],
)
def test_signers_refuse_requests_outside_their_rules(
    signer: str, requested_certificate: RequestedCertificate, usages: set[str], *, refused: bool
) -> None:
    assert bool(signing.refusal(signer, requested_certificate, usages)) is refused


def test_signed_certificate_has_the_requested_content() -> None:
    text = request("anna", "team", (x509.DNSName("a.example"),))
    pair = (AUTHORITY.certificate, AUTHORITY.key)
    created = x509.load_pem_x509_certificate(signing.sign(pair, text, ("client auth", "digital signature"), 3600, NOW))
    created.verify_directly_issued_by(x509.load_pem_x509_certificate(AUTHORITY.certificate))
    assert created.subject.rfc4514_string() == "O=team,CN=anna"
    assert created.not_valid_after_utc - created.not_valid_before_utc == datetime.timedelta(hours=1)
    assert created.extensions.get_extension_for_class(x509.KeyUsage).value.digital_signature
    assert not created.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = created.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example"]


def test_a_certificate_is_valid_for_one_year_at_most() -> None:
    pair = (AUTHORITY.certificate, AUTHORITY.key)
    for asked in (None, 10**9):
        created = x509.load_pem_x509_certificate(signing.sign(pair, request("a"), ("client auth",), asked, NOW))
        assert (created.not_valid_after_utc - created.not_valid_before_utc).days == 365
