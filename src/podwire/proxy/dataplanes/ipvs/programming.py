"""The kernel of one namespace as the ``ipvs`` data plane reads and writes it: virtual servers, device, sets, rules.

Ours are virtual servers with our flag. kube-proxy's have no mark: as long as the device is its own (without our alias),
they are those at an address of the device, and at node ports of its sets. Everything else is foreign, and so is what
lies in ``excludeCIDRs`` without our flag.
"""

import os
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path

import msgspec

from podwire.errors import KernelNotFound, Unsupported
from podwire.kernel import netns, network
from podwire.kernel.conntrack import Conntrack, Flow
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import FAMILIES, Iptables, Programs, choose
from podwire.kernel.iptables_tables import drop_tables, make_tables
from podwire.kernel.iptables_watch import watch
from podwire.kernel.ipvs import Ipvs, Timeouts
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.network import Report
from podwire.kernel.route_codec import encode_address
from podwire.kernel.uapi import NLM_F_CREATE, NLM_F_REPLACE, RTM_DELADDR, RTM_NEWADDR
from podwire.proxy import dataplane
from podwire.proxy.dataplanes.ipvs import names
from podwire.proxy.dataplanes.ipvs.compile import flags_of
from podwire.proxy.dataplanes.ipvs.names import DEVICE, SETS, set_name
from podwire.proxy.servicemap import IpvsSettings
from podwire.proxy.xtables import kernel as xtables
from podwire.state.chain_marks import PROXY_IPVS
from podwire.state.ipset import IpSet
from podwire.state.ipset_diff import Add, Delete, Operation, Swap, diff
from podwire.state.iptables import Ruleset
from podwire.state.iptables_diff import count_rules, count_tables, repair
from podwire.state.ipvs import OWNER_FLAG, Key, VirtualServer
from podwire.state.ipvs_changes import Step
from podwire.state.link import Link
from podwire.state.network import NetworkState
from podwire.state.route import Address, Sysctl

OWNER = msgspec.structs.replace(dataplane.OWNER, links=(DEVICE,))
_IP6 = Path("/proc/sys/net/ipv6")


def sysctls(settings: IpvsSettings) -> tuple[Sysctl, ...]:
    """The parameters of the namespace that this mode needs, as kube-proxy sets them.

    Replies find their way through connection tracking; a connection to a real server that is gone is forgotten, and so
    is what a client was bound to.
    """
    values = {
        "net/ipv4/vs/conntrack": "1",
        "net/ipv4/vs/expire_nodest_conn": "1",
        "net/ipv4/vs/expire_quiescent_template": "1",
    }
    if settings.strict_arp:
        values |= {"net/ipv4/conf/all/arp_ignore": "1", "net/ipv4/conf/all/arp_announce": "2"}
    return tuple(Sysctl(path, value) for path, value in values.items())


def device_state(addresses: Iterable[str], settings: IpvsSettings) -> NetworkState:
    """The device with its addresses; it stays down, since its addresses are delivered all the same."""
    return NetworkState(
        links=(Link(DEVICE, kind="dummy", up=False, alias=OWNER.alias_prefix),),
        addresses=tuple(Address(DEVICE, address) for address in addresses),
        sysctls=sysctls(settings),
    )


def check_scheduler(name: str) -> None:
    """Tries a scheduler on a virtual server in a namespace of its own; the kernel loads its module then.

    Raises: Unsupported when the kernel has no such scheduler; KernelError.
    """
    server = VirtualServer(Key("tcp", "198.51.100.0", 20000), name, flags_of(name))
    descriptor = netns.create_anonymous()
    try:
        with Ipvs(descriptor) as scratch:
            scratch.apply((Step("add", server),))
    except KernelNotFound as failure:
        raise Unsupported(f"ip_vs_{name}", detail=f"the kernel has no scheduler {name}") from failure
    finally:
        os.close(descriptor)


