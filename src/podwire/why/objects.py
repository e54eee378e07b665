"""The API objects that a question needs, looked up one by one; and a collection of objects in memory (pure).

An answer reads only the objects that the question names, also on a large cluster: Services by cluster address, slices
by their Service, pods by name or address. Only an address that is no cluster address (a node port, a load balancer's)
costs a list of all Services.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

import msgspec

from podwire.cluster.world import World
from podwire.model.egress import EgressPolicy
from podwire.model.metallb import (
    BfdProfile,
    BgpAdvertisement,
    IpAddressPool,
    L2Advertisement,
    MetalLbCommunity,
    MetalLbPeer,
)
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.selector import Selector
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice, Service
from podwire.proxy.resolve import service_of
from podwire.proxy.validity import canonical_address

T = TypeVar("T", Service, Pod)


class BalancerObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of ``metallb.io``, and what agents say about addresses of load balancers."""

    pools: tuple[IpAddressPool, ...] = ()
    l2_advertisements: tuple[L2Advertisement, ...] = ()
    bgp_advertisements: tuple[BgpAdvertisement, ...] = ()
    peers: tuple[MetalLbPeer, ...] = ()
    communities: tuple[MetalLbCommunity, ...] = ()
    profiles: tuple[BfdProfile, ...] = ()
    speakers: tuple[str, ...] = ()
    """The nodes that have a Lease for answering."""
    holders: dict[str, str] = {}
    """The node that answers for each address."""


class Objects(Protocol):
    """Looks objects up."""

    async def service(self, namespace: str, name: str) -> Service | None:
        """A Service by its name."""
        ...

    async def services_at(self, address: str, port: int) -> tuple[Service, ...]:
        """The Services that have an address, or a port as their node port; may include further Services."""
        ...

    async def slices(self, service: Service) -> tuple[EndpointSlice, ...]:
        """The slices of a Service."""
        ...

    async def pods(self, namespace: str, selector: Selector | None = None) -> tuple[Pod, ...]:
        """The pods of a namespace (empty: of all) with these labels."""
        ...

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """A pod by its name."""
        ...

    async def pods_at(self, address: str) -> tuple[Pod, ...]:
        """The pods that list an address in their status, also those that do not own the address."""
        ...

    async def nodes(self) -> tuple[Node, ...]:
        """All nodes, in the order of their names."""
        ...

    async def egress_policies(self) -> tuple[EgressPolicy, ...]:
        """All EgressPolicies."""
        ...

    async def balancers(self) -> BalancerObjects:
        """The objects about addresses of load balancers."""
        ...

    async def world(self, pods: frozenset[str], addresses: frozenset[str]) -> World:
        """The objects that policies of these pods (``namespace/name``), and of pods with these addresses, depend on."""
        ...


def concerns(service: Service, address: str, port: int) -> bool:
    """Whether a Service names the address, or has the port as a node port or for its health checks."""
    spec = service.spec
    addresses = (spec.cluster_ip, *spec.cluster_ips, *spec.external_ips)
    ingress = (entry.ip for entry in service.status.load_balancer.ingress)
    if any(canonical_address(text) == address for text in (*addresses, *ingress) if text and text != "None"):
        return True
    return port != 0 and (port == spec.health_check_node_port or any(p.node_port == port for p in spec.ports))


def belongs(endpoint_slice: EndpointSlice, service: Service) -> bool:
    """Whether a slice counts for a Service; slices marked as headless count for headless Services only."""
    meta = service.metadata
    if service.headless:
        named = endpoint_slice.metadata.labels.get(SERVICE_NAME_LABEL) == meta.name
        return named and endpoint_slice.metadata.namespace == meta.namespace
    return service_of(endpoint_slice) == f"{meta.namespace}/{meta.name}"


class Collection:
    """Objects in memory."""

    def __init__(
        self,
        services: Iterable[Service] = (),
        slices: Iterable[EndpointSlice] = (),
        world: World | None = None,
        egress_policies: Iterable[EgressPolicy] = (),
        balancers: BalancerObjects | None = None,
    ) -> None:
        self._balancers = balancers or BalancerObjects()
        self._egress_policies = tuple(egress_policies)
        self._services = tuple(services)
        self._slices = tuple(slices)
        self._world = world or World()
        self._nodes = tuple(sorted(self._world.nodes, key=lambda node: node.metadata.name))

    async def service(self, namespace: str, name: str) -> Service | None:
        """A Service by its name."""
        return _named(self._services, namespace, name)

    async def services_at(self, address: str, port: int) -> tuple[Service, ...]:
        """The Services with this address or node port."""
        return tuple(service for service in self._services if concerns(service, address, port))

    async def slices(self, service: Service) -> tuple[EndpointSlice, ...]:
        """The slices of a Service."""
        return tuple(endpoint_slice for endpoint_slice in self._slices if belongs(endpoint_slice, service))

    async def pods(self, namespace: str, selector: Selector | None = None) -> tuple[Pod, ...]:
        """The pods of a namespace with these labels."""
        here = (p for p in self._world.pods if namespace in ("", p.metadata.namespace))
        return tuple(p for p in here if selector is None or selector.matches(p.metadata.labels))

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """A pod by its name."""
        return _named(self._world.pods, namespace, name)

    async def pods_at(self, address: str) -> tuple[Pod, ...]:
        """The pods that list an address."""
        return tuple(pod for pod in self._world.pods if address in pod.addresses)

    async def nodes(self) -> tuple[Node, ...]:
        """All nodes."""
        return self._nodes

    async def egress_policies(self) -> tuple[EgressPolicy, ...]:
        """All EgressPolicies."""
        return self._egress_policies

    async def balancers(self) -> BalancerObjects:
        """The objects about addresses of load balancers."""
        return self._balancers

    async def world(self, pods: frozenset[str], addresses: frozenset[str]) -> World:
        """All objects that policies are about, whichever pods are asked for."""
        return self._world


def _named(objects: Iterable[T], namespace: str, name: str) -> T | None:
    key = namespace, name
    return next(
        (candidate for candidate in objects if (candidate.metadata.namespace, candidate.metadata.name) == key), None
    )
