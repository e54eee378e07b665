"""The plugin PolicyParameterAccess: the author of a policy or a binding must be able to read its parameters.

Otherwise the author could learn from the policy's refusals what is in objects that the author may not read. To write a
policy, a client needs the right to get all objects of its ``paramKind``. To write a binding, a client needs the right
to get the object that the binding names, or to list the objects that its selector chooses, in all namespaces unless the
binding names one. A write that changes neither field needs no such right. Source:
``pkg/registry/admissionregistration`` (``validatingadmissionpolicy/authz.go``,
``validatingadmissionpolicybinding/authz.go``).
"""

from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.policies import mutating, validating
from podwire.embedded.apiserver.authorization.rules import ANY, RequestAttributes
from podwire.embedded.apiserver.kinds import kind_named
from podwire.embedded.apiserver.validate import causes
from podwire.errors import ApiError

Object = dict[str, Any]

_POLICIES = (mutating.POLICIES, validating.POLICIES)
_POLICIES_OF = {mutating.BINDINGS: mutating.POLICIES, validating.BINDINGS: validating.POLICIES}


class PolicyParameterAccess:
    """Refuses a policy or a binding with parameters that the client may not read."""

    tables = frozenset({*_POLICIES, *_POLICIES_OF})

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store
        self._authorizer = context.authorizer
        self._kinds = context.kinds

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: Invalid when the client may not read the parameters."""
        if request.call.subresource or request.operation == "DELETE":
            return
        if request.table in _POLICIES:
            self._check_policy(request)
        else:
            self._check_binding(request)

    def _check_policy(self, request: AdmissionRequest) -> None:
        param_kind = _spec(request.obj).get("paramKind")
        if not param_kind or param_kind == _spec(request.old).get("paramKind"):
            return
        if not self._may_read(request, "get", param_kind, ANY, ANY):
            raise _forbidden(
                request, "spec.paramKind", "get",
                f"all objects of the referenced paramKind (kind={param_kind['kind']}, "
                f"apiVersion={param_kind['apiVersion']})",
            )  # fmt: skip

    def _check_binding(self, request: AdmissionRequest) -> None:
        spec, old = _spec(request.obj), _spec(request.old)
        reference = spec.get("paramRef")
        if not reference or all(spec.get(field) == old.get(field) for field in ("paramRef", "policyName")):
            return
        policy = self._store.get(_POLICIES_OF[request.table], "", str(spec.get("policyName") or ""))
        param_kind = _spec(policy.object()).get("paramKind") if policy is not None else None
        name, namespace = reference.get("name") or "", reference.get("namespace") or ""
        verb = "get" if name else "list"
        if not self._may_read(request, verb, param_kind, namespace, name):
            raise _forbidden(request, "spec.paramRef", verb, "the objects referenced by paramRef")

    def _may_read(
        self, request: AdmissionRequest, verb: str, param_kind: Object | None, namespace: str, name: str
    ) -> bool:
        """Whether the client may read a kind of parameters; None is an unknown kind, for which all kinds are needed."""
        group, version, resource = ANY, ANY, ANY
        if param_kind is not None:
            group, _, version = param_kind["apiVersion"].rpartition("/")
            kind = kind_named(param_kind["apiVersion"], param_kind["kind"], self._kinds)
            resource = kind.plural if kind is not None else ANY
        asked = RequestAttributes(verb, group, version, resource, namespace=namespace, name=name)
        return self._authorizer.decide(request.call.user, asked).allowed


def _spec(obj: Object) -> Object:
    return obj.get("spec") or {}


def _forbidden(request: AdmissionRequest, field: str, verb: str, objects: str) -> ApiError:
    detail = f'user {request.call.user.name} must have "{verb}" permission on {objects}'
    return failures.invalid(request.call.kind, request.name, [causes.forbidden(field, detail)])
