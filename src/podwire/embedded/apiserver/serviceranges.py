"""ServiceCIDRs: the address ranges of Services.

The ServiceCIDR ``kubernetes`` has the ranges of the configuration. Further ServiceCIDRs are used when these ranges are
full. A ServiceCIDR gets a finalizer and the condition ``Ready`` when it is created. When a client deletes it, no more
addresses are chosen from it, and it disappears when every remaining address is also in another ServiceCIDR.
Source: ``pkg/controller/servicecidrs``.
"""

import asyncio
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from podwire.embedded.apiserver.deletion import set_condition
from podwire.embedded.apiserver.serviceips import ADDRESSES, is_managed
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.runtime.clock import Clock, rfc3339

Object = dict[str, Any]
Network = IPv4Network | IPv6Network

RANGES = "networking.k8s.io/servicecidrs"
FINALIZER = "networking.k8s.io/service-cidr-finalizer"
_TERMINATING = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"


def prepare_range(obj: Object, now: str) -> None:
    """Sets the finalizer and the condition of a ServiceCIDR that is about to be stored for the first time."""
    meta = obj["metadata"]
    if FINALIZER not in (meta.get("finalizers") or ()):
        meta["finalizers"] = [*(meta.get("finalizers") or ()), FINALIZER]
    set_condition(obj.setdefault("status", {}), "Ready", "True", ("", "Kubernetes Service CIDR is ready"), now)


def further_ranges(store: Store, configured: Sequence[str]) -> list[str]:
    """The ranges of ServiceCIDRs beside the configured ones, of the same families, the oldest first."""
    families = {":" in cidr for cidr in configured}
    usable = [entry for entry in store.entries(RANGES) if not _is_deleted(entry)]
    ordered = sorted(usable, key=lambda entry: (entry.object()["metadata"].get("creationTimestamp", ""), entry.name))
    return [
        cidr
        for entry in ordered
        for cidr in entry.object()["spec"].get("cidrs") or ()
        if cidr not in configured and (":" in cidr) in families
    ]


class ServiceRanges:
    """Ends ServiceCIDRs that are deleted."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._scheduled = False

    def start(self) -> None:
        """Completes ServiceCIDRs of older versions, and follows changes from then on."""
        for entry in self._store.entries(RANGES):
            if not _is_deleted(entry) and b'"Ready"' not in entry.raw:
                obj = entry.object()
                prepare_range(obj, rfc3339(self._clock.now()))
                self._store.put(RANGES, obj)
        for table in (RANGES, ADDRESSES):
            self._store.table(table).listeners[self._committed] = None
        self._schedule()

    def _committed(self, changes: list[ObjectChange]) -> None:
        if any(change.entry.table == RANGES or change.type == "DELETED" for change in changes):
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        for entry in self._store.entries(RANGES):
            if _is_deleted(entry) and FINALIZER in (entry.object()["metadata"].get("finalizers") or ()):
                self._end(entry)

    def _end(self, entry: StoredObject) -> None:
        obj = entry.object()
        if self._is_needed(entry):
            before = (obj.get("status") or {}).get("conditions")
            now = rfc3339(self._clock.now())
            set_condition(obj.setdefault("status", {}), "Ready", "False", ("Terminating", _TERMINATING), now)
            if obj["status"]["conditions"] != before:
                self._store.put(RANGES, obj)
            return
        obj["metadata"]["finalizers"] = [name for name in obj["metadata"]["finalizers"] if name != FINALIZER]
        if obj["metadata"]["finalizers"]:
            self._store.put(RANGES, obj)
        else:
            self._store.delete(entry, obj)

    def _is_needed(self, entry: StoredObject) -> bool:
        """Whether an address of a Service is in no other range."""
        own = _networks(entry)
        other_networks = [
            network for other in self._store.entries(RANGES) if other is not entry for network in _networks(other)
        ]
        if all(any(_contains(other, network) for other in other_networks) for network in own):
            return False
        used = [ip_address(address.name) for address in self._store.entries(ADDRESSES) if is_managed(address)]
        return any(
            any(ip in network for network in own) and not any(ip in network for network in other_networks)
            for ip in used
        )


def _networks(entry: StoredObject) -> list[Network]:
    cidrs: Iterable[str] = entry.object()["spec"].get("cidrs") or ()
    return [ip_network(cidr) for cidr in cidrs]


def _contains(outer: Network, inner: Network) -> bool:
    return (
        outer.version == inner.version
        and outer.network_address <= inner.network_address  # type: ignore[operator]
        and inner.broadcast_address <= outer.broadcast_address  # type: ignore[operator]
    )


def _is_deleted(entry: StoredObject) -> bool:
    return b'"deletionTimestamp"' in entry.raw and bool(entry.object()["metadata"].get("deletionTimestamp"))
