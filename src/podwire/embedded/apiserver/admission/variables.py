"""The values of the variables that match conditions and policies use, for one request.

Source: ``k8s.io/apiserver/pkg/admission/plugin/cel`` (``activation.go``, ``condition.go``).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.embedded.apiserver.admission import review
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import UserInfo
from podwire.embedded.apiserver.cel.authorization import authorizer
from podwire.embedded.apiserver.kinds import ResourceKind

Object = dict[str, Any]

_NAMES = ("object", "oldObject", "request", "namespaceObject", "authorizer", "params")
_HIDDEN = ("managedFields", "ownerReferences", "selfLink")
"""The fields of a namespace's metadata that are hidden from expressions."""


class RequestVariables(Mapping[str, Any]):
    """The variables of a request, with its objects in the version of ``kind``; each is made when it is first read."""

    def __init__(
        self, request: AdmissionRequest, kind: ResourceKind, context: AdmissionContext, param: Object | None = None
    ) -> None:
        self._request = request
        self._kind = kind
        self._context = context
        self._known: Object = {"params": param}

    def with_param(self, param: Object | None) -> "RequestVariables":
        """The same variables with another parameter object."""
        variables = RequestVariables(self._request, self._kind, self._context)
        variables._known = {**self._known, "params": param}
        return variables

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._evaluate(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    def _evaluate(self, name: str) -> Any:
        request, kind = self._request, self._kind
        if name in ("object", "oldObject"):
            return review.objects(request, kind)[name]
        if name == "request":
            return review.describe(request, kind)
        if name == "namespaceObject":
            return _namespace(request, self._context)
        if name == "authorizer":
            return self._made_authorizer()
        raise KeyError(name)

    def _made_authorizer(self) -> Object:
        call, attributes = self._request.call, self["request"]
        asked = {
            "group": call.kind.group, "resource": call.kind.plural, "subresource": call.subresource,
            "namespace": attributes.get("namespace", ""), "name": self._request.name,
        }  # fmt: skip
        return authorizer(attributes["userInfo"], asked)

    def decide(self, check: Object, verb: str) -> Object:
        """The authorizer's decision on a check of an expression."""
        user = check["user"]
        extra = {key: tuple(values) for key, values in (user.get("extra") or {}).items()}
        info = UserInfo(user["username"], tuple(user.get("groups") or ()), user.get("uid") or "", extra)
        if "path" in check:
            asked = RequestAttributes(verb, path=check["path"])
        else:
            fields = ("group", "resource", "subresource", "namespace", "name")
            asked = RequestAttributes(verb, **{field: check.get(field, "") for field in fields})
        decision = self._context.authorizer.decide(info, asked)
        return {"kind": "Decision", "allowed": decision.allowed, "reason": decision.reason}


def _namespace(request: AdmissionRequest, context: AdmissionContext) -> Object | None:
    call = request.call
    entry = context.store.get("/namespaces", "", call.namespace) if call.namespace else None
    if entry is None:
        return None
    namespace = entry.object()
    meta = {field: value for field, value in namespace["metadata"].items() if field not in _HIDDEN}
    return {**namespace, "metadata": meta}
