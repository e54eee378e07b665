"""The kernel's state for pods with addresses of the cloud's interfaces (pure).

The cloud passes a packet only at the interface that has its source address. So the packets of a pod leave by the
interface of the pod's address, which takes policy rules and one table for each interface:

    512    to P lookup main              packets to pods of this node, P are the addresses of an interface
    1024   fwmark 0x80/0x80 lookup main  answers of connections that came to the node's own address
    1536   from P to V lookup T          V are the networks of the cloud, T is the table of the interface

and in the table T ``default via <router> dev <interface> onlink``. What leaves the cloud takes the main table and gets
the node's own address, which is on the first interface; with ``externalNAT`` a gateway of the cloud translates, and
the rule is ``from P lookup T``. The table ``podwire-routing-cloud-marks`` marks connections that arrive at the first
interface for the node itself (NodePorts): their answers have the address of a pod when the route is chosen.

The numbers are those of amazon-vpc-cni-k8s (layout ``aws``) and of Alibaba's Terway in its mode ENIIP with policy
routing (layout ``terway``), so what an operator knows of these holds here, too. Neither is used by podwire.

An interface with addresses of both families is there twice, with the same hardware address: once for each family.

Cost: two rules for each merged network of addresses; a packet passes the rules in their order.
"""

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_network

import msgspec

from podwire.cluster.cloudinterfaces import NodeInterfaces, PodInterface
from podwire.routing.nodes import LocalNode
from podwire.routing.paths import PathState
from podwire.state.link import Link
from podwire.state.network import NetworkState
from podwire.state.nft import Chain, Table
from podwire.state.nft_text import parse_rule
from podwire.state.route import TABLE_MAIN, Address, FibRule, Route, Sysctl

MARKS_TABLE = "podwire-routing-cloud-marks"
MARK = 0x80
"""The bit that the AWS VPC plugin uses for the same connections; no data plane of podwire does."""
_PRIORITY_MANGLE = -150


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of policy rules, and the table of an interface: ``table`` plus its number at the instance."""

    to_pods: int
    answers: int
    from_pods: int
    table: int


LAYOUTS: Mapping[str, Layout] = {
    "aws": Layout(to_pods=512, answers=1024, from_pods=1536, table=1),
    "terway": Layout(to_pods=512, answers=1024, from_pods=2048, table=1000),
}


def device_of(me: LocalNode, interface: PodInterface) -> str:
    """The name of an interface's device; empty while the kernel has none with its hardware address."""
    mac = interface.mac.lower()
    return next((name for name, device in me.underlay.devices.items() if device.mac == mac), "")


def plan_interfaces(me: LocalNode, node: NodeInterfaces, layout: Layout, *, external_nat: bool) -> NetworkState:
    """Devices, tables and rules of all interfaces whose devices are there."""
    links: list[Link] = []
    addresses: list[Address] = []
    routes: list[Route] = []
    rules: list[FibRule] = []
    sysctls: list[Sysctl] = []
    for interface in node.interfaces:
        device, table = device_of(me, interface), layout.table + interface.index
        if not device:
            continue
        links.append(Link(name=device, mtu=me.underlay.mtu))
        if interface.address:
            addresses.append(Address(link=device, cidr=interface.address, noprefixroute=True))
        routes += _ways_out(interface, device, table)
        sysctls += _sysctls(interface, device)
        rules += _rules(interface, node, layout, external_nat=external_nat)
    for six in sorted({rule.v6 for rule in rules}):
        rules.append(FibRule(priority=layout.answers, mark=MARK, mask=MARK, table=TABLE_MAIN, v6=six))
    return NetworkState(
        links=tuple(links),
        addresses=tuple(addresses),
        routes=tuple(routes),
        rules=tuple(rules),
        sysctls=tuple(sysctls),
    )


def table_of(state: PathState, destination: IPv4Address | IPv6Address) -> int:
    """The table in which the route of a packet from a pod is looked up: that of its interface, else the main one."""
    if state.source is None:
        return TABLE_MAIN
    for rule in sorted(state.network.rules, key=lambda rule: rule.priority):
        from_pods = rule.priority in (layout.from_pods for layout in LAYOUTS.values())
        if from_pods and _contains(rule.src, state.source) and (not rule.dst or _contains(rule.dst, destination)):
            return rule.table
    return TABLE_MAIN


def _contains(text: str, address: IPv4Address | IPv6Address) -> bool:
    return bool(text) and address in ip_network(text)


def marks_table(me: LocalNode) -> Table:
    """Marks connections that arrive at the first interface for the node itself, and the answers to them."""
    link = me.underlay.link
    texts = (
        (
            f'iifname "{link}" fib daddr type local ct state new ct mark set ct mark | 0x{MARK:08x}',
            "to the node",
        ),
        (
            f'iifname != "{link}" ct mark & 0x{MARK:08x} == 0x{MARK:08x} meta mark set meta mark | 0x{MARK:08x}',
            "answers",
        ),
    )
    rules = tuple(msgspec.structs.replace(parse_rule(text), comment=comment) for text, comment in texts)
    chain = Chain(name="prerouting", type="filter", hook="prerouting", priority=_PRIORITY_MANGLE, rules=rules)
    return Table(family="inet", name=MARKS_TABLE, comment="podwire routing", chains=(chain,))


def _ways_out(interface: PodInterface, device: str, table: int) -> Iterator[Route]:
    six = ":" in interface.gateway
    yield Route(dst=f"{interface.gateway}/{128 if six else 32}", link=device, table=table, scope="" if six else "link")
    yield Route(dst="::/0" if six else "default", via=interface.gateway, link=device, onlink=True, table=table)


def _rules(interface: PodInterface, node: NodeInterfaces, layout: Layout, *, external_nat: bool) -> Iterator[FibRule]:
    table = layout.table + interface.index
    for network in interface.networks:
        yield FibRule(priority=layout.to_pods, dst=str(network), table=TABLE_MAIN)
        if external_nat:
            yield FibRule(priority=layout.from_pods, src=str(network), table=table)
            continue
        for text in node.networks:
            if ip_network(text).version == network.version:
                yield FibRule(priority=layout.from_pods, src=str(network), dst=text, table=table)


def _sysctls(interface: PodInterface, device: str) -> Iterator[Sysctl]:
    if ":" in interface.gateway:
        # Else a router announcement adds a default route by this device to the main table.
        yield Sysctl(path=f"net/ipv6/conf/{device}/accept_ra", value="0")
        return
    # The way back of a packet is found without the rule for its source, so a strict check would drop it.
    yield Sysctl(path=f"net/ipv4/conf/{device}/rp_filter", value="2")
