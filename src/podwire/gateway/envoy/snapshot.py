"""What engines should have, and what one of them has: which resources to send next, in which order.

Make before break: certificates, filters, clusters and endpoints first; when the engine has accepted them, listeners and
tables that name them, then the virtual hosts of those tables; when it has accepted those, what is no longer named goes,
virtual hosts before all else. Listeners go earlier, with the response that brings others: an engine removes before it
adds, and a new listener may have the address of one that goes. An engine asks for certificates, filters and tables by
name and for virtual hosts of all tables at once; it takes those of a table from when it has accepted the table, and
forgets them with it.

A response that the engine refuses (NACK) leaves its last good resources in force. Of several resources in a refused
response, each half is sent again by itself, until it is known which of them the engine refuses; those are not sent
again until they change. Until then nothing is removed that the last good ones may name, and what names a certificate, a
filter or a cluster of which the engine accepted no version waits. A value that is no message of its type counts as
refused too, and keeps nothing else back.

Cost: a change looks at what changed, however many resources there are, but for one comparison of identity for each in
:meth:`ResourceSnapshot.replace`. A refusal among n resources takes about 2 log2(n) more responses.

Source: Envoy documentation, "xDS protocol", sections "Incremental xDS" and "Eventual consistency considerations".
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import msgspec
from google.protobuf import json_format

from podwire.gateway.envoy.clusters import Json
from podwire.gateway.envoy.messages import Packed, length_prefixed, pack
from podwire.gateway.envoy.resources import (
    CLUSTER,
    ENDPOINTS,
    FILTER,
    HOST,
    LISTENER,
    MAKE_ORDER,
    ROUTES,
    SECRET,
    Resources,
)

_FIRST = (SECRET, FILTER, CLUSTER, ENDPOINTS)
_SECOND = (LISTENER, ROUTES)
_THIRD = (HOST,)
_NAMING = (*_SECOND, *_THIRD)
"""Types of resources that name others."""
_WILDCARD = (CLUSTER, LISTENER, HOST)
"""Types of which an engine asks for all."""
_REMEMBERED = 1000
"""Changes of a type that an engine's state may be behind; after more it looks at all resources."""
ResourceKey = tuple[str, str]
"""The type and the name of a resource."""


class ResourceSnapshot:
    """The resources that every engine should have; those that stay the same are packed once."""

    def __init__(self) -> None:
        self._packed: dict[str, dict[str, Packed]] = {kind: {} for kind in MAKE_ORDER}
        self._values: dict[str, dict[str, Json]] = {kind: {} for kind in MAKE_ORDER}
        """The newest values, also those that could not be read."""
        self._changes: deque[tuple[str, tuple[str, ...]]] = deque(maxlen=_REMEMBERED)
        self.position = 0
        """Counts changes of a type."""
        self.unreadable: dict[ResourceKey, str] = {}
        """The newest resources that are no messages of their type, and why; engines keep their last ones."""
        self.complete = False
        """Whether there were resources yet; before, nothing is known, and engines keep what they have."""

    def replace(self, resources: Resources) -> bool:
        """Takes new resources; whether anything changed."""
        before, was_complete, self.complete = self.position, self.complete, True
        for kind in MAKE_ORDER:
            self._replace_kind(kind, resources.get(kind, {}))
        return self.position > before or not was_complete

    def _replace_kind(self, kind: str, values: dict[str, Json]) -> None:
        known = self._values[kind]
        gone = [name for name in known if name not in values] if not known.keys() <= values.keys() else []
        fresh = {name: value for name, value in values.items() if known.get(name) is not value}
        self._values[kind] = dict(values)
        for name in gone:
            self._packed[kind].pop(name, None)
            self.unreadable.pop((kind, name), None)
        self._note(kind, (*gone, *self._pack_changes(kind, fresh)))

    def _pack_changes(self, kind: str, values: dict[str, Json]) -> list[str]:
        """Packs values; the names of those of which the message changed. One that cannot be read changes none."""
        packed = self._packed[kind]
        changed = []
        for name, value in values.items():
            last = packed.get(name)
            self.unreadable.pop((kind, name), None)
            if last is not None and last.value == value:
                continue
            try:
                packed[name] = pack(kind, value, last)
            except json_format.ParseError as problem:
                self.unreadable[kind, name] = str(problem)
            else:
                changed.append(name)
        return changed

    def replace_some(self, kind: str, values: dict[str, Json]) -> bool:
        """Takes some resources of a type; whether anything changed."""
        self._values[kind] |= values
        changed = self._pack_changes(kind, values)
        self._note(kind, tuple(changed))
        return bool(changed)

    def _note(self, kind: str, names: tuple[str, ...]) -> None:
        if names:
            self._changes.append((kind, names))
            self.position += 1

    def changes_since(self, position: int) -> list[tuple[str, tuple[str, ...]]] | None:
        """The names of each type that changed since a position, the oldest first; None if that is too long ago."""
        count = self.position - position
        if count > len(self._changes):
            return None
        return list(islice(self._changes, len(self._changes) - count, None))

    def of(self, kind: str) -> dict[str, Packed]:
        """The resources of a type by name."""
        return self._packed[kind]


