"""The kernel state of the ``ipvs`` data plane for :mod:`podwire.proxy.tracing`: as planned, and as it is held."""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.kernel.iptables import FAMILIES
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplanes.ipvs.contents import Contents
from podwire.proxy.dataplanes.ipvs.layout import IpvsLayout
from podwire.proxy.dataplanes.ipvs.names import DEVICE, SETS, set_name
from podwire.proxy.nodeports import within
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.chain_marks import PROXY_IPVS
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import OWNER_FLAG, VirtualServer
from podwire.state.kinds import PATHS, SetMark
from podwire.state.network import NetworkState
from podwire.state.value import StateValue
from podwire.trace.ipset import Elements
from podwire.trace.iptables import Tracer
from podwire.trace.packet import LocalAddresses

OWNER_MARKS: Mapping[str, Any] = {
    "network": PATHS,
    "iptables": PROXY_IPVS,
    "ipset": SetMark(tuple(set_name(kind, family) for family in FAMILIES for kind in SETS)),
    "ipvs": OWNER_FLAG,
}


def planned(services: ServiceMap, facts: NodeFacts, machine: LocalAddresses) -> Tracer:
    """The state that would be programmed."""
    own = tuple(sorted(machine.addresses))
    node_ports = within(own, facts.node_port_ranges) if facts.node_port_ranges else facts.addresses
    contents_of_families: list[Contents] = []
    rulesets: list[Ruleset] = []
    for family in FAMILIES:
        contents = Contents(IpvsLayout(family, facts, node_ports), own)
        contents.change(ports_of_family(services, family))
        rulesets += contents.rulesets()
        contents_of_families.append(contents)
    bound = (address for contents in contents_of_families for address in contents.addresses)
    tracer = Tracer(rulesets, LocalAddresses(addresses=machine.addresses | frozenset(bound)))
    tracer.sets = {s.name: Elements(s.kind, s.elements) for contents in contents_of_families for s in contents.sets()}
    for contents in contents_of_families:
        tracer.servers |= {(k.protocol, k.address, k.port): server for k, server in contents.servers.items()}
    return tracer


def held(values: Sequence[StateValue], _netns_path: NetnsPath, machine: LocalAddresses) -> Tracer:
    """The state that the kernel holds."""
    states = [value for value in values if isinstance(value, NetworkState)]
    sets = [value for value in values if isinstance(value, IpSet)]
    servers = [value for value in values if isinstance(value, VirtualServer)]
    bound = (address.cidr for state in states for address in state.addresses if address.link == DEVICE)
    addresses = machine.addresses | frozenset(cidr.partition("/")[0] for cidr in bound)
    tracer = Tracer([value for value in values if isinstance(value, Ruleset)], LocalAddresses(addresses=addresses))
    tracer.sets = {s.name: Elements(s.kind, s.elements) for s in sets}
    tracer.servers = {(server.key.protocol, server.key.address, server.key.port): server for server in servers}
    return tracer
