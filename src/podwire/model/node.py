"""Node and Lease (``v1``, ``coordination.k8s.io/v1``)."""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network

import msgspec

from podwire.model.ip import IPV4, parse_address, parse_network
from podwire.model.ipam import OWN_GROUP
from podwire.model.meta import Condition, Fact, ObjectMeta, is_true

Network = IPv4Network | IPv6Network

_CACHED = 1 << 14
"""More than the nodes of the largest clusters have texts."""
POD_BLOCKS = f"{OWN_GROUP}/pod-blocks"
"""The annotation of a Node with the ranges of its pods, separated by commas, where the node claims blocks of pools."""
ZONE_LABEL = "topology.kubernetes.io/zone"
"""The label of a Node that names its zone."""


class Taint(Fact, frozen=True):
    """Keeps pods off a node; effect is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeSpec(Fact, frozen=True):
    """The desired state of a node."""

    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")
    provider_id: str = msgspec.field(default="", name="providerID")
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()

    @property
    def cidrs(self) -> tuple[str, ...]:
        """``podCIDRs``, else ``podCIDR``, as written."""
        return self.pod_cidrs or ((self.pod_cidr,) if self.pod_cidr else ())

    @property
    def networks(self) -> tuple[Network, ...]:
        """``cidrs`` as values; texts that are not ranges are left out."""
        return tuple(network for text in self.cidrs if (network := _network(text)) is not None)


class NodeAddress(Fact, frozen=True):
    """One address; type is InternalIP, ExternalIP or Hostname."""

    type: str
    address: str


class DaemonEndpoint(Fact, frozen=True):
    """A port number, spelled as the API spells it."""

    port: int = msgspec.field(default=0, name="Port")


class DaemonEndpoints(Fact, frozen=True):
    """The ports of the kubelet."""

    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class NodeStatus(Fact, frozen=True):
    """The observed state of a node."""

    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    daemon_endpoints: DaemonEndpoints = DaemonEndpoints()


class Node(Fact, frozen=True):
    """``v1`` Node."""

    api_version: str = "v1"
    kind: str = "Node"
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def internal_ips(self) -> tuple[str, ...]:
        """The node's own addresses in the order given, one or two families."""
        return self.ips("InternalIP")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The internal and external addresses of the node, without its names, in the order of the object."""
        return self.ips("InternalIP", "ExternalIP")

    def ips(self, *types: str) -> tuple[str, ...]:
        """Its addresses of these types, in the order of the object; texts that are not addresses are left out."""
        return tuple(filter(None, (_address(a.address) for a in self.status.addresses if a.type in types)))

    @property
    def pod_cidrs(self) -> tuple[str, ...]:
        """The texts of :attr:`pod_networks`, in canonical form."""
        return tuple(text for written in self._written_cidrs if (text := _cidr(written)))

    @property
    def pod_networks(self) -> tuple[Network, ...]:
        """The ranges of the node's pods, in the order of the object; texts that are not ranges are left out."""
        return tuple([network for text in self._written_cidrs if (network := _network(text)) is not None])

    @property
    def _written_cidrs(self) -> tuple[str, ...]:
        """The blocks that the node has claimed, else those of the spec; the API takes any text."""
        blocks = self.metadata.annotations.get(POD_BLOCKS)
        if blocks is not None:
            return tuple(blocks.split(","))
        return self.spec.cidrs

    @property
    def zone(self) -> str:
        """The zone of the node; empty when the node has no zone label."""
        return self.metadata.labels.get(ZONE_LABEL, "")

    @property
    def ready(self) -> bool:
        """Whether the Ready condition is True."""
        return is_true(self.status.conditions, "Ready")


class LeaseSpec(Fact, frozen=True):
    """The holder of a lease and its times; times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Fact, frozen=True):
    """``coordination.k8s.io/v1`` Lease."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


@lru_cache(_CACHED)
def _address(text: str) -> str:
    """The address in its canonical form; empty when it is not an address, since the API takes any text."""
    if IPV4.fullmatch(text):
        return text
    try:
        return str(parse_address(text)) if "%" not in text else ""
    except ValueError:
        return ""


@lru_cache(_CACHED)
def _network(text: str) -> Network | None:
    """The range, host bits cleared; None when it is not a range, since the API takes any text."""
    try:
        return parse_network(text) if "%" not in text else None
    except ValueError:
        return None


@lru_cache(_CACHED)
def _cidr(text: str) -> str:
    network = _network(text)
    return str(network) if network is not None else ""