class ResourceUpdate(msgspec.Struct, frozen=True):
    """Resources of one type to send, and names of those to remove."""

    kind: str
    nonce: str
    resources: dict[str, Packed]
    removed: tuple[str, ...] = ()


class EngineRefusal(msgspec.Struct, frozen=True):
    """An engine refused a resource (or removals, without a name); ``message`` is its own text."""

    kind: str
    names: tuple[str, ...]
    message: str


class _TypeState:
    """What one engine has of a type: subscriptions, and the version that was sent of each name."""

    def __init__(self, *, wildcard: bool) -> None:
        self.wildcard = wildcard
        self.asked = False
        self.names: set[str] = set()
        self.sent: dict[str, str] = {}
        self.accepted: set[str] = set()
        """The names of which the engine has a version."""
        self.pending: ResourceUpdate | None = None
        self.suspects: list[tuple[str, ...]] = []
        """Groups of names that are sent again by themselves, since a response with them was refused."""
        self.refused: dict[str, tuple[str, str]] = {}
        """The version of each refused resource, and what the engine said."""
        self.unsettled: dict[str, None] = {}
        """The names of which the engine may have another version than it should have, or none, or one too much."""

    def wants(self, name: str) -> bool:
        return self.wildcard or name in self.names

    def unsettle(self, names: Iterable[str]) -> None:
        self.unsettled |= dict.fromkeys(names)

    def settle(self, present: dict[str, Packed]) -> None:
        """Forgets the names of which the engine was sent what there is."""
        self.unsettled = {name: None for name in self.unsettled if not self._is_settled(name, present.get(name))}

    def _is_settled(self, name: str, newest: Packed | None) -> bool:
        sent = self.sent.get(name)
        if newest is not None:
            return sent == newest.version
        return not sent and (name in self.sent or name not in self.names)

    def forget(self, names: Iterable[str]) -> None:
        """Takes it that the engine has none of these."""
        for name in names:
            self.sent.pop(name, None)
            self.unsettled[name] = None


