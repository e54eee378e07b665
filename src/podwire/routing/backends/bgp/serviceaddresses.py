"""Which addresses of single Services a node announces beside the ranges of a BGPConfiguration (pure).

Every node announces the ranges, so a router spreads packets over all nodes. A node without a ready endpoint drops
packets to a Service with ``externalTrafficPolicy: Local``. Therefore a node with such an endpoint announces the
Service's addresses one by one, and the longer prefix decides at the router. Two kinds of addresses belong to no
announced range: entries of a single address, which are announced while a Service has the address, and all addresses of
load balancers with ``serviceLoadBalancerAggregation: Disabled``, which are announced while the Service has a ready
endpoint. Source: Calico's documentation, "Advertise Kubernetes service IP addresses".
"""

from collections.abc import Iterable, Sequence

import msgspec

from podwire.bgp.configuration import Network
from podwire.model.service import Endpoint, EndpointSlice, Service
from podwire.routing.backends.bgp.fields import single_network

_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")


class AnnouncedRanges(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges of Services in a BGPConfiguration, by the kind of address."""

    cluster: tuple[Network, ...] = ()
    external: tuple[Network, ...] = ()
    balancers: tuple[Network, ...] = ()
    aggregates: bool = True
    """Whether the ranges of load balancers are announced as ranges."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing of Services is announced."""
        return not (self.cluster or self.external or self.balancers)

    @property
    def announced(self) -> tuple[Network, ...]:
        """The ranges that every node announces."""
        balancers = self.balancers if self.aggregates else ()
        ranges = (network for network in (*self.external, *balancers) if not _is_single(network))
        return tuple(dict.fromkeys((*self.cluster, *ranges)))


def service_addresses(
    ranges: AnnouncedRanges, service: Service, slices: Iterable[EndpointSlice], node: str
) -> tuple[Network, ...]:
    """The addresses of a Service that a node announces by themselves."""
    spec = service.spec
    if spec.type not in _TYPES or spec.cluster_ip in ("", "None"):
        return ()
    ready = [endpoint for endpoint in _endpoints(service, slices) if endpoint.conditions.ready in (None, True)]
    ingress = [entry.ip for entry in service.status.load_balancer.ingress if entry.ip]
    external, balancers = _inside(spec.external_ips, ranges.external), _inside(ingress, ranges.balancers)
    if spec.external_traffic_policy == "Local":
        if not any(endpoint.node_name == node for endpoint in ready):
            return ()
        return _distinct(*_inside(spec.cluster_ips or (spec.cluster_ip,), ranges.cluster), *external, *balancers)
    single = {network for network in (*ranges.external, *ranges.balancers) if _is_single(network)}
    separate = balancers if ready and not ranges.aggregates else []
    return _distinct(*(address for address in (*external, *balancers) if address in single), *separate)


def _endpoints(service: Service, slices: Iterable[EndpointSlice]) -> Iterable[Endpoint]:
    """The endpoints of the families of the Service."""
    families = service.spec.ip_families
    for item in slices:
        if not families or item.address_type in families:
            yield from item.endpoints or ()


def _inside(texts: Iterable[str], ranges: Sequence[Network]) -> list[Network]:
    """Those addresses that are in one of the ranges; a text that is no address is left out."""
    addresses = (network for text in texts if (network := single_network(text)) is not None)
    return [address for address in addresses if any(_covers(network, address) for network in ranges)]


def _covers(network: Network, address: Network) -> bool:
    return network.version == address.version and address.network_address in network


def _is_single(network: Network) -> bool:
    return network.prefixlen == network.max_prefixlen


def _distinct(*addresses: Network) -> tuple[Network, ...]:
    return tuple(dict.fromkeys(addresses))
