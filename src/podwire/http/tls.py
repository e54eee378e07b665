"""TLS settings of a server and the identity in a client certificate."""

import ssl
from typing import Any


def server_context(certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext:
    """TLS settings of a server; with ``client_ca`` a client may, and need not, show a certificate of it.

    Raises: OSError or ssl.SSLError when a file is missing or not in PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def subject_of(certificate: dict[str, Any] | None) -> tuple[str, tuple[str, ...]]:
    """Common name and organizations of a verified client certificate; an empty name without one."""
    name = ""
    organizations: list[str] = []
    for parts in (certificate or {}).get("subject", ()):
        for key, value in parts:
            if key == "commonName":
                name = value
            elif key == "organizationName":
                organizations.append(value)
    return name, tuple(organizations)
