"""Get and list: consistent pages, resourceVersion rules, and the requested form.

A list in pages is a snapshot: the objects at the time of the first page are kept, since stored objects never change,
and the continue token names the snapshot and the next object. The snapshot is kept for five minutes. After that, and
after a restart, the client gets 410 Expired with another token, which continues after the last page with the objects as
they are at that time, as in Kubernetes. A list costs one join of texts; a Table decodes the objects that it shows.
"""

import base64
import datetime
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from podwire.embedded.apiserver import bodies, conversion, failures, views
from podwire.embedded.apiserver.aggregation.status import hides
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.customform import parse_selection
from podwire.embedded.apiserver.fields import Filter
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.semantics import Semantics
from podwire.embedded.apiserver.store import Store, StoredObject
from podwire.errors import ApiError
from podwire.http.message import Response
from podwire.runtime.clock import Clock

_SNAPSHOTS = 200

_FORMAT = "podwire/v1"
_INCONSISTENT = -1
"""The version in a token that continues with the objects as they are now."""

_encode = msgspec.json.Encoder().encode


class _Token(msgspec.Struct, omit_defaults=True):
    v: str
    rv: int
    start: tuple[str, str]
    """Namespace and name of the next object."""
    id: int = 0
    """The snapshot."""

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(_encode(self)).decode().rstrip("=")


class _Snapshot(msgspec.Struct):
    version: int
    entries: Sequence[StoredObject]
    filter: Filter
    expires: float


