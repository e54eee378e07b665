"""The records of all Services, kept current when Services, EndpointSlices, Namespaces and Pods change. Pure.

Every Service has one :class:`~podwire.dns.records.ServiceRecords`, computed again when the Service or one of its slices
changes; other Services are not affected. Readers may run in another thread than the writer: each change replaces one
dictionary value.
"""

from collections.abc import Iterable

from podwire.dns.names import address_bytes
from podwire.dns.records import ServiceRecords, plan_service
from podwire.model.pod import Pod
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice, Service

ServiceKey = tuple[str, str]
"""Namespace and name."""


class RecordIndex:
    """The records that a zone answers from.

    ``pod_names`` gives endpoints without a hostname the names of their pods; with ``ignore_empty`` a Service without
    ready endpoints does not exist.
    """

    def __init__(self, *, pod_names: bool = False, ignore_empty: bool = False) -> None:
        self._pod_names = pod_names
        self._ignore_empty = ignore_empty
        self._services: dict[ServiceKey, Service] = {}
        self._slices: dict[ServiceKey, dict[str, EndpointSlice]] = {}
        self._slice_owner: dict[str, ServiceKey] = {}
        self._pods: dict[str, tuple[str, tuple[bytes, ...]]] = {}
        self._pod_addresses: dict[tuple[str, bytes], int] = {}
        self.records: dict[ServiceKey, ServiceRecords] = {}
        self.reverse: dict[bytes, dict[tuple[ServiceKey, str], None]] = {}
        """The Services and host names of each packed address."""
        self.namespaces: frozenset[str] = frozenset()
        self.synced = False
        """Whether all collections were listed once."""
        self.serial = 0
        """The time of the last change, in seconds."""

    def mark_synced(self) -> None:
        """Marks all collections as listed: from now on a missing name is NXDOMAIN."""
        self.synced = True

    def has_pod(self, namespace: str, packed: bytes) -> bool:
        """Whether a live pod of the namespace has an address."""
        return (namespace, packed) in self._pod_addresses

    def service_count(self) -> int:
        """The number of Services with records."""
        return len(self.records)

    def set_service(self, key: str, service: Service | None, now_s: int) -> bool:
        """Sets a new, changed or (None) deleted Service; whether an answer changed."""
        owner = _service_key(key)
        if service is None:
            self._services.pop(owner, None)
        else:
            self._services[owner] = service
        return self._plan(owner, now_s)

    def set_slice(self, key: str, endpoint_slice: EndpointSlice | None, now_s: int) -> bool:
        """Sets a new, changed or (None) deleted EndpointSlice; whether an answer changed."""
        changed = False
        before = self._slice_owner.pop(key, None)
        name = endpoint_slice.metadata.labels.get(SERVICE_NAME_LABEL, "") if endpoint_slice is not None else ""
        after = (_service_key(key)[0], name) if name else None
        if before is not None and before != after:
            slices = self._slices[before]
            del slices[key]
            if not slices:
                del self._slices[before]
            changed = self._plan(before, now_s)
        if after is not None and endpoint_slice is not None:
            self._slice_owner[key] = after
            self._slices.setdefault(after, {})[key] = endpoint_slice
            changed = self._plan(after, now_s) or changed
        return changed

    def set_namespace(self, name: str, *, present: bool) -> bool:
        """Sets a new or deleted Namespace; whether an answer changed."""
        if present == (name in self.namespaces):
            return False
        self.namespaces = self.namespaces | {name} if present else self.namespaces - {name}
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
        else:
            self._pod_addresses.pop(key, None)

    def _plan(self, owner: ServiceKey, now_s: int) -> bool:
        service, slices = self._services.get(owner), self._slices.get(owner, {})
        after = ServiceRecords()
        if service is not None or slices:
            after = plan_service(
                service,
                (slices[k] for k in sorted(slices)),
                pod_names=self._pod_names,
                ignore_empty=self._ignore_empty,
            )
        before = self.records.get(owner, ServiceRecords())
        if before == after:
            return False
        if service is None and not slices:
            self.records.pop(owner, None)
        else:
            self.records[owner] = after
        if before.reverse != after.reverse:
            self._index_reverse(owner, before.reverse, after.reverse)
        self.serial = now_s
        return True

    def _index_reverse(
        self, owner: ServiceKey, before: Iterable[tuple[bytes, str]], after: Iterable[tuple[bytes, str]]
    ) -> None:
        removed, new = set(before), dict.fromkeys(after)
        for packed, host in removed - new.keys():
            rest = {entry: None for entry in self.reverse[packed] if entry != (owner, host)}
            if rest:
                self.reverse[packed] = rest
            else:
                del self.reverse[packed]
        for packed, host in new:
            if (packed, host) not in removed:
                self.reverse[packed] = self.reverse.get(packed, {}) | {(owner, host): None}


def _service_key(key: str) -> ServiceKey:
    namespace, _, name = key.partition("/")
    return namespace, name


def _live_addresses(pod: Pod | None) -> tuple[bytes, ...]:
    if pod is None or pod.metadata.deletion_timestamp or pod.status.phase in ("Succeeded", "Failed", "Unknown"):
        return ()
    return tuple(packed for text in pod.addresses if (packed := address_bytes(text)))
