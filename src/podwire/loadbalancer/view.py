"""What one agent knows about load balancers: Services with addresses, their endpoints, pools, advertisements, nodes."""

from collections.abc import Callable, Mapping
from typing import Any

from podwire.kube.client import Client
from podwire.kube.events import EventRecorder, reference
from podwire.kube.informer import Informer
from podwire.kube.resources import IPADDRESSPOOLS, L2ADVERTISEMENTS, Resource
from podwire.loadbalancer.advertisements import L2Scope, read_l2_scopes
from podwire.loadbalancer.election import Candidates, L2Facts, Serving, addresses_of, serving
from podwire.loadbalancer.pools import BalancerPools, read_pools
from podwire.model.metallb import METALLB_NAMESPACE, IpAddressPool, L2Advertisement
from podwire.model.node import Node
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice, Service


class BalancerView:
    """The objects, and the values that follow from them."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        nodes: Informer[Node],
        services: Informer[Service],
        slices: Informer[EndpointSlice],
    ) -> None:
        self.client = client
        self.nodes = nodes
        self.pools: Informer[IpAddressPool] = Informer(client, IPADDRESSPOOLS, namespace=METALLB_NAMESPACE)
        self.advertisements: Informer[L2Advertisement] = Informer(client, L2ADVERTISEMENTS, namespace=METALLB_NAMESPACE)
        self.services = services
        self.slices = slices
        self.balanced: dict[str, Service] = {}
        """The Services with addresses of pools."""
        self.current_pools = BalancerPools()
        self.scopes: dict[str, L2Scope] = {}
        self.version = 0
        """Grows with each change that may matter."""
        self._slices_of: dict[str, dict[str, EndpointSlice]] = {}
        self._serving: dict[str, Serving] = {}
        self.events = events
        self._reported: dict[str, str] = {}
        self._callbacks: list[Callable[[], None]] = []
        events.follow_rejected(self.pools, self.advertisements)
        services.subscribe(self._service_changed)
        slices.subscribe(self._slice_changed)
        nodes.subscribe(self._node_changed)
        self.pools.subscribe(lambda *_: self._read_pools())
        self.advertisements.subscribe(lambda *_: self._read_advertisements())

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` after each change that may matter."""
        self._callbacks.append(changed)

    @property
    def is_known(self) -> bool:
        """Whether everything was listed once."""
        informers = (self.nodes, self.pools, self.advertisements, self.services, self.slices)
        return all(informer.synced.is_set() for informer in informers)

    def endpoints(self, key: str) -> Serving:
        """Where the endpoints of a Service serve."""
        if key not in self._serving:
            self._serving[key] = serving(self._slices_of.get(key, {}).values())
        return self._serving[key]

    def facts(self, alive: Candidates) -> L2Facts:
        """What the choice of nodes depends on."""
        return L2Facts(
            services=self.balanced,
            endpoints={key: self.endpoints(key) for key in self.balanced},
            pools=self.current_pools,
            scopes=self.scopes,
            nodes=self.nodes.objects,
            alive=alive,
        )

    def is_candidate(self, name: str) -> bool:
        """Whether an L2Advertisement selects a node."""
        node = self.nodes.objects.get(name)
        return node is not None and any(scope.has_node(node) for scope in self.scopes.values())

    def _changed(self) -> None:
        self.version += 1
        for callback in self._callbacks:
            callback()

    def _service_changed(self, key: str, _old: Service | None, new: Service | None) -> None:
        if new is not None and addresses_of(new):
            self.balanced[key] = new
            self._changed()
        elif self.balanced.pop(key, None) is not None:
            self._changed()

    def _slice_changed(self, key: str, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for item in (old, new):
            if item is None:
                continue
            meta = item.metadata
            service = f"{meta.namespace}/{meta.labels.get(SERVICE_NAME_LABEL, '')}"
            slices = self._slices_of.setdefault(service, {})
            if item is new:
                slices[key] = item
            else:
                slices.pop(key, None)
            if not slices:
                del self._slices_of[service]
            before = self._serving.pop(service, None)
            if item is (new or old) and service in self.balanced and self.endpoints(service) != before:
                self._changed()

    def _node_changed(self, _name: str, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or _relevant(old) != _relevant(new):
            self._changed()

    def _read_pools(self) -> None:
        self.current_pools = read_pools(self.pools.objects.values(), self.current_pools.by_name)
        self._changed()

    def _read_advertisements(self) -> None:
        self.scopes, problems = read_l2_scopes(self.advertisements.objects.values(), self.scopes)
        self.report(L2ADVERTISEMENTS, self.advertisements, problems)
        self._changed()

    def report(self, resource: Resource[Any], informer: Informer[Any], problems: Mapping[str, str]) -> None:
        """Records an Event on each object with a problem, once for each form of the problem."""
        for item in informer.objects.values():
            name = f"{resource.kind} {item.metadata.name}"
            text = problems.get(item.metadata.name, "")
            if text and self._reported.get(name) != text:
                subject = reference(resource.api_version, resource.kind, item.metadata)
                self.events.event(subject, "Warning", "ObjectRefused", f"{text}; its last good form stays in force")
            self._reported[name] = text


def _relevant(node: Node) -> tuple[object, ...]:
    """What of a Node matters; the times of its conditions do not."""
    unavailable = [c.status for c in node.status.conditions if c.type == "NetworkUnavailable"]
    return node.metadata.labels, node.metadata.deletion_timestamp, unavailable, node.addresses
