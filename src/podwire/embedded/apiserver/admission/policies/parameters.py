"""The plugin PolicyParameterAccess: who writes a policy must be able to read its parameters.

Otherwise a policy would tell its author, by what it refuses, what objects hold that the author must not see. Source:
``pkg/registry/admissionregistration/validatingadmissionpolicy/authz.go``.
"""

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.policies import mutating, validating
from podwire.embedded.apiserver.authorization.rules import ANY, RequestAttributes
from podwire.embedded.apiserver.validate import causes

_TABLES = (mutating.POLICIES, validating.POLICIES)


class PolicyParameterAccess:
    """Refuses a policy with a kind of parameters that the client may not read."""

    def __init__(self, context: AdmissionContext) -> None:
        self._authorizer = context.authorizer
        self._kinds = context.kinds

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: Invalid when the client may not get all objects of the kind."""
        if request.table not in _TABLES or request.call.subresource or request.operation == "DELETE":
            return
        wanted = (request.obj.get("spec") or {}).get("paramKind")
        if not wanted or wanted == (request.old.get("spec") or {}).get("paramKind"):
            return
        group, _, version = wanted["apiVersion"].rpartition("/")
        names = [
            kind.plural
            for kind in self._kinds.values()
            if (kind.group, kind.version, kind.kind) == (group, version, wanted["kind"])
        ]
        resource = names[0] if names else ANY
        asked = RequestAttributes("get", group, version, resource, namespace=ANY, name=ANY)
        if not self._authorizer.decide(request.call.user, asked).allowed:
            detail = (
                f'user {request.call.user.name} must have "get" permission on all objects of the referenced paramKind '
                f"(kind={wanted['kind']}, apiVersion={wanted['apiVersion']})"
            )
            raise failures.invalid(request.call.kind, request.name, [causes.forbidden("spec.paramKind", detail)])
