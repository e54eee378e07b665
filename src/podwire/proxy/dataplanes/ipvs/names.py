"""Names of sets and chains, as kube-proxy has them, so that people and tools find what they know (pure).

Sets of IPv6 begin with ``KUBE-6-``. What kube-proxy has no name for is named here alike; the docs page says which.
"""

from collections.abc import Iterable
from typing import NamedTuple

from podwire.state.ipset import NAME_MAX, IpSet, plain

DEVICE = "kube-ipvs0"
"""The device that has every address of a Service, so that packets to it are delivered to this node."""

_MAXELEM = 1 << 20
"""Sixteen times what kube-proxy's sets hold: an element for each endpoint, of 10,000 Services with 100."""

PROTOCOLS = ("tcp", "udp", "sctp")


class SetKind(NamedTuple):
    """What a set holds: its type, as ipset(8) names it."""

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
"""Frontends of policy Local without an endpoint here: nobody is answered."""
DROPPED_OUTSIDE = SetKind("DROPPED-OUTSIDE", "hash:ip,port")
"""The same for clients outside of the cluster alone."""


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
    """A set's name in the kernel, cut where that has no room, as kube-proxy cuts it."""
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