class EngineState:
    """One engine's side of the protocol, without the stream: requests in, responses out."""

    def __init__(self, snapshot: ResourceSnapshot, on_refusal: Callable[[EngineRefusal], None]) -> None:
        self._snapshot = snapshot
        self._on_refusal = on_refusal
        self._types = {kind: _TypeState(wildcard=kind in _WILDCARD) for kind in MAKE_ORDER}
        self._nonce = 0
        for kind, state in self._types.items():
            state.unsettle(snapshot.of(kind))
        self._position = snapshot.position
        """The changes of the snapshot that were looked at."""

    def request(
        self,
        kind: str,
        *,
        subscribe: Iterable[str] = (),
        unsubscribe: Iterable[str] = (),
        versions: dict[str, str] | None = None,
        nonce: str = "",
        error: str = "",
    ) -> None:
        """Takes a request of the engine: new subscriptions, and the answer to the response with the nonce."""
        state = self._types.get(kind)
        if state is None:
            return
        added = set(subscribe) - {"*"} if kind != HOST else set()
        if not state.asked:
            state.asked = True
            state.sent |= versions or {}
            state.accepted |= (versions or {}).keys()
            state.unsettle(versions or ())
        elif kind == ROUTES:
            self._forget_hosts(added)
        state.forget(sorted(added))
        state.names |= added
        dropped = tuple(unsubscribe)
        state.names.difference_update(dropped)
        state.forget(dropped)
        pending = state.pending
        if pending is not None and nonce == pending.nonce:
            state.pending = None
            self._learn(state, pending, error)

    def _forget_hosts(self, tables: set[str]) -> None:
        """Takes it that the engine has no virtual hosts of tables that it asks for anew."""
        hosts = self._types[HOST]
        hosts.forget([name for name in hosts.sent if _table(name) in tables])

    def _learn(self, state: _TypeState, answered: ResourceUpdate, error: str) -> None:
        names = tuple(answered.resources)
        for name in answered.removed if error else (*names, *answered.removed):
            state.refused.pop(name, None)
        if not error:
            state.accepted.update(names)
            state.accepted.difference_update(answered.removed)
            return
        if len(names) > 1:
            middle = len(names) // 2
            state.suspects = [names[:middle], names[middle:], *state.suspects]
            return
        for name in names:
            state.refused[name] = (answered.resources[name].version, error)
        self._on_refusal(EngineRefusal(kind=answered.kind, names=names, message=error))

    @property
    def refused(self) -> dict[ResourceKey, str]:
        """What the engine said about those of the newest resources that it refuses."""
        return {
            (kind, name): message
            for kind, state in self._types.items()
            for name, (version, message) in state.refused.items()
            if name in self._snapshot.of(kind) and self._snapshot.of(kind)[name].version == version
        }

    def responses(self) -> list[ResourceUpdate]:
        """What to send now; nothing more until the engine has answered."""
        if not self._snapshot.complete:
            return []
        first = [response for kind in _FIRST if (response := self._changes(kind))]
        if first or self._waiting(_FIRST) or not self._clusters_have_endpoints():
            return first
        for kinds in (_SECOND, _THIRD):
            changes = [response for kind in kinds if (response := self._changes(kind))]
            if changes or self._waiting(kinds):
                return changes
        hosts = self._removals(HOST)
        if hosts is not None:
            return [hosts]
        has_earlier = any(self._types[kind].refused for kind in _NAMING)
        has_earlier |= any(kind in _NAMING for kind, _ in self._snapshot.unreadable)
        removed = _NAMING if has_earlier else MAKE_ORDER
        return [response for kind in reversed(removed) if (response := self._removals(kind))]

    @property
    def in_step(self) -> bool:
        """Whether the engine has answered for everything it should have."""
        return (
            self._snapshot.complete
            and not self._waiting(MAKE_ORDER)
            and (self._types[HOST].asked or not self._types[ROUTES].names)
            and not any(self._outdated(kind) or self._types[kind].suspects for kind in MAKE_ORDER)
        )

    def _waiting(self, kinds: Iterable[str]) -> bool:
        return any(self._types[kind].pending is not None for kind in kinds)

    def _clusters_have_endpoints(self) -> bool:
        """Whether every cluster that was accepted got its endpoints; a cluster without them is still warming."""
        clusters, endpoints = self._types[CLUSTER], self._types[ENDPOINTS]
        self._catch_up()
        return not any(
            name in clusters.sent
            and name not in endpoints.sent
            and name in self._snapshot.of(ENDPOINTS)
            and name not in clusters.refused
            for name in endpoints.unsettled
        )

    def _catch_up(self) -> None:
        """Takes the names that changed in the snapshot since the last time."""
        if self._position == self._snapshot.position:
            return
        changes = self._snapshot.changes_since(self._position)
        self._position = self._snapshot.position
        if changes is None:
            changes = [(kind, (*state.sent, *self._snapshot.of(kind))) for kind, state in self._types.items()]
        for kind, names in changes:
            self._types[kind].unsettle(names)

    def _outdated(self, kind: str) -> dict[str, Packed]:
        """The resources that the engine should have and was not sent."""
        self._catch_up()
        state, present = self._types[kind], self._snapshot.of(kind)
        if not state.asked or not state.unsettled:
            return {}
        state.settle(present)
        outdated = {
            name: present[name]
            for name in sorted(state.unsettled)
            if name in present and state.sent.get(name) != present[name].version and self._wants(kind, name)
        }
        if outdated and kind in _NAMING:
            absent = [length_prefixed(name.encode()) for name in self._absent()]
            outdated = {
                name: packed
                for name, packed in outdated.items()
                if not any(text in packed.message.value for text in absent)
            }
        return outdated

    def _absent(self) -> Iterable[str]:
        """The certificates, filters and clusters that the engine should have, and of which it has no version."""
        for kind in (SECRET, FILTER, CLUSTER):
            state, present = self._types[kind], self._snapshot.of(kind)
            yield from (name for name in state.refused if name in present and name not in state.accepted)
            yield from (name for own, name in self._snapshot.unreadable if own == kind and name not in present)

    def _wants(self, kind: str, name: str) -> bool:
        """Whether the engine asks for a resource; for a virtual host, once it has accepted the table."""
        if kind != HOST:
            return self._types[kind].wants(name)
        tables, table = self._types[ROUTES], _table(name)
        return table in tables.names and bool(tables.sent.get(table)) and table not in tables.refused

    def _changes(self, kind: str) -> ResourceUpdate | None:
        state = self._types[kind]
        if state.pending is not None:
            return None
        while state.suspects:
            names = state.suspects.pop(0)
            group = {name: packed for name, packed in self._snapshot.of(kind).items() if name in names}
            if group:
                state.sent |= {name: packed.version for name, packed in group.items()}
                return self._respond(kind, group, ())
        changed = self._outdated(kind)
        present = self._snapshot.of(kind)
        missing = tuple(
            sorted(n for n in state.unsettled if n in state.names and n not in present and n not in state.sent)
        )
        if not changed and not missing:
            return None
        state.sent |= {name: packed.version for name, packed in changed.items()} | dict.fromkeys(missing, "")
        return self._respond(kind, changed, self._take_gone(kind) if kind == LISTENER else missing)

    def _removals(self, kind: str) -> ResourceUpdate | None:
        if self._types[kind].pending is not None:
            return None
        removed = self._take_gone(kind)
        return self._respond(kind, {}, removed) if removed else None

    def _take_gone(self, kind: str) -> tuple[str, ...]:
        """The names that the engine has and should not have; it counts as told."""
        state, present = self._types[kind], self._snapshot.of(kind)
        removed = tuple(sorted(name for name in state.unsettled if name not in present and state.sent.get(name)))
        for name in removed:
            del state.sent[name]
            if name in state.names:
                state.sent[name] = ""
        return removed

    def _respond(self, kind: str, resources: dict[str, Packed], removed: tuple[str, ...]) -> ResourceUpdate:
        self._nonce += 1
        response = ResourceUpdate(kind=kind, nonce=str(self._nonce), resources=resources, removed=removed)
        self._types[kind].pending = response
        return response


def _table(host: str) -> str:
    """The resource name of the table of a virtual host."""
    return host.rpartition("/")[0]
