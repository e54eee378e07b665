"""BackendTLSPolicy (``gateway.networking.k8s.io/v1``): how TLS to the endpoints of a Service is checked.

Source: Gateway API v1.6.
"""

import msgspec

from podwire.model.gatewayapi import API_VERSION, ParentReference
from podwire.model.meta import Condition, Fact, ObjectMeta


class PolicyTarget(Fact, frozen=True):
    """A Service of the policy's namespace; ``section_name`` names one of its ports."""

    group: str = ""
    kind: str = "Service"
    name: str = ""
    section_name: str | None = None


class LocalReference(Fact, frozen=True):
    """An object of the same namespace; an empty group is the core group."""

    group: str = ""
    kind: str = ""
    name: str = ""


class SubjectAltName(Fact, frozen=True):
    """A name in a certificate; ``type`` is Hostname or URI, with the field of that name."""

    type: str = ""
    hostname: str = ""
    uri: str = ""


class BackendTlsValidation(Fact, frozen=True):
    """The authorities, the server name, and the names of which the certificate must have one."""

    ca_certificate_refs: tuple[LocalReference, ...] = ()
    well_known_ca_certificates: str = msgspec.field(default="", name="wellKnownCACertificates")
    hostname: str = ""
    subject_alt_names: tuple[SubjectAltName, ...] = ()


class BackendTlsPolicySpec(Fact, frozen=True):
    """What a policy asks for."""

    target_refs: tuple[PolicyTarget, ...] = ()
    validation: BackendTlsValidation = BackendTlsValidation()
    options: dict[str, str] = {}


class PolicyAncestorStatus(Fact, frozen=True):
    """What one controller says about a policy at one Gateway."""

    ancestor_ref: ParentReference = ParentReference()
    controller_name: str = ""
    conditions: tuple[Condition, ...] = ()


class BackendTlsStatus(Fact, frozen=True):
    """What controllers say about a policy."""

    ancestors: tuple[PolicyAncestorStatus, ...] = ()


class BackendTlsPolicy(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` BackendTLSPolicy."""

    api_version: str = API_VERSION
    kind: str = "BackendTLSPolicy"
    metadata: ObjectMeta = ObjectMeta()
    spec: BackendTlsPolicySpec = BackendTlsPolicySpec()
    status: BackendTlsStatus = BackendTlsStatus()
