"""IPAddress objects: one for each cluster address of a Service.

They are created, changed and deleted with the Service, in the same transaction. When a client deletes an IPAddress
whose Service still has the address, it is created again. At the start, missing IPAddresses are created (an older
version may have written the state), and those without a Service are deleted. An address in an IPAddress of another
client is not given to any Service. Sources: ``pkg/registry/core/service/ipallocator``,
``pkg/registry/core/service/ipallocator/controller``.
"""

import uuid
from ipaddress import ip_address
from typing import Any

from podwire.embedded.apiserver.allocate import cluster_ips
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.runtime.clock import Clock, rfc3339

Object = dict[str, Any]

ADDRESSES = "networking.k8s.io/ipaddresses"
FAMILY_LABEL = "ipaddress.kubernetes.io/ip-family"
_SERVICES = "/services"
_MANAGED_LABEL = "ipaddress.kubernetes.io/managed-by"
_MANAGER = "ipallocator.k8s.io"


def is_managed(entry: StoredObject) -> bool:
    """Whether this server manages an IPAddress."""
    return bool(entry.labels.get(_MANAGED_LABEL) == _MANAGER)


class ServiceAddresses:
    """Keeps IPAddresses in step with Services."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def start(self) -> None:
        """Brings all IPAddresses up to date, and follows writes from then on."""
        service_ips = {ip: entry for entry in self._store.entries(_SERVICES) for ip in _addresses(entry)}
        for ip, service in service_ips.items():
            self._ensure(ip, service)
        for entry in self._store.entries(ADDRESSES):
            if is_managed(entry) and entry.name not in service_ips:
                self._store.delete(entry)
        self._store.on_write.append(self._written)

    def _written(self, change: ObjectChange) -> None:
        entry = change.entry
        if entry.table == _SERVICES:
            before = _addresses(change.before) if change.before is not None else ()
            after = _addresses(entry) if change.type != "DELETED" else ()
            for ip in before:
                address = self._store.get(ADDRESSES, "", ip) if ip not in after else None
                if address is not None and is_managed(address):
                    self._store.delete(address)
            for ip in after:
                if ip not in before:
                    self._ensure(ip, entry)
        elif entry.table == ADDRESSES and change.type == "DELETED" and is_managed(entry):
            parent = entry.object()["spec"]["parentRef"]
            service = self._store.get(_SERVICES, parent.get("namespace", ""), parent.get("name", ""))
            if service is not None and entry.name in _addresses(service):
                self._ensure(entry.name, service)

    def _ensure(self, ip: str, service: StoredObject) -> None:
        if self._store.get(ADDRESSES, "", ip) is not None:
            return
        meta = {
            "name": ip, "uid": str(uuid.uuid4()), "creationTimestamp": rfc3339(self._clock.now()),
            "labels": {FAMILY_LABEL: f"IPv{ip_address(ip).version}", _MANAGED_LABEL: _MANAGER},
        }  # fmt: skip
        parent = {"group": "", "resource": "services", "namespace": service.namespace, "name": service.name}
        head = {"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress"}
        self._store.put(ADDRESSES, {**head, "metadata": meta, "spec": {"parentRef": parent}})


def _addresses(service: StoredObject) -> tuple[str, ...]:
    return tuple(str(ip_address(ip)) for ip in cluster_ips(service.object().get("spec") or {}))
