"""The variable ``authorizer``: an authorization check that an expression builds in steps.

The value of each step is a map with the fields of the check so far. ``check`` calls the function ``decide`` of the
evaluation. Source:
``k8s.io/apiserver/pkg/cel/library/authz.go``.
"""

from typing import Any

from podwire.embedded.apiserver.cel.signature import Signature, Value


def authorizer(user: dict[str, Any], request_resource: dict[str, str]) -> Value:
    """The value of ``authorizer``: for the user of a request, and the resource that the request is about."""
    value = {"kind": "Authorizer", "user": user}
    return {**value, "requestResource": {**value, **request_resource, "kind": "ResourceCheck"}}


def _service_account(value: Value, namespace: str, name: str) -> Value:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    user = {"username": f"system:serviceaccount:{namespace}:{name}", "groups": groups}
    return {"kind": "Authorizer", "user": user}


def _step(kind: str, field: str) -> Any:
    return lambda value, text: {
        **{key: known for key, known in value.items() if key != "requestResource"}, "kind": kind, field: text,
    }  # fmt: skip


def _checked(name: str, field: str) -> Signature:
    return Signature(name, ("ResourceCheck", "string"), "ResourceCheck", _step("ResourceCheck", field), method=True)


FUNCTIONS: tuple[Signature, ...] = (
    Signature("path", ("Authorizer", "string"), "PathCheck", _step("PathCheck", "path"), method=True),
    Signature("group", ("Authorizer", "string"), "GroupCheck", _step("GroupCheck", "group"), method=True),
    Signature("serviceAccount", ("Authorizer", "string", "string"), "Authorizer", _service_account, method=True),
    Signature("resource", ("GroupCheck", "string"), "ResourceCheck", _step("ResourceCheck", "resource"), method=True),
    _checked("subresource", "subresource"),
    _checked("namespace", "namespace"),
    _checked("name", "name"),
    _checked("fieldSelector", "fieldSelector"),
    _checked("labelSelector", "labelSelector"),
    Signature("check", ("PathCheck", "string"), "Decision", None, method=True),
    Signature("check", ("ResourceCheck", "string"), "Decision", None, method=True),
    Signature("allowed", ("Decision",), "bool", lambda value: value["allowed"], method=True),
    Signature("reason", ("Decision",), "string", lambda value: value["reason"], method=True),
    Signature("errored", ("Decision",), "bool", lambda value: bool(value.get("error")), method=True),
    Signature("error", ("Decision",), "string", lambda value: value.get("error") or "", method=True),
)
