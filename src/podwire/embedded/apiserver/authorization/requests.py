"""The action that an HTTP request asks for, parsed from its method, path and query alone.

A request is authorized before anything is looked up, so that a user without rights learns nothing about which kinds
and objects exist. Source: ``k8s.io/apiserver/pkg/endpoints/request/requestinfo.go``.
"""

from collections.abc import Mapping

from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.http.message import Request, is_true

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


def attributes_of(request: Request, segments: list[str]) -> RequestAttributes:
    """The action that a request asks for; ``segments`` are those of its path."""
    first = segments[0] if segments else ""
    if first == "api" and len(segments) > 2:
        return _on_resource(request, "", segments[1], segments[2:])
    if first == "apis" and len(segments) > 3:
        return _on_resource(request, segments[1], segments[2], segments[3:])
    return RequestAttributes(request.method.lower(), path=request.path)


def _on_resource(request: Request, group: str, version: str, rest: list[str]) -> RequestAttributes:
    verb = _VERBS.get(request.method, "")
    if rest[0] == "watch" and len(rest) > 1:
        verb, rest = "watch", rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
    resource = rest[0]
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    selected: Mapping[str, str] = {}
    if not name:
        verb, name, selected = _collection(request, verb)
    return RequestAttributes(verb, group, version, resource, subresource, namespace, name, selected=selected)


def _collection(request: Request, verb: str) -> tuple[str, str, Mapping[str, str]]:
    """Verb, name and selected fields of a request on all objects of a kind."""
    query = request.query() if verb in ("get", "watch", "delete") else {}
    if verb == "delete":
        return "deletecollection", "", {}
    if verb == "get":
        verb = "watch" if is_true(query.get("watch")) else "list"
    selected = _equal_fields(query.get("fieldSelector", ""))
    return verb, selected.get("metadata.name", ""), selected


def _equal_fields(selector: str) -> dict[str, str]:
    """The fields that a field selector compares with one value."""
    values: dict[str, str] = {}
    for term in selector.split(",") if selector else ():
        field, equals, value = term.partition("=")
        if equals and not field.endswith("!"):
            values[field] = value.removeprefix("=")
    return values
