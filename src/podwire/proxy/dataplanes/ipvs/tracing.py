"""What the ``ipvs`` data plane puts into a kernel, for :mod:`podwire.proxy.tracing`: as planned, and as it is held."""

from podwire.kernel import network
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import FAMILIES
from podwire.kernel.ipvs import Ipvs
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplanes.ipvs.contents import Contents
from podwire.proxy.dataplanes.ipvs.dataplane import held as held_rules
from podwire.proxy.dataplanes.ipvs.layout import IpvsLayout
from podwire.proxy.dataplanes.ipvs.names import DEVICE, SETS, set_name
from podwire.proxy.nodeports import within
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import OWNER_FLAG
from podwire.trace.ipset import Elements
from podwire.trace.iptables import Tracer
from podwire.trace.packet import Machine


def planned(services: ServiceMap, facts: NodeFacts, machine: Machine) -> Tracer:
    """The state that would be programmed."""
    own = tuple(sorted(machine.addresses))
    node_ports = within(own, facts.node_port_ranges) if facts.node_port_ranges else facts.addresses
    made: list[Contents] = []
    rulesets: list[Ruleset] = []
    for family in FAMILIES:
        contents = Contents(IpvsLayout(family, facts, node_ports), own)
        contents.change(ports_of_family(services, family))
        rulesets += contents.rulesets()
        made.append(contents)
    bound = (address for contents in made for address in contents.addresses)
    tracer = Tracer(rulesets, Machine(addresses=machine.addresses | frozenset(bound)))
    tracer.sets = {each.name: Elements(each.kind, each.elements) for contents in made for each in contents.sets()}
    for contents in made:
        tracer.servers |= {(k.protocol, k.address, k.port): server for k, server in contents.servers.items()}
    return tracer


def held(netns: NetnsPath, machine: Machine) -> Tracer:
    """The state that the kernel holds.

    Raises: KernelError.
    """
    with Netlink(netns) as netlink:
        bound = (each for each in network.read_paths(netlink).addresses if each.link == DEVICE)
        addresses = machine.addresses | frozenset(each.cidr.partition("/")[0] for each in bound)
    tracer = Tracer(held_rules(netns), Machine(addresses=addresses))
    with IpSets(netns) as sets:
        found = (sets.read(set_name(kind, family)) for family in FAMILIES for kind in SETS)
        tracer.sets = {each.name: Elements(each.kind, each.elements) for each in found if each is not None}
    with Ipvs(netns) as ipvs:
        servers = ipvs.read(server.key for server in ipvs.servers() if server.flags & OWNER_FLAG)
    tracer.servers = {(each.key.protocol, each.key.address, each.key.port): each for each in servers}
    return tracer
