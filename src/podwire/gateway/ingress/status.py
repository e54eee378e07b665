"""Writes the addresses at which Ingresses are served into their status; only the leader of several gateways does.

Guarantees: 1. only Ingresses of our classes get addresses; 2. an Ingress that stops being ours loses the addresses that
were written here; 3. a status that is right is not written.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.gateway.config import COMPONENT
from podwire.gateway.ingress.controller import IngressController
from podwire.kube.client import MERGE_PATCH
from podwire.kube.controller import Environment
from podwire.kube.index import Index
from podwire.kube.resources import ENDPOINTSLICES, INGRESSES, NODES, SERVICES
from podwire.model.ingress import IngressAddress
from podwire.model.node import Node
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice, Service
from podwire.runtime.supervise import Supervisor


def addresses_of(service: Service | None, fixed: tuple[str, ...]) -> tuple[IngressAddress, ...]:
    """The addresses of a Service: those of its load balancer, else its external or cluster ones."""
    if fixed:
        return tuple(_address(text) for text in fixed)
    if service is None:
        return ()
    balanced = tuple(
        IngressAddress(ip=entry.ip, hostname=entry.hostname) for entry in service.status.load_balancer.ingress
    )
    if balanced or service.spec.type == "LoadBalancer":
        return balanced
    addresses = service.spec.external_ips or tuple(ip for ip in service.spec.cluster_ips if ip != "None")
    return tuple(IngressAddress(ip=ip) for ip in addresses)


def addresses_of_nodes(slices: Iterable[EndpointSlice], nodes: Mapping[str, Node]) -> tuple[IngressAddress, ...]:
    """The addresses of the nodes with a ready endpoint: external ones, else internal ones; sorted."""
    names = {
        endpoint.node_name or ""
        for part in slices
        for endpoint in part.endpoints or ()
        if endpoint.conditions.ready is not False
    }
    served = (nodes[name] for name in sorted(names) if name in nodes)
    texts = {text for node in served for text in node.ips("ExternalIP") or node.internal_ips}
    return tuple(IngressAddress(ip=text) for text in sorted(texts))


class PublishedAddresses(msgspec.Struct, frozen=True):
    """Where the addresses of Ingresses come from.

    ``fixed`` ones, else those of ``service`` (``namespace/name``), or with ``nodes`` those of the nodes with its
    endpoints.
    """

    service: str = ""
    fixed: tuple[str, ...] = ()
    nodes: bool = False


def _address(text: str) -> IngressAddress:
    is_name = any(character.isalpha() for character in text) and ":" not in text
    return IngressAddress(hostname=text) if is_name else IngressAddress(ip=text)


class IngressStatusWriter:
    """Keeps ``status.loadBalancer`` of all Ingresses of a controller."""

    def __init__(self, environment: Environment, controller: IngressController, published: PublishedAddresses) -> None:
        self._client = environment.client
        self._controller = controller
        self._published = published
        self._ingresses = environment.of(INGRESSES)
        self._services = environment.of(SERVICES)
        self._written: set[str] = set()
        self._loop = environment.loop(f"{COMPONENT} status", self._reconcile)
        self._services.subscribe(self._service_changed, replay=False)
        self._nodes: Mapping[str, Node] = {}
        if published.nodes:
            nodes, slices = environment.of(NODES), environment.of(ENDPOINTSLICES)
            self._nodes = nodes.objects
            self._slices: Index[EndpointSlice] = Index(slices, _service_of)
            nodes.subscribe(self._node_changed, replay=False)
            slices.subscribe(self._slice_changed, replay=False)
        self._ingresses.subscribe(lambda key, _old, _new: self._loop.touch(key), replay=False)
        self._served: frozenset[str] = frozenset()
        controller.on_served = self._served_changed

    def start(self, supervisor: Supervisor) -> None:
        """Starts to write."""
        self.touch_all()
        self._loop.start(supervisor, workers=2)

    def touch_all(self) -> None:
        """Looks at every Ingress again."""
        for key in self._controller.served_keys | self._written:
            self._loop.touch(key)

    def _served_changed(self) -> None:
        """Looks at the Ingresses that are served since the last time, and at those that are no more."""
        keys = self._controller.served_keys
        for key in keys ^ self._served:
            self._loop.touch(key)
        self._served = keys

    def _service_changed(self, key: str, _old: Service | None, _new: Service | None) -> None:
        if key == self._published.service:
            self.touch_all()

    def _node_changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.status.addresses != new.status.addresses:
            self.touch_all()

    def _slice_changed(self, _key: str, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        if any(self._published.service in _service_of(item) for item in (old, new) if item is not None):
            self.touch_all()

    def _addresses(self) -> tuple[IngressAddress, ...]:
        published = self._published
        if published.nodes and not published.fixed:
            return addresses_of_nodes(self._slices.of(published.service).values(), self._nodes)
        return addresses_of(self._services.get(published.service), published.fixed)

    async def _reconcile(self, key: str) -> None:
        ingress = self._ingresses.get(key)
        if ingress is None:
            self._written.discard(key)
            return
        served = key in self._controller.served_keys
        if not served and key not in self._written:
            return
        addresses = self._addresses() if served else ()
        if ingress.status.load_balancer.ingress == addresses:
            return
        entries = [
            {name: value for name, value in (("ip", entry.ip), ("hostname", entry.hostname)) if value}
            for entry in addresses
        ]
        patch = {"status": {"loadBalancer": {"ingress": entries or None}}}
        meta = ingress.metadata
        await self._client.patch(
            INGRESSES.raw, meta.name, patch, meta.namespace, subresource="status", patch_type=MERGE_PATCH
        )
        if served:
            self._written.add(key)
        else:
            self._written.discard(key)


def _service_of(item: EndpointSlice) -> tuple[str, ...]:
    return (f"{item.metadata.namespace}/{item.metadata.labels.get(SERVICE_NAME_LABEL, '')}",)
