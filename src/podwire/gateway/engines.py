"""What engines serve, from all kinds of objects together.

Ingress and Gateway API each hand over their own entry; the resources of both are published as one set, when all parts
have handed over theirs. A change of endpoints alone replaces only those.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.envoy.ads import DiscoveryServer
from podwire.gateway.envoy.clusters import endpoints
from podwire.gateway.envoy.resources import ENDPOINTS, MAKE_ORDER, BuiltResources, Resources, build_resources
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.snapshot import ResourceKey
from podwire.gateway.routes import EntryBackend, GatewayEntry


class EngineFeed:
    """The newest entry of each kind of object, on its way to the engines."""

    def __init__(self, server: DiscoveryServer, always: Resources, parts: Iterable[str]) -> None:
        """``always`` has resources that every engine gets, whatever the objects say; ``parts`` are awaited."""
        self._parts = frozenset(parts)
        self._server = server
        self._always = always
        self._built: dict[str, BuiltResources] = {}

    def publish(self, part: str, entry: GatewayEntry, settings: EngineSettings) -> None:
        """Takes the entry of a kind of object; nothing is sent when it did not change."""
        self._built[part] = build_resources(entry, settings, self._built.get(part, BuiltResources()))
        if self.complete:
            self._send()

    @property
    def complete(self) -> bool:
        """Whether all parts have handed over an entry; until then engines keep what they have."""
        return self._parts <= self._built.keys()

    def publish_endpoints(self, part: str, backends: Mapping[str, EntryBackend]) -> None:
        """Replaces the endpoints of backends that the entry of a part has."""
        built = self._built.get(part)
        if built is None or not backends:
            return
        known = {**built.entry.backends, **backends}
        shared = {key for key, backend in known.items() if any(share.key in backends for share in backend.shares)}
        changed = {key: endpoints(known[key], known) for key in {*backends, *shared}}
        built.resources[ENDPOINTS] |= changed
        self._built[part] = msgspec.structs.replace(built, entry=msgspec.structs.replace(built.entry, backends=known))
        if self.complete:
            self._server.publish_some(ENDPOINTS, changed)

    def refused(self) -> dict[ResourceKey, str] | None:
        """What engines say about the newest resources that they refuse; None while one has not answered."""
        return self._server.refused() if self.complete else None

    @property
    def entries(self) -> Mapping[str, GatewayEntry]:
        """The entry of each kind of object."""
        return {part: built.entry for part, built in self._built.items()}

    def _send(self) -> None:
        merged: Resources = {kind: dict(self._always.get(kind, {})) for kind in MAKE_ORDER}
        for built in self._built.values():
            for kind in MAKE_ORDER:
                merged[kind] |= built.resources[kind]
        self._server.publish(merged)
