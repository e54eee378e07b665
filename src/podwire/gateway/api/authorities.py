"""Authorities that references name: those of clients' certificates at a Gateway, and those of backends.

An authority is the key ``ca.crt`` of a ConfigMap. Several references are one authority with the certificates of all.
"""

from collections.abc import Callable, Iterable

import msgspec

from podwire.gateway.api.references import (
    NO_PROBLEM,
    ReferenceProblem,
    ReferenceTarget,
    is_granted,
    not_granted,
)
from podwire.gateway.routes import ClientValidation, TrustedAuthority
from podwire.model.gatewayapi import FrontendValidation, Gateway, ObjectRef, ReferenceGrant

AuthorityOf = Callable[[str], TrustedAuthority | str]
SYSTEM = "authority System"


class NamedAuthorities(msgspec.Struct, frozen=True, kw_only=True):
    """What references to authorities came to: one authority of all that can be used, and the first problem."""

    authority: TrustedAuthority | None = None
    problem: ReferenceProblem = NO_PROBLEM


def authorities_of(
    references: Iterable[ObjectRef],
    field: str,
    namespace: str,
    lookup: Callable[[str, str], TrustedAuthority | ReferenceProblem],
    kind_reason: str,
) -> NamedAuthorities:
    """The authority of references; ``lookup`` gives that of a ConfigMap by its key and the path of the field."""
    usable: list[TrustedAuthority] = []
    problem = NO_PROBLEM
    for index, reference in enumerate(references):
        path = f"{field}[{index}]"
        result: TrustedAuthority | ReferenceProblem
        if (reference.group, reference.kind) != ("", "ConfigMap"):
            text = f"{path}: expected a ConfigMap of the core group, got {reference.kind} of {reference.group!r}"
            result = ReferenceProblem(kind_reason, text)
        else:
            result = lookup(f"{reference.namespace or namespace}/{reference.name}", path)
        if isinstance(result, TrustedAuthority):
            usable.append(result)
        elif not problem.reason:
            problem = result
    if not usable:
        return NamedAuthorities(problem=problem)
    name = "authority " + ",".join(entry.name for entry in usable)
    chain = "\n".join(entry.chain for entry in usable)
    return NamedAuthorities(authority=TrustedAuthority(name=name, chain=chain), problem=problem)


class ClientChecks:
    """How a Gateway checks the certificates of clients, by port; collects the authorities that are used."""

    def __init__(self, gateway: Gateway, grants: Iterable[ReferenceGrant], authority: AuthorityOf) -> None:
        self._gateway = gateway
        self._grants = tuple(grants)
        self._authority_of = authority
        self.authorities: dict[str, TrustedAuthority] = {}

    @property
    def insecure(self) -> bool:
        """Whether a validation lets clients in whose certificate is not valid."""
        tls = self._gateway.spec.tls
        if tls is None or tls.frontend is None:
            return False
        settings = [tls.frontend.default, *(entry.tls for entry in tls.frontend.per_port)]
        return any(entry.validation is not None and entry.validation.mode != "AllowValidOnly" for entry in settings)

    def of_port(self, port: int) -> tuple[ClientValidation | None, ReferenceProblem]:
        """The validation of a port, or why there can be none."""
        tls = self._gateway.spec.tls
        if tls is None or tls.frontend is None:
            return None, NO_PROBLEM
        for index, entry in enumerate(tls.frontend.per_port):
            if entry.port == port:
                return self._validation(entry.tls.validation, f"spec.tls.frontend.perPort[{index}].tls.validation")
        return self._validation(tls.frontend.default.validation, "spec.tls.frontend.default.validation")

    def _validation(
        self, validation: FrontendValidation | None, field: str
    ) -> tuple[ClientValidation | None, ReferenceProblem]:
        if validation is None:
            return None, NO_PROBLEM
        named = authorities_of(
            validation.ca_certificate_refs,
            f"{field}.caCertificateRefs",
            self._gateway.metadata.namespace,
            self._lookup,
            "InvalidCACertificateKind",
        )
        if named.authority is None:
            text = f"{field}.caCertificateRefs: expected a ConfigMap"
            empty = ReferenceProblem("InvalidCACertificateRef", text)
            return None, named.problem if named.problem.reason else empty
        self.authorities[named.authority.name] = named.authority
        required = validation.mode == "AllowValidOnly"
        return ClientValidation(authority=named.authority.name, required=required), NO_PROBLEM

    def _lookup(self, key: str, field: str) -> TrustedAuthority | ReferenceProblem:
        namespace, _, name = key.partition("/")
        target = ReferenceTarget(kind="ConfigMap", namespace=namespace, name=name)
        if not is_granted(self._grants, "Gateway", self._gateway.metadata.namespace, target):
            return not_granted(field, target)
        result = self._authority_of(key)
        return ReferenceProblem("InvalidCACertificateRef", f"{field}: {result}") if isinstance(result, str) else result
