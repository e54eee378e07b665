"""BackendTLSPolicies: which one applies to a port of a Service, what it says, and its status at each Gateway.

Of several policies for the same port the oldest applies, then the first by name; one that names the port comes before
one for the whole Service. A policy that cannot be followed keeps requests away from its Service.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.api.authorities import SYSTEM, AuthorityOf, authorities_of
from podwire.gateway.api.references import NO_PROBLEM, ReferenceProblem
from podwire.gateway.api.status import condition
from podwire.gateway.routes import BackendTls, TrustedAuthority
from podwire.model.backendtls import BackendTlsPolicy, PolicyAncestorStatus
from podwire.model.gatewayapi import GROUP, ObjectRef, ParentReference
from podwire.model.meta import key_of

ServicePortName = tuple[str, str]
"""The key of a Service and the name of one of its ports."""
_MAX_ANCESTORS = 16


class CheckedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and what is wrong with it; without ``tls`` it cannot be followed."""

    key: str
    policy: BackendTlsPolicy
    tls: BackendTls | None = None
    authority: TrustedAuthority | None = None
    refused: ReferenceProblem = NO_PROBLEM
    references: ReferenceProblem = NO_PROBLEM


class PolicyTable:
    """All policies by what they target."""

    def __init__(self, policies: Iterable[BackendTlsPolicy], authority: AuthorityOf, system: str) -> None:
        """``system`` has the certificates that the system trusts, in PEM form."""
        self._authority_of = authority
        self._system = system
        self._by_target: dict[tuple[str, str], list[CheckedPolicy]] = {}
        self.checked: dict[str, CheckedPolicy] = {}
        for policy in sorted(policies, key=_age):
            checked = self._check(policy)
            self.checked[checked.key] = checked
            for target in policy.spec.target_refs:
                if (target.group, target.kind) == ("", "Service"):
                    service = f"{policy.metadata.namespace}/{target.name}"
                    self._by_target.setdefault((service, target.section_name or ""), []).append(checked)

    def of_port(self, port: ServicePortName) -> CheckedPolicy | None:
        """The policy that applies to a port."""
        service, name = port
        known = self._by_target.get((service, name)) if name else None
        known = known or self._by_target.get((service, ""))
        return known[0] if known else None

    def ancestors(self, used: Mapping[str, Iterable[ServicePortName]], controller: str) -> dict[str, "Ancestors"]:
        """The status of each policy at the Gateways whose routes use the ports that it targets."""
        result: dict[str, Ancestors] = dict.fromkeys(self.checked, ())
        for gateway, ports in sorted(used.items()):
            for key, wins in self._targeting(ports).items():
                if len(result[key]) < _MAX_ANCESTORS:
                    result[key] += (_status(self.checked[key], gateway, controller, wins=wins),)
        return {key: entries for key, entries in result.items() if entries}

    def _targeting(self, ports: Iterable[ServicePortName]) -> dict[str, bool]:
        """The policies that target one of the ports, and whether no older one has the same target for one of them.

        A policy for a port alone does not count against one for the whole Service.
        """
        result: dict[str, bool] = {}
        for service, name in ports:
            for section in {name, ""}:
                for index, checked in enumerate(self._by_target.get((service, section), ())):
                    result[checked.key] = result.get(checked.key, False) or index == 0
        return result

    def _check(self, policy: BackendTlsPolicy) -> CheckedPolicy:
        key = key_of(policy.metadata)
        validation = policy.spec.validation
        authority: TrustedAuthority | None = None
        references = NO_PROBLEM
        refused = NO_PROBLEM
        if policy.spec.options:
            refused = ReferenceProblem("Invalid", "spec.options: no option is supported")
        if validation.ca_certificate_refs:
            named = authorities_of(
                (ObjectRef(group=ref.group, kind=ref.kind, name=ref.name) for ref in validation.ca_certificate_refs),
                "spec.validation.caCertificateRefs",
                policy.metadata.namespace,
                self._lookup,
                "InvalidKind",
            )
            authority, references = named.authority, named.problem
            if authority is None:
                refused = ReferenceProblem("NoValidCACertificate", references.message)
        elif validation.well_known_ca_certificates == "System" and self._system:
            authority = TrustedAuthority(name=SYSTEM, chain=self._system)
        else:
            field = "spec.validation.wellKnownCACertificates"
            got = validation.well_known_ca_certificates
            text = "the engines' system has no certificates" if got == "System" else f"expected System, got {got!r}"
            refused = ReferenceProblem("Invalid", f"{field}: {text}")
        tls = None
        if authority is not None and not refused.reason:
            names = validation.subject_alt_names
            tls = BackendTls(
                server_name=validation.hostname,
                authority=authority.name,
                names=tuple(name.hostname for name in names if name.type == "Hostname")
                if names
                else (validation.hostname,),
                uris=tuple(name.uri for name in names if name.type == "URI"),
            )
        return CheckedPolicy(
            key=key, policy=policy, tls=tls, authority=authority, refused=refused, references=references
        )

    def _lookup(self, key: str, field: str) -> TrustedAuthority | ReferenceProblem:
        result = self._authority_of(key)
        return ReferenceProblem("InvalidCACertificateRef", f"{field}: {result}") if isinstance(result, str) else result


Ancestors = tuple[PolicyAncestorStatus, ...]


def _age(policy: BackendTlsPolicy) -> tuple[str, str]:
    return policy.metadata.creation_timestamp or "", key_of(policy.metadata)


def _status(checked: CheckedPolicy, gateway: str, controller: str, *, wins: bool) -> PolicyAncestorStatus:
    generation = checked.policy.metadata.generation
    refused = checked.refused
    if not wins:
        refused = ReferenceProblem("Conflicted", "an older policy targets the same port")
    namespace, _, name = gateway.partition("/")
    return PolicyAncestorStatus(
        ancestor_ref=ParentReference(group=GROUP, kind="Gateway", namespace=namespace, name=name),
        controller_name=controller,
        conditions=(
            condition("Accepted", refused, generation),
            condition("ResolvedRefs", checked.references, generation),
        ),
    )
