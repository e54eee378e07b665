"""Follows Services and EndpointSlices for the backend ``bgp``: the addresses that the node announces by themselves.

Guarantees: 1. nothing is watched before a BGPConfiguration has ranges of Services; 2. the first ``follow`` with ranges
returns when Services and EndpointSlices have been listed, or after five seconds; 3. ``changed`` is called only when the
addresses differ.

Cost: two watches, and for each change of a Service or a slice the Service's own addresses, 10 us.
"""

import asyncio
from collections.abc import Callable

from podwire.bgp.configuration import Network
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import ENDPOINTSLICES, SERVICES
from podwire.model.meta import ObjectMeta
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice, Service
from podwire.routing.backends.bgp.serviceaddresses import AnnouncedRanges, service_addresses
from podwire.runtime.supervise import Supervisor

_WAIT_S = 5.0


class ServiceFollower:
    """The announced addresses of single Services on one node."""

    def __init__(self, client: Client, node: str, changed: Callable[[], None]) -> None:
        self._node = node
        self._changed = changed
        self._ranges = AnnouncedRanges()
        self._services = Informer(client, SERVICES)
        self._slices = Informer(client, ENDPOINTSLICES, label_selector="!service.kubernetes.io/headless")
        self._services.trim, self._slices.trim = _trim_service, _trim_slice
        self._slices_of: dict[str, dict[str, EndpointSlice]] = {}
        self._addresses: dict[str, tuple[Network, ...]] = {}
        self._follows = False

    @property
    def addresses(self) -> tuple[Network, ...]:
        """The addresses, in the order of their text."""
        return tuple(sorted({a for addresses in self._addresses.values() for a in addresses}, key=str))

    async def follow(self, ranges: AnnouncedRanges, supervisor: Supervisor) -> None:
        """Takes over the ranges; the watches begin with the first ranges."""
        if not ranges.is_empty and not self._follows:
            self._follows = True
            await self._start(supervisor)
        if ranges != self._ranges:
            self._ranges = ranges
            for key in self._services.objects:
                self._read(key)

    async def _start(self, supervisor: Supervisor) -> None:
        self._services.subscribe(lambda key, _old, _new: self._read(key))
        self._slices.subscribe(self._slice_changed)
        supervisor.start("services of bgp", self._services.run)
        supervisor.start("endpointslices of bgp", self._slices.run)
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._services.synced.wait()
                await self._slices.synced.wait()
        except TimeoutError:
            pass

    def _slice_changed(self, key: str, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for item in filter(None, (old, new)):
            service = f"{item.metadata.namespace}/{item.metadata.labels.get(SERVICE_NAME_LABEL, '')}"
            if item is new:
                self._slices_of.setdefault(service, {})[key] = item
            elif slices := self._slices_of.get(service):
                slices.pop(key, None)
            self._read(service)

    def _read(self, key: str) -> None:
        service = self._services.objects.get(key)
        slices = self._slices_of.get(key, {}).values()
        now = service_addresses(self._ranges, service, slices, self._node) if service is not None else ()
        if now == self._addresses.get(key, ()):
            return
        self._addresses.pop(key, None)
        if now:
            self._addresses[key] = now
        self._changed()


def _trim_service(service: Service) -> Service:
    return Service(metadata=_name(service.metadata), spec=service.spec, status=service.status)


def _trim_slice(item: EndpointSlice) -> EndpointSlice:
    return EndpointSlice(metadata=_name(item.metadata), address_type=item.address_type, endpoints=item.endpoints)


def _name(meta: ObjectMeta) -> ObjectMeta:
    labels = {key: text for key, text in meta.labels.items() if key == SERVICE_NAME_LABEL}
    return ObjectMeta(name=meta.name, namespace=meta.namespace, labels=labels)