class ObjectReader:
    """Answers reads."""

    def __init__(self, store: Store, semantics: Semantics, clock: Clock, *, snapshot_s: float) -> None:
        """A list that is read in pages stays readable for ``snapshot_s`` after its first page."""
        self._store = store
        self._semantics = semantics
        self._clock = clock
        self._snapshot_s = snapshot_s
        self._snapshots: OrderedDict[int, _Snapshot] = OrderedDict()
        self._numbers = itertools.count(int(clock.now().timestamp() * 1000))

    # -- get

    def get(self, call: Call) -> Response:
        """One object.

        Raises: NotFound.
        """
        entry = self._store.get(call.kind.table, call.namespace, call.name)
        if entry is None or hides(entry, call.request.headers.get("user-agent", "")):
            raise failures.not_found(call.kind, call.name)
        return self.render_entry(call, entry)

    def render_entry(self, call: Call, entry: StoredObject, status: int = 200) -> Response:
        """One stored object in the requested form."""
        view = views.choose(call.kind, call.accept, call.query.get("includeObject", ""))
        if view.form == views.PLAIN:
            return self.answer(view, views.plain(call.kind, entry), status)
        return self.render_object(call, views.decoded(call.kind, entry), status)

    def render_object(self, call: Call, obj: dict[str, Any], status: int = 200) -> Response:
        """One object, stored or not, in the form asked for."""
        view = views.choose(call.kind, call.accept, call.query.get("includeObject", ""))
        obj = conversion.view(call.kind, obj)
        if view.form == views.TABLE:
            obj = self.table(view, [obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")})
        elif view.form == views.METADATA:
            obj = views.metadata_only(obj)
        return self.answer(view, _encode(obj), status)

    def answer(self, view: views.View, body: bytes, status: int = 200) -> Response:
        """A body of JSON as the answer, in YAML if the client requested YAML."""
        if view.yaml:
            return Response(status, bodies.render_yaml(body), bodies.YAML)
        return Response(status, body)

    def table(self, view: views.View, objects: Sequence[dict[str, Any]], meta: dict[str, Any]) -> dict[str, Any]:
        """A Table of objects."""
        table = self._semantics.table(view.kind, objects, self.now(), view.include)
        table["metadata"] = meta
        if view.headless:
            table["columnDefinitions"] = []
        return table

    def now(self) -> datetime.datetime:
        """The instant that ages are counted from."""
        return self._clock.now()

    # -- list

    def list(self, call: Call) -> Response:
        """The objects that a request selects.

        Raises: ApiError 400 for options that contradict, 410 for a token or version that is gone.
        """
        view = views.choose(call.kind, call.accept, call.query.get("includeObject", ""))
        limit = max(0, call.number("limit") or 0)
        token = call.query.get("continue", "")
        if token:
            version, entries, selection = self._resume(call, token)
        else:
            self._check_version(call)
            selection = parse_selection(call.kind, call.query, call.namespace, call.name)
            version = self._version(call)
            entries = self.select_converted(call.kind, selection)
        more, remaining = "", None
        if limit and len(entries) > limit:
            rest = entries[limit:]
            entries = entries[:limit]
            more = self._keep(version, rest, selection)
            remaining = len(rest) if not selection.selective else None
        body = self._render_list(view, version, entries, more, remaining)
        return self.answer(view, body)

    def _render_list(
        self, view: views.View, version: int, entries: Sequence[StoredObject], more: str, remaining: int | None
    ) -> bytes:
        views.need(view.kind, entries)
        if view.form == views.PLAIN:
            return views.join_list(view.kind, views.list_head(view.kind, version, more, remaining), entries)
        if view.form == views.METADATA:
            return views.metadata_list(view.kind, views.list_meta(version, more, remaining), entries)
        meta = views.list_meta(version, more, remaining)
        objects = [views.decoded(view.kind, entry) for entry in entries]
        return _encode(self.table(view, objects, meta))

    def select_converted(self, kind: ResourceKind, selection: Filter) -> Sequence[StoredObject]:
        """The entries that a filter selects, also by fields of objects that a webhook converts.

        Raises: Unconverted.
        """
        if selection.read is not None:
            views.need(kind, self.select(kind.table, selection.coarse))
        return self.select(kind.table, selection)

    def select(self, table: str, selection: Filter) -> Sequence[StoredObject]:
        """The entries that a filter selects, by namespace and name."""
        if selection.name and selection.namespace:
            entry = self._store.get(table, selection.namespace, selection.name)
            return [entry] if entry is not None and selection.matches(entry) else []
        entries = self._store.entries(table, selection.namespace)
        return [entry for entry in entries if selection.matches(entry)] if selection.selective else entries

    def _check_version(self, call: Call) -> None:
        version_text = call.query.get("resourceVersion", "")
        match = call.query.get("resourceVersionMatch", "")
        if "sendInitialEvents" in call.query:
            raise _forbidden_match("sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list")
        if not match and version_text in ("", "0"):
            return
        if match and not version_text:
            raise _forbidden_match("resourceVersionMatch is forbidden unless resourceVersion is provided")
        version = parse_version(version_text)
        if match not in ("", "Exact", "NotOlderThan"):
            raise _forbidden_match(f'resourceVersionMatch: Unsupported value: "{match}"')
        if match == "Exact" and version == 0:
            raise _forbidden_match('resourceVersionMatch is forbidden with value "Exact" for resourceVersion "0"')
        if version > self._store.committed:
            raise ApiError(
                504, "Timeout", f"Too large resource version: {version}, current: {self._store.committed}",
                {"retryAfterSeconds": 1, "causes": [
                    {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
            )  # fmt: skip
        exact = match == "Exact" or (not match and version > 0 and bool(call.number("limit")))
        if exact and version < self._store.table(call.kind.table).version:
            raise failures.expired(f"The provided resource version {version} is not available any more")

    def _keep(self, version: int, entries: Sequence[StoredObject], selection: Filter) -> str:
        now = self._clock.monotonic()
        while self._snapshots and (
            len(self._snapshots) >= _SNAPSHOTS or next(iter(self._snapshots.values())).expires < now
        ):
            self._snapshots.popitem(last=False)
        number = next(self._numbers)
        self._snapshots[number] = _Snapshot(version, entries, selection, now + self._snapshot_s)
        return str(_Token(_FORMAT, version, entries[0].key, number))

    def _resume(self, call: Call, token: str) -> tuple[int, Sequence[StoredObject], Filter]:
        if call.query.get("resourceVersion", "") not in ("", "0"):
            raise failures.bad_request("specifying resource version is not allowed when using continue")
        decoded = _parse_token(token)
        if decoded.rv == _INCONSISTENT:
            selection = parse_selection(call.kind, call.query, call.namespace, call.name)
            entries = [e for e in self.select_converted(call.kind, selection) if e.key >= decoded.start]
            return self._version(call), entries, selection
        snapshot = self._snapshots.get(decoded.id)
        if snapshot is None or snapshot.expires < self._clock.monotonic():
            raise failures.ExpiredToken(str(_Token(_FORMAT, _INCONSISTENT, decoded.start)))
        return snapshot.version, snapshot.entries, snapshot.filter

    def _version(self, call: Call) -> int:
        """The version of a list of the present objects."""
        return max(self._store.committed, self._store.table(call.kind.table).version)


def _parse_token(token: str) -> _Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=_Token)
    except (ValueError, msgspec.DecodeError) as failure:
        raise failures.bad_request("continue key is not valid") from failure


def parse_version(text: str) -> int:
    """A resourceVersion as a number; 0 for none.

    Raises: ApiError 400.
    """
    if not text:
        return 0
    if not text.isdecimal():
        raise failures.bad_request(f'resourceVersion: Invalid value: "{text}": must be a number')
    return int(text)


def _forbidden_match(problem: str) -> ApiError:
    return ApiError(422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: {problem}')
