"""The API objects that a question needs, looked up one by one at an API server.

An answer reads only the objects that the question names, also on a large cluster: Services by cluster address, slices
by their Service, pods by name or address, the policies of the namespaces of these pods. Only an address that is no
cluster address (a node port, a load balancer's) costs a list of all Services.
"""

from typing import TypeVar

from podwire.cluster.names import L2_CLAIM, L2_SPEAKER
from podwire.cluster.world import World
from podwire.errors import NotFound
from podwire.kube.client import Client
from podwire.kube.optional import list_if_served
from podwire.kube.resources import (
    BFDPROFILES,
    BGPADVERTISEMENTS,
    CLUSTERNETWORKPOLICIES,
    EGRESSPOLICIES,
    ENDPOINTSLICES,
    IPADDRESSPOOLS,
    L2ADVERTISEMENTS,
    LEASES,
    METALLB_COMMUNITIES,
    METALLB_PEERS,
    NAMESPACES,
    NETWORKPOLICIES,
    NODES,
    PODS,
    SERVICES,
    Resource,
)
from podwire.loadbalancer.claims import claimed_address
from podwire.model.egress import EgressPolicy
from podwire.model.meta import Object, key_of
from podwire.model.metallb import (
    METALLB_NAMESPACE,
    BfdProfile,
    BgpAdvertisement,
    IpAddressPool,
    L2Advertisement,
    MetalLbCommunity,
    MetalLbPeer,
)
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import NetworkPolicy
from podwire.model.selector import Selector
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice, Service
from podwire.why.objects import BalancerObjects, belongs, concerns

T = TypeVar("T", Service, Pod, Object)
M = TypeVar("M", IpAddressPool, L2Advertisement, BgpAdvertisement, MetalLbPeer, MetalLbCommunity, BfdProfile)

_FEW = 16
"""Up to this number of pods are read one by one; for more pods, all pods of their namespaces are read."""


class ApiObjects:
    """Objects of an API server; errors of the API are raised unchanged."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def service(self, namespace: str, name: str) -> Service | None:
        """A Service by its name."""
        return await self._get(SERVICES, namespace, name)

    async def services_at(self, address: str, port: int) -> tuple[Service, ...]:
        """The Service with this cluster address, or else all that name the address or the node port."""
        by_address = await self._client.list(SERVICES, field_selector=f"spec.clusterIP={address}")
        if by_address.items:
            return tuple(by_address.items)
        everything = await self._client.list(SERVICES)
        return tuple(service for service in everything.items if concerns(service, address, port))

    async def slices(self, service: Service) -> tuple[EndpointSlice, ...]:
        """The slices of a Service."""
        meta = service.metadata
        label = f"{SERVICE_NAME_LABEL}={meta.name}"
        answer = await self._client.list(ENDPOINTSLICES, meta.namespace, label_selector=label)
        return tuple(endpoint_slice for endpoint_slice in answer.items if belongs(endpoint_slice, service))

    async def pods(self, namespace: str, selector: Selector | None = None) -> tuple[Pod, ...]:
        """The pods of a namespace with these labels."""
        answer = await self._client.list(PODS, namespace, label_selector=str(selector) if selector else "")
        return tuple(answer.items)

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """A pod by its name."""
        return await self._get(PODS, namespace, name)

    async def pods_at(self, address: str) -> tuple[Pod, ...]:
        """The pods that list an address, those in the host network among them."""
        pods = (await self._client.list(PODS, field_selector=f"status.podIP={address}")).items
        if not pods and ":" in address:
            pods = (await self._client.list(PODS)).items
        return tuple(pod for pod in pods if address in pod.addresses)

    async def nodes(self) -> tuple[Node, ...]:
        """All nodes."""
        answer = await self._client.list(NODES)
        return tuple(sorted(answer.items, key=lambda node: node.metadata.name))

    async def egress_policies(self) -> tuple[EgressPolicy, ...]:
        """All EgressPolicies; none when the API does not serve them."""
        return await list_if_served(self._client, EGRESSPOLICIES)

    async def balancers(self) -> BalancerObjects:
        """The objects about addresses of load balancers; none where the API does not serve their kinds."""
        speakers = await self._client.list(LEASES, label_selector=L2_SPEAKER)
        claims = await self._client.list(LEASES, label_selector=L2_CLAIM)
        held = {claimed_address(lease.metadata.name): lease.spec.holder_identity or "" for lease in claims.items}
        return BalancerObjects(
            pools=await self._balancing(IPADDRESSPOOLS),
            l2_advertisements=await self._balancing(L2ADVERTISEMENTS),
            bgp_advertisements=await self._balancing(BGPADVERTISEMENTS),
            peers=await self._balancing(METALLB_PEERS),
            communities=await self._balancing(METALLB_COMMUNITIES),
            profiles=await self._balancing(BFDPROFILES),
            speakers=tuple(lease.spec.holder_identity or "" for lease in speakers.items),
            holders={str(address): holder for address, holder in held.items() if address is not None},
        )

    async def _balancing(self, resource: Resource[M]) -> tuple[M, ...]:
        items = await list_if_served(self._client, resource)
        return tuple(item for item in items if item.metadata.namespace == METALLB_NAMESPACE)

    async def _get(self, resource: Resource[T], namespace: str, name: str) -> T | None:
        try:
            return await self._client.get(resource, name, namespace, decode_as=resource.type)
        except NotFound:
            return None

    async def world(self, pods: frozenset[str], addresses: frozenset[str]) -> World:
        """The pods with these keys or addresses, their namespaces and policies, cluster policies, and all nodes.

        Raises: ApiError, ApiUnreachable.
        """
        selected = await self._selected(pods, addresses)
        names = sorted({pod.metadata.namespace for pod in selected})
        policies: list[NetworkPolicy] = []
        for name in names:
            policies += (await self._client.list(NETWORKPOLICIES, name)).items
        namespaces = [await self._get(NAMESPACES, "", name) for name in names]
        return World(
            pods=selected,
            namespaces=tuple(namespace for namespace in namespaces if namespace is not None),
            nodes=tuple((await self._client.list(NODES)).items),
            policies=tuple(policies),
            cluster_policies=await list_if_served(self._client, CLUSTERNETWORKPOLICIES),
        )

    async def _selected(self, keys: frozenset[str], addresses: frozenset[str]) -> tuple[Pod, ...]:
        """The pods with these keys or addresses."""
        selected: dict[str, Pod] = {}
        if len(keys) > _FEW:
            for namespace in sorted({key.partition("/")[0] for key in keys}):
                listed = (await self._client.list(PODS, namespace)).items
                selected |= {key: pod for pod in listed if (key := key_of(pod.metadata)) in keys}
        else:
            for key in sorted(keys):
                namespace, _, name = key.partition("/")
                pod = await self.pod(namespace, name)
                if pod is not None:
                    selected[key] = pod
        for address in addresses:
            selected |= {key_of(pod.metadata): pod for pod in await self.pods_at(address)}
        return tuple(selected.values())