class Programming:
    """The sockets and programs of one namespace (None: that of this process).

    Raises: Unsupported when the kernel has no IPVS or the machine no iptables.
    """

    def __init__(self, netns_path: NetnsPath, programs: Programs | None = None) -> None:
        self._netns_path = netns_path
        self.ipvs = Ipvs(netns_path)
        self.programs = programs or xtables.held_by(netns_path, PROXY_IPVS) or choose(netns_path)
        self.watch = watch(self.programs, PROXY_IPVS.tables, netns_path)
        self.families = FAMILIES if _IP6.exists() else FAMILIES[:1]
        self.sets = IpSets(netns_path)
        self._netlink = Netlink(netns_path)
        self._tools = {family: Iptables(family, self.programs, netns_path) for family in self.families}
        self._index = 0
        self.last_rules: dict[tuple[str, str], int] = {}
        """Rules that the last change wrote, by family and table."""

    def close(self) -> None:
        """Closes the sockets to the kernel."""
        for tool in self._tools.values():
            tool.close()
        for each in (self.ipvs, self.watch, self.sets, self._netlink):
            each.close()

    # The device

    def addresses(self) -> tuple[frozenset[str], frozenset[str]]:
        """The addresses of the node's other devices, but those of one link alone, and those of ours (or kube-proxy's).

        Raises: KernelError.
        """
        own: set[str] = set()
        bound: set[str] = set()
        for each in network.read_paths(self._netlink).addresses:
            address = each.cidr.partition("/")[0]
            if not address.startswith("fe80:"):
                (bound if each.link == DEVICE else own).add(address)
        return frozenset(own), frozenset(bound)

    def make_device(self, settings: IpvsSettings) -> list[str]:
        """Makes the device where there is none: it comes before all else and goes last, so by it the rest is found.

        Raises: KernelError.
        """
        if any(link.name == DEVICE for link in network.read_links(self._netlink)):
            return []
        made = msgspec.structs.replace(device_state((), settings), sysctls=())
        return list(map(str, network.add(self._netlink, made).check().applied))

    def shape_device(self, addresses: Iterable[str], settings: IpvsSettings) -> Report:
        """Makes the device hold exactly these addresses.

        Raises: KernelError.
        """
        report = network.apply(self._netlink, device_state(addresses, settings), OWNER).check()
        self._index = network.read_link(self._netlink, DEVICE).index
        return report

    def bind(self, addresses: Collection[str]) -> None:
        """Puts addresses on the device.

        Raises: KernelError.
        """
        self._addresses(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, addresses, "add")

    def unbind(self, addresses: Collection[str]) -> None:
        """Takes addresses off the device.

        Raises: KernelError.
        """
        self._addresses(RTM_DELADDR, 0, addresses, "delete")

    def _addresses(self, kind: int, flags: int, addresses: Collection[str], verb: str) -> None:
        values = [Address(DEVICE, address, proto=OWNER.route_protocol) for address in addresses]
        messages = [Message(kind, flags, encode_address(x, {DEVICE: self._index}), verb, x) for x in values]
        for failure in self._netlink.batch(messages).values():
            if verb != "delete" or not isinstance(failure, KernelNotFound):
                raise failure

    def drop_device(self) -> None:
        """Takes the device away, and its addresses with it.

        Raises: KernelError.
        """
        network.remove(self._netlink, OWNER).check()

    # Virtual servers

    def servers(
        self, exclude: Iterable[str], known: Container[Key] = ()
    ) -> tuple[dict[Key, VirtualServer], frozenset[Key]]:
        """Our virtual servers, kube-proxy's among them, and the keys of foreign ones.

        Those that this process made are ours also when somebody took the flag off, as ``ipvsadm -E`` does.

        Raises: KernelError.
        """
        ranges = [ip_network(text) for text in exclude]
        bound, node_ports = self._of_kube_proxy()

        def ours(server: VirtualServer) -> bool:
            key = server.key
            if server.flags & OWNER_FLAG or key in known:
                return True
            address = ip_address(key.address)
            if any(address in network for network in ranges):
                return False
            return key.address in bound or (key.protocol, key.port) in node_ports

        found = {server.key: server for server in self.ipvs.servers()}
        own = [key for key, server in found.items() if ours(server)]
        read = {server.key: server for server in self.ipvs.read(own)} if own else {}
        return read, frozenset(found.keys() - set(own))

    def _of_kube_proxy(self) -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
        """Addresses of the device and node ports of the sets, while they are kube-proxy's."""
        device = next((link for link in network.read_links(self._netlink) if link.name == DEVICE), None)
        if device is None or dataplane.OWNER.owns_link(device):
            return frozenset(), frozenset()
        _, bound = self.addresses()
        return bound, self._node_ports()

    def _node_ports(self) -> frozenset[tuple[str, int]]:
        """Node ports of the sets."""
        by_name = {set_name(names.NODE_PORT[p], family): p for p in ("tcp", "udp") for family in FAMILIES}
        held = ((protocol, self.sets.read(name)) for name, protocol in by_name.items())
        return frozenset((protocol, int(port)) for protocol, found in held if found for port in found.elements)

    def forget(self, keys: Iterable[Key]) -> None:
        """Forgets the flows of virtual servers that are gone, so that their next packet is looked at anew.

        Otherwise a UDP client that keeps its socket would go on to nowhere, and a TCP client would wait for long.

        Raises: KernelError.
        """
        gone = {(key.protocol.upper(), key.address, key.port) for key in keys}

        def stale(flow: Flow) -> bool:
            return not flow.redirected and (flow.protocol, flow.original.dst, flow.original.dport) in gone

        if gone:
            with Conntrack(self._netns_path) as conntrack:
                for protocol in sorted({protocol for protocol, _, _ in gone}):
                    conntrack.forget(stale, protocol=protocol)

    def set_timeouts(self, settings: IpvsSettings) -> None:
        """Sets the timeouts that are asked for and differ.

        Raises: KernelError.
        """
        wanted = Timeouts(settings.tcp_timeout, settings.tcp_fin_timeout, settings.udp_timeout)
        if any(wanted):
            have = self.ipvs.timeouts()
            if any(want and want != has for want, has in zip(wanted, have, strict=True)):
                self.ipvs.set_timeouts(wanted)

    # Sets

    def shape_sets(self, wanted: Iterable[IpSet]) -> Callable[[], list[Operation]]:
        """Makes the sets and adds what is missing; the function that is returned takes away what should not be there.

        It returns what was done, its own part included.

        Raises: KernelError.
        """
        done: list[Operation] = []
        later: list[Operation] = []
        for want in wanted:
            operations = diff(self.sets.read(want.name), want)
            whole = any(isinstance(each, Swap) for each in operations)
            done += [each for each in operations if whole or not isinstance(each, Delete)]
            later += [each for each in operations if not whole and isinstance(each, Delete)]
        self.sets.commit(done)

        def finish() -> list[Operation]:
            self.sets.commit(later)
            return done + later

        return finish

    def add(self, elements: Iterable[IpSet]) -> list[Operation]:
        """Adds elements to sets; what was done.

        Raises: KernelError.
        """
        operations: list[Operation] = [Add(each, key) for each in elements for key in each.elements]
        self.sets.commit(operations)
        return operations

    def delete(self, elements: Iterable[IpSet]) -> list[Operation]:
        """Takes elements out of sets; what was done.

        Raises: KernelError.
        """
        operations: list[Operation] = [Delete(each, key) for each in elements for key in each.elements]
        self.sets.commit(operations)
        return operations

    def drop_sets(self) -> None:
        """Takes our sets away.

        Raises: KernelError.
        """
        self.sets.destroy(set_name(kind, family) for family in FAMILIES for kind in SETS)

    # Rules

    def shape_rules(self, wanted: Mapping[str, Sequence[Ruleset]]) -> list[str]:
        """Makes the kernel hold these rules by family, reading it first; the texts that were written.

        Raises: KernelError.
        """
        written: list[str] = []

        def write() -> int:
            for family, rulesets in wanted.items():
                tool = self._tools[family]
                text = repair(xtables.read(tool), rulesets, PROXY_IPVS)
                tool.restore(text)
                self._count(family, text)
                written.append(text)
            return sum(map(count_tables, written))

        make_tables(self.programs, PROXY_IPVS.tables, self._netns_path, self.watch.started)
        self.watch.unheard(write)
        return [text for text in written if text]

    def change_rules(self, family: str, before: Iterable[Ruleset], now: Iterable[Ruleset]) -> str:
        """Writes what differs without reading; what was written.

        Raises: KernelError.
        """
        saved = {each.table: {**dict(each.chains), **_jumps(each)} for each in before}
        text = repair(saved, now, PROXY_IPVS)
        self._tools[family].restore(text, self.watch.started)
        self._count(family, text)
        return text

    def _count(self, family: str, text: str) -> None:
        found = count_rules(text)
        self.last_rules |= {(family, table): found.get(table, 0) for table in PROXY_IPVS.tables}

    def drop_rules(self) -> None:
        """Takes our rules away, as far as no other mode has them now.

        Raises: KernelError.
        """
        self.watch.unheard(lambda: sum(xtables.remove(tool, PROXY_IPVS) for tool in self._tools.values()))
        drop_tables(PROXY_IPVS.tables, self._netns_path, self.watch.started)


def _jumps(ruleset: Ruleset) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for chain, rule in ruleset.jumps:
        found[chain] = (*found.get(chain, ()), rule)
    return found
