"""Names of the device and the sets, the same as those of kube-proxy, so that people and tools know them (pure).

Names of IPv6 sets begin with ``KUBE-6-``. Sets that kube-proxy does not have are named in the same style.
"""

from collections.abc import Iterable
from typing import NamedTuple

from podwire.state.ipset import NAME_MAX, IpSet, plain

DEVICE = "kube-ipvs0"
"""The device that has all addresses of Services, so that packets to these addresses are delivered to this node."""

_MAXELEM = 1 << 20
"""Enough for an element for each endpoint of 10,000 Services with 100 endpoints; 16 times the limit of kube-proxy."""

PROTOCOLS = ("tcp", "udp", "sctp")


class SetKind(NamedTuple):
    """A set by its name without prefix, and its type as in ipset(8)."""

    name: str
    kind: str


IPVS_IPS = SetKind("IPVS-IPS", "hash:ip")
CLUSTER_IP = SetKind("CLUSTER-IP", "hash:ip,port")
EXTERNAL_IP = SetKind("EXTERNAL-IP", "hash:ip,port")
EXTERNAL_IP_LOCAL = SetKind("EXTERNAL-IP-LOCAL", "hash:ip,port")
LOAD_BALANCER = SetKind("LOAD-BALANCER", "hash:ip,port")
LOAD_BALANCER_LOCAL = SetKind("LOAD-BALANCER-LOCAL", "hash:ip,port")
LOAD_BALANCER_FW = SetKind("LOAD-BALANCER-FW", "hash:ip,port")
SOURCE_IP = SetKind("LOAD-BALANCER-SOURCE-IP", "hash:ip,port,ip")
SOURCE_CIDR = SetKind("LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net")
LOOP_BACK = SetKind("LOOP-BACK", "hash:ip,port,ip")
HEALTH_PORTS = SetKind("HEALTH-CHECK-NODE-PORT", "bitmap:port")
REFUSED = SetKind("REFUSED", "hash:ip,port")
"""Frontends without an endpoint."""
DROPPED = SetKind("DROPPED", "hash:ip,port")
"""Frontends with traffic policy Local without an endpoint on this node: packets of all clients are dropped."""
DROPPED_OUTSIDE = SetKind("DROPPED-OUTSIDE", "hash:ip,port")
"""The same, but only packets of clients outside the cluster are dropped."""


def _node_ports(infix: str) -> dict[str, SetKind]:
    kinds = {"tcp": ("TCP", "bitmap:port"), "udp": ("UDP", "bitmap:port"), "sctp": ("SCTP-HASH", "hash:ip,port")}
    return {protocol: SetKind(f"NODE-PORT-{infix}{name}", kind) for protocol, (name, kind) in kinds.items()}


NODE_PORT = _node_ports("")
NODE_PORT_LOCAL = _node_ports("LOCAL-")

SETS: tuple[SetKind, ...] = (
    LOOP_BACK, IPVS_IPS, CLUSTER_IP, EXTERNAL_IP, EXTERNAL_IP_LOCAL, LOAD_BALANCER, LOAD_BALANCER_LOCAL,
    LOAD_BALANCER_FW, SOURCE_IP, SOURCE_CIDR, *NODE_PORT.values(), *NODE_PORT_LOCAL.values(), HEALTH_PORTS,
    REFUSED, DROPPED, DROPPED_OUTSIDE,
)  # fmt: skip


def set_name(kind: SetKind, family: str) -> str:
    """The name of a set in the kernel, cut to the maximum length, as kube-proxy does."""
    return f"KUBE-{'6-' if family == 'ip6' else ''}{kind.name}"[:NAME_MAX]


def declare(kind: SetKind, family: str, elements: Iterable[str] = ()) -> IpSet:
    """A set with its elements."""
    return IpSet(
        name=set_name(kind, family),
        kind=kind.kind,
        family="inet6" if family == "ip6" else "inet",
        maxelem=_MAXELEM,
        elements=plain(elements),
    )
