"""What Secrets give: a certificate or an authority, or the reason why they give none; never an exception."""

import base64

from tests.fakes.certificates import make_certificate

from podwire.gateway.certificates import certificate_of, client_authority
from podwire.gateway.routes import Certificate, TrustedAuthority

_COMMENT = "# Müller\n".encode("latin-1")
"""A line before a certificate, which readers of PEM pass over, in another encoding than UTF-8."""


def _secret(**values: bytes) -> dict[str, dict[str, str]]:
    return {"data": {name.replace("_", "."): base64.b64encode(value).decode() for name, value in values.items()}}


def test_a_comment_that_is_no_utf_8_is_a_reason() -> None:
    chain, key = (text.encode() for text in make_certificate("web.example"))
    assert isinstance(certificate_of("shop/web", _secret(tls_crt=chain, tls_key=key)), Certificate)
    refused = certificate_of("shop/web", _secret(tls_crt=_COMMENT + chain, tls_key=key))
    assert isinstance(refused, str) and refused.startswith("Secret shop/web holds no certificate")
    refused = certificate_of("shop/web", _secret(tls_crt=chain, tls_key=_COMMENT + key))
    assert isinstance(refused, str) and refused.startswith("Secret shop/web holds no certificate")


def test_an_authority_that_is_no_utf_8_is_a_reason() -> None:
    chain = make_certificate("web.example")[0].encode()
    assert isinstance(client_authority("shop/ca", _secret(ca_crt=chain)), TrustedAuthority)
    refused = client_authority("shop/ca", _secret(ca_crt=_COMMENT + chain))
    assert isinstance(refused, str) and refused.startswith("Secret shop/ca: ca.crt holds no certificate")
