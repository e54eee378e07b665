"""The options of a connection to a pod, Service or node, as the object that admission reviews.

Clients send options as query parameters; changes by admission are written back to the query.
Sources: ``PodExecOptions`` and its like in ``k8s.io/api/core/v1``, ``k8s.io/apiserver/pkg/endpoints/handlers/rest.go``.
"""

from typing import Any
from urllib.parse import urlencode

from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.proxytarget import proxy_path
from podwire.http.message import Request

Object = dict[str, Any]

CONNECTIONS = frozenset({"exec", "attach", "portforward", "proxy"})
"""The subresources that are connections."""
_FLAGS = ("stdin", "stdout", "stderr", "tty")


def read_options(call: Call) -> Object:
    """The options of a connection, without those that are not set."""
    sub = call.kind.subresource(call.subresource)
    options: Object = {"kind": sub.kind if sub is not None else "", "apiVersion": "v1"}
    if call.subresource == "proxy":
        path = proxy_path(call)[1]
        return {**options, "path": path} if path else options
    if call.subresource == "portforward":
        ports = [int(text) for value in _values(call, "ports") for text in value.split(",") if text.isdecimal()]
        return {**options, "ports": ports} if ports else options
    options |= {name: True for name in _FLAGS if call.flag(name)}
    if call.query.get("container"):
        options["container"] = call.query["container"]
    command = _values(call, "command")
    return {**options, "command": command} if command else options


def _values(call: Call, name: str) -> list[str]:
    return [value for key, value in call.request.query_pairs() if key == name]


def with_options(call: Call, options: Object) -> Call:
    """The call with the options after admission; the path of a proxy stays unchanged."""
    if call.subresource == "proxy":
        return call
    pairs: list[tuple[str, str]] = [(name, "true") for name in _FLAGS if options.get(name)]
    pairs += [("container", options["container"])] if options.get("container") else []
    pairs += [("command", str(argument)) for argument in options.get("command") or ()]
    pairs += [("ports", str(port)) for port in options.get("ports") or ()]
    old = call.request
    request = Request(old.method, f"{old.raw_path}?{urlencode(pairs)}", old.headers, old.body)
    request.peer, request.peer_certificate, request.repeated = old.peer, old.peer_certificate, old.repeated
    return Call(request, call.user, call.target)
