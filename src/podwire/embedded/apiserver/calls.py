"""One API request, parsed: user, verb, resource and options.

The path forms are those of Kubernetes: ``/api/v1/...`` and ``/apis/GROUP/VERSION/...``, then
``[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE[/REST...]]]`` or ``watch/...`` in front (the old form).
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.http.message import Request, is_true

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


class UserInfo(msgspec.Struct, frozen=True):
    """The identity of the client that sends a request."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = {}

    @property
    def anonymous(self) -> bool:
        """Whether no credentials were shown."""
        return self.name == "system:anonymous"


class ResourcePath(msgspec.Struct, frozen=True):
    """The kind, namespace, object name and subresource in the path of a request."""

    kind: ResourceKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: tuple[str, ...] = ()
    watch: bool = False


class Call:
    """A request on a resource with its options; warnings collect here."""

    __slots__ = (
        "accept",
        "internal",
        "kind",
        "name",
        "namespace",
        "query",
        "request",
        "subresource",
        "target",
        "user",
        "warnings",
    )

    def __init__(self, request: Request, user: UserInfo, target: ResourcePath) -> None:
        self.request = request
        self.user = user
        self.target = target
        self.kind = target.kind
        self.namespace = target.namespace
        self.name = target.name
        self.subresource = target.subresource
        self.query = request.query()
        self.accept = request.headers.get("accept", "")
        self.internal = False
        """Whether the server calls itself; such a call invokes no webhook."""
        self.warnings: list[str] = []

    def annotate(self, key: str, value: str) -> None:
        """Adds an annotation to the audit event of the request; the first value of a key stays."""
        self.request.annotations.setdefault(key, value)

    @property
    def verb(self) -> str:
        """The verb in the sense of discovery and RBAC."""
        method = self.request.method
        if method in ("GET", "HEAD"):
            if self.name:
                return "get"
            return "watch" if self.watching else "list"
        if method == "DELETE":
            return "delete" if self.name else "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, "")

    @property
    def watching(self) -> bool:
        """Whether the request is a watch; for a single object only the old path ``watch/...`` is."""
        return self.target.watch or (not self.name and self.flag("watch"))

    def flag(self, name: str) -> bool:
        """A boolean query parameter, False when absent."""
        return is_true(self.query.get(name))

    def number(self, name: str) -> int | None:
        """A numeric query parameter, None when absent.

        Raises: ApiError 400 when it is no number.
        """
        text = self.query.get(name)
        if text is None:
            return None
        if not _INTEGER.fullmatch(text):
            raise failures.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        number = int(text)
        if not -(1 << 63) <= number < 1 << 63:
            raise failures.bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
        return number

    @property
    def dry_run(self) -> bool:
        """Whether nothing shall be stored.

        Raises: ApiError 400 for a value other than All.
        """
        values = [value for key, value in self.request.query_pairs() if key == "dryRun"]
        if unsupported := [value for value in values if value != "All"]:
            raise failures.bad_request(f'dryRun: Unsupported value: "{unsupported[0]}": supported values: "All"')
        return bool(values)

    @property
    def manager(self) -> str:
        """The field manager: as given, else the first part of the user agent."""
        manager = self.query.get("fieldManager", "")
        return manager or self.request.headers.get("user-agent", "").partition("/")[0] or "unknown"


def parse_target(segments: list[str], kinds: Mapping[Key, ResourceKind]) -> ResourcePath:
    """The kind, namespace, name and subresource in a path.

    Raises: NotFound when nothing is served there.
    """
    if segments[0] == "api" and len(segments) >= 3:
        group, version, rest = "", segments[1], segments[2:]
    elif segments[0] == "apis" and len(segments) >= 4:
        group, version, rest = segments[1], segments[2], segments[3:]
    else:
        raise failures.no_resource()
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and (group, version, rest[2]) in kinds:
        namespace, rest = rest[1], rest[2:]
    kind = kinds.get((group, version, rest[0]))
    if kind is None or (namespace and not kind.namespaced):
        raise failures.no_resource()
    name = rest[1] if len(rest) > 1 else ""
    if name and kind.namespaced and not namespace and kind.has_objects:
        raise failures.no_resource()
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and kind.subresource(subresource) is None:
        raise failures.no_resource()
    return ResourcePath(kind, namespace, name, subresource, tuple(rest[3:]), watch)


def delete_options(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """The delete options of a request: the body where there is one, otherwise the query, as in Kubernetes."""
    if call.request.body.strip():
        return body
    options: dict[str, Any] = {}
    for name in ("propagationPolicy", "orphanDependents"):
        if name in call.query:
            options[name] = call.query[name] if name == "propagationPolicy" else call.flag(name)
    grace = call.number("gracePeriodSeconds")
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if call.dry_run:
        options["dryRun"] = ["All"]
    return options
