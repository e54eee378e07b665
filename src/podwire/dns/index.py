"""The records of all Services, kept current when Services, EndpointSlices, Namespaces and Pods change. Pure.

Every Service has one :class:`~podwire.dns.records.ServiceRecords`. A changed slice costs its own endpoints: the records
of the other slices, host names and reverse names stay as they are. Readers may run in another thread than the writer:
each change replaces dictionary values, one after the other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from podwire.dns.names import address_bytes
from podwire.dns.records import (
    HostAddress,
    ReadyEndpoint,
    ServiceFacts,
    ServiceRecords,
    SliceRecords,
    plan_slice,
    read_facts,
)
from podwire.model.pod import Pod
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice, Service

ServiceKey = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class _ServiceState:
    """The facts behind the records of one Service; ``counts`` has the number of slices of each address."""

    facts: ServiceFacts | None = None
    slices: dict[str, SliceRecords] = field(default_factory=dict)
    hosts: dict[str, tuple[HostAddress, ...]] = field(default_factory=dict)
    counts: dict[bytes, int] = field(default_factory=dict)
    overlaps: int = 0


class RecordIndex:
    """The records that a zone answers from.

    ``pod_names`` gives endpoints without a hostname the names of their pods; with ``ignore_empty`` a Service without
    ready endpoints does not exist.
    """

    def __init__(self, *, pod_names: bool = False, ignore_empty: bool = False) -> None:
        self._pod_names = pod_names
        self._ignore_empty = ignore_empty
        self._states: dict[ServiceKey, _ServiceState] = {}
        self._slice_owner: dict[str, ServiceKey] = {}
        self._pods: dict[str, tuple[str, tuple[bytes, ...]]] = {}
        self._pod_addresses: dict[tuple[str, bytes], int] = {}
        self._pod_namespaces: dict[bytes, str] = {}
        self.records: dict[ServiceKey, ServiceRecords] = {}
        self.reverse: dict[bytes, dict[tuple[ServiceKey, str], None]] = {}
        """The Services and host names of each packed address."""
        self.external: dict[bytes, ServiceKey] = {}
        """The Service of each packed address outside of the cluster."""
        self.namespaces: frozenset[str] = frozenset()
        self.synced = False
        """Whether all collections were listed once."""
        self.serial = 0
        """The time of the last change, in seconds."""
        self.on_service: Callable[[ServiceKey], None] = lambda _owner: None
        """Called with each Service whose records changed."""
        self.on_namespace: Callable[[str], None] = lambda _name: None
        """Called with each namespace that came or went."""

    def mark_synced(self) -> None:
        """Marks all collections as listed: from now on a missing name is NXDOMAIN."""
        self.synced = True

    def has_pod(self, namespace: str, packed: bytes) -> bool:
        """Whether a live pod of the namespace has an address."""
        return (namespace, packed) in self._pod_addresses

    def pod_namespace(self, packed: bytes) -> str:
        """The namespace of the live pod that got an address last; empty when there is none."""
        return self._pod_namespaces.get(packed, "")

    def service_count(self) -> int:
        """The number of Services with records."""
        return len(self.records)

    def set_service(self, key: str, service: Service | None, now_s: int) -> bool:
        """Sets a new, changed or (None) deleted Service; whether an answer changed."""
        owner = _service_key(key)
        facts = read_facts(service) if service is not None else None
        state = self._states.get(owner) or _ServiceState()
        if state.facts == facts:
            return False
        state.facts = facts
        return self._refresh(owner, state, now_s)

    def set_slice(self, key: str, endpoint_slice: EndpointSlice | None, now_s: int) -> bool:
        """Sets a new, changed or (None) deleted EndpointSlice; whether an answer changed."""
        before = self._slice_owner.pop(key, None)
        name = endpoint_slice.metadata.labels.get(SERVICE_NAME_LABEL, "") if endpoint_slice is not None else ""
        after = (_service_key(key)[0], name) if name else None
        changed = False
        if before is not None and before != after:
            changed = self._replace_slice(before, key, None, now_s)
        if after is not None and endpoint_slice is not None:
            self._slice_owner[key] = after
            records = plan_slice(endpoint_slice, pod_names=self._pod_names)
            changed = self._replace_slice(after, key, records, now_s) or changed
        return changed

    def set_namespace(self, name: str, *, present: bool) -> bool:
        """Sets a new or deleted Namespace; whether an answer changed."""
        if present == (name in self.namespaces):
            return False
        self.namespaces = self.namespaces | {name} if present else self.namespaces - {name}
        self.on_namespace(name)
        return True

    def set_pod(self, key: str, pod: Pod | None) -> bool:
        """Sets a new, changed or (None) deleted Pod, with its addresses of both families; whether an answer changed."""
        after = _live_addresses(pod)
        namespace, before = self._pods.get(key, (_service_key(key)[0], ()))
        if before == after:
            return False
        for packed in before:
            self._count_pod((namespace, packed), -1)
        for packed in after:
            self._count_pod((namespace, packed), 1)
        if after:
            self._pods[key] = (namespace, after)
        else:
            self._pods.pop(key, None)
        return True

    def _count_pod(self, key: tuple[str, bytes], step: int) -> None:
        count = self._pod_addresses.get(key, 0) + step
        if count:
            self._pod_addresses[key] = count
            self._pod_namespaces[key[1]] = key[0]
        else:
            self._pod_addresses.pop(key, None)
            if self._pod_namespaces.get(key[1]) == key[0]:
                del self._pod_namespaces[key[1]]

    def _replace_slice(self, owner: ServiceKey, key: str, after: SliceRecords | None, now_s: int) -> bool:
        state = self._states.get(owner) or _ServiceState()
        before = state.slices.get(key)
        if before == after:
            return False
        if after is None:
            state.slices.pop(key, None)
        else:
            state.slices[key] = after
        old, new = before or SliceRecords(), after or SliceRecords()
        same_ports = old.ports == new.ports
        removed, added = set(old.ready), dict.fromkeys(new.ready)
        for endpoint in old.ready:
            if endpoint not in added or not same_ports:
                self._remove_host(state, key, endpoint)
        for endpoint in added:
            if endpoint not in removed or not same_ports:
                state.hosts[endpoint.host] = (
                    *state.hosts.get(endpoint.host, ()),
                    HostAddress(key, endpoint.address, new.ports),
                )
        gone, come = set(old.v4 + old.v6), set(new.v4 + new.v6)
        self._count_addresses(state, gone - come, -1)
        self._count_addresses(state, come - gone, 1)
        self._index_endpoints(owner, state, removed - added.keys(), added.keys() - removed)
        return self._refresh(owner, state, now_s)

    @staticmethod
    def _remove_host(state: _ServiceState, key: str, endpoint: ReadyEndpoint) -> None:
        rest = tuple(
            entry
            for entry in state.hosts.get(endpoint.host, ())
            if (entry.slice_key, entry.address) != (key, endpoint.address)
        )
        if rest:
            state.hosts[endpoint.host] = rest
        else:
            state.hosts.pop(endpoint.host, None)

    @staticmethod
    def _count_addresses(state: _ServiceState, addresses: Iterable[bytes], step: int) -> None:
        counts = state.counts
        for packed in addresses:
            before = counts.get(packed, 0)
            if before + step:
                counts[packed] = before + step
            else:
                del counts[packed]
            state.overlaps += (before + step > 1) - (before > 1)

    def _refresh(self, owner: ServiceKey, state: _ServiceState, now_s: int) -> bool:
        before = self.records.get(owner)
        if state.facts is None and not state.slices:
            self._states.pop(owner, None)
            self.records.pop(owner, None)
            after = None
        else:
            self._states[owner] = state
            after = self.records[owner] = ServiceRecords(
                state.facts,
                tuple(state.slices[key] for key in sorted(state.slices)),
                state.hosts,
                overlapping=state.overlaps > 0,
                ignore_empty=self._ignore_empty,
            )
        old, new = before.virtual if before is not None else (), after.virtual if after is not None else ()
        for packed in old:
            if packed not in new:
                self._remove_reverse(packed, (owner, ""))
        for packed in new:
            if packed not in old:
                self._add_reverse(packed, (owner, ""))
        self._index_external(owner, before.external if before is not None else (), after.external if after else ())
        self.serial = now_s
        self.on_service(owner)
        return True

    def _index_external(self, owner: ServiceKey, old: tuple[bytes, ...], new: tuple[bytes, ...]) -> None:
        for packed in old:
            if packed not in new and self.external.get(packed) == owner:
                del self.external[packed]
        for packed in new:
            self.external[packed] = owner

    def _index_endpoints(
        self,
        owner: ServiceKey,
        state: _ServiceState,
        removed: Iterable[ReadyEndpoint],
        added: Iterable[ReadyEndpoint],
    ) -> None:
        for endpoint in removed:
            if all(entry.address != endpoint.address for entry in state.hosts.get(endpoint.host, ())):
                self._remove_reverse(endpoint.address, (owner, endpoint.host))
        for endpoint in added:
            self._add_reverse(endpoint.address, (owner, endpoint.host))

    def _remove_reverse(self, packed: bytes, entry: tuple[ServiceKey, str]) -> None:
        rest = {other: None for other in self.reverse.get(packed, {}) if other != entry}
        if rest:
            self.reverse[packed] = rest
        else:
            self.reverse.pop(packed, None)

    def _add_reverse(self, packed: bytes, entry: tuple[ServiceKey, str]) -> None:
        self.reverse[packed] = self.reverse.get(packed, {}) | {entry: None}


def _service_key(key: str) -> ServiceKey:
    namespace, _, name = key.partition("/")
    return namespace, name


def _live_addresses(pod: Pod | None) -> tuple[bytes, ...]:
    if pod is None or pod.metadata.deletion_timestamp or pod.status.phase in ("Succeeded", "Failed", "Unknown"):
        return ()
    return tuple(packed for text in pod.addresses if (packed := address_bytes(text)))
