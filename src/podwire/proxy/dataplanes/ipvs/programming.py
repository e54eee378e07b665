"""Reads and writes the kernel state of the ``ipvs`` data plane: virtual servers, device, sets, rules.

Virtual servers with our flag are ours. Virtual servers of kube-proxy have no mark: while the device has no alias of
ours, they are the virtual servers at the addresses of the device and at the node ports in the sets, and they become
ours. All other virtual servers are foreign, and so are those in ``excludeCIDRs`` without our flag.
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
    """The kernel parameters of the namespace that this mode needs, with the values of kube-proxy.

    Connection tracking translates replies. The kernel forgets connections and affinity to a removed real server.
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
    """The device with its addresses; it stays down, because the kernel accepts packets to its addresses anyway."""
    return NetworkState(
        links=(Link(DEVICE, kind="dummy", up=False, alias=OWNER.alias_prefix),),
        addresses=tuple(Address(DEVICE, address) for address in addresses),
        sysctls=sysctls(settings),
    )


def check_scheduler(name: str) -> None:
    """Creates a virtual server with a scheduler in a new namespace, so that the kernel loads the scheduler's module.

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
        """The number of rules that the last change wrote, by family and table."""

    def close(self) -> None:
        """Closes the sockets to the kernel."""
        for tool in self._tools.values():
            tool.close()
        for source in (self.ipvs, self.watch, self.sets, self._netlink):
            source.close()

    # The device

    def addresses(self) -> tuple[frozenset[str], frozenset[str]]:
        """The addresses of the node's other devices, and the addresses of the device; link-local ones are left out.

        Raises: KernelError.
        """
        own: set[str] = set()
        bound: set[str] = set()
        for entry in network.read_paths(self._netlink).addresses:
            address = entry.cidr.partition("/")[0]
            if not address.startswith("fe80:"):
                (bound if entry.link == DEVICE else own).add(address)
        return frozenset(own), frozenset(bound)

    def make_device(self, settings: IpvsSettings) -> list[str]:
        """Creates the device if it does not exist.

        The device is created first and removed last: cleaning up looks for the device to find the other state.


        Raises: KernelError.
        """
        if any(link.name == DEVICE for link in network.read_links(self._netlink)):
            return []
        device = msgspec.structs.replace(device_state((), settings), sysctls=())
        return list(map(str, network.add(self._netlink, device).check().applied))

    def shape_device(self, addresses: Iterable[str], settings: IpvsSettings) -> Report:
        """Makes the device hold exactly these addresses.

        Raises: KernelError.
        """
        report = network.apply(self._netlink, device_state(addresses, settings), OWNER).check()
        self._index = network.read_link(self._netlink, DEVICE).index
        return report

    def bind(self, addresses: Collection[str]) -> None:
        """Adds addresses to the device.

        Raises: KernelError.
        """
        self._addresses(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, addresses, "add")

    def unbind(self, addresses: Collection[str]) -> None:
        """Removes addresses from the device.

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
        """Removes the device with its addresses.

        Raises: KernelError.
        """
        network.remove(self._netlink, OWNER).check()

    # Virtual servers

    def servers(
        self, exclude: Iterable[str], known: Container[Key] = ()
    ) -> tuple[dict[Key, VirtualServer], frozenset[Key]]:
        """Our virtual servers, including those of kube-proxy, and the keys of foreign virtual servers.

        Virtual servers in ``known`` are ours even without the flag, which ``ipvsadm -E`` removes.

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

        listed = {server.key: server for server in self.ipvs.servers()}
        own = [key for key, server in listed.items() if ours(server)]
        servers = {server.key: server for server in self.ipvs.read(own)} if own else {}
        return servers, frozenset(listed.keys() - set(own))

    def _of_kube_proxy(self) -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
        """Addresses of the device and node ports of the sets, while these belong to kube-proxy."""
        device = next((link for link in network.read_links(self._netlink) if link.name == DEVICE), None)
        if device is None or dataplane.OWNER.owns_link(device):
            return frozenset(), frozenset()
        _, bound = self.addresses()
        return bound, self._node_ports()

    def _node_ports(self) -> frozenset[tuple[str, int]]:
        """The node ports in the sets, with their protocol."""
        by_name = {set_name(names.NODE_PORT[p], family): p for p in ("tcp", "udp") for family in FAMILIES}
        sets = ((protocol, self.sets.read(name)) for name, protocol in by_name.items())
        return frozenset((protocol, int(port)) for protocol, held in sets if held for port in held.elements)

    def forget(self, keys: Iterable[Key]) -> None:
        """Deletes the flows of removed virtual servers, so that their next packets are translated again.

        Otherwise packets of a UDP client that keeps its socket are lost, and a TCP client waits for a long time-out.

        Raises: KernelError.
        """
        removed = {(key.protocol.upper(), key.address, key.port) for key in keys}

        def stale(flow: Flow) -> bool:
            return not flow.redirected and (flow.protocol, flow.original.dst, flow.original.dport) in removed

        if removed:
            with Conntrack(self._netns_path) as conntrack:
                for protocol in sorted({protocol for protocol, _, _ in removed}):
                    conntrack.forget(stale, protocol=protocol)

    def set_timeouts(self, settings: IpvsSettings) -> None:
        """Sets the configured timeouts, if they differ from those of the kernel.

        Raises: KernelError.
        """
        wanted = Timeouts(settings.tcp_timeout, settings.tcp_fin_timeout, settings.udp_timeout)
        if any(wanted):
            current = self.ipvs.timeouts()
            if any(new and new != old for new, old in zip(wanted, current, strict=True)):
                self.ipvs.set_timeouts(wanted)

    # Sets

    def shape_sets(self, wanted: Iterable[IpSet]) -> Callable[[], list[Operation]]:
        """Creates sets and adds missing elements; returns a function that removes unwanted elements.

        That function returns all operations, including the added elements.

        Raises: KernelError.
        """
        additions: list[Operation] = []
        deletions: list[Operation] = []
        for ip_set in wanted:
            operations = diff(self.sets.read(ip_set.name), ip_set)
            swapped = any(isinstance(operation, Swap) for operation in operations)
            additions += [op for op in operations if swapped or not isinstance(op, Delete)]
            deletions += [op for op in operations if not swapped and isinstance(op, Delete)]
        self.sets.commit(additions)

        def delete() -> list[Operation]:
            self.sets.commit(deletions)
            return additions + deletions

        return delete

    def add(self, elements: Iterable[IpSet]) -> list[Operation]:
        """Adds elements to sets; returns the operations.

        Raises: KernelError.
        """
        operations: list[Operation] = [Add(ip_set, key) for ip_set in elements for key in ip_set.elements]
        self.sets.commit(operations)
        return operations

    def delete(self, elements: Iterable[IpSet]) -> list[Operation]:
        """Deletes elements from sets; returns the operations.

        Raises: KernelError.
        """
        operations: list[Operation] = [Delete(ip_set, key) for ip_set in elements for key in ip_set.elements]
        self.sets.commit(operations)
        return operations

    def drop_sets(self) -> None:
        """Deletes our sets.

        Raises: KernelError.
        """
        self.sets.destroy(set_name(kind, family) for family in FAMILIES for kind in SETS)

    # Rules

    def shape_rules(self, wanted: Mapping[str, Sequence[Ruleset]]) -> list[str]:
        """Makes the kernel hold these rules, by family; reads the kernel first, and returns the written texts.

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

        make_tables(self.programs, PROXY_IPVS.tables, self._netns_path, self.watch.ignore_process)
        self.watch.notifications_off(write)
        return [text for text in written if text]

    def change_rules(self, family: str, before: Iterable[Ruleset], now: Iterable[Ruleset]) -> str:
        """Writes the difference between two states without reading the kernel; returns the written text.

        Raises: KernelError.
        """
        saved = {ruleset.table: {**dict(ruleset.chains), **_jumps(ruleset)} for ruleset in before}
        text = repair(saved, now, PROXY_IPVS)
        self._tools[family].restore(text, self.watch.ignore_process)
        self._count(family, text)
        return text

    def _count(self, family: str, text: str) -> None:
        counts = count_rules(text)
        self.last_rules |= {(family, table): counts.get(table, 0) for table in PROXY_IPVS.tables}

    def drop_rules(self) -> None:
        """Removes our rules, except rules that another mode in force has too.

        Raises: KernelError.
        """
        self.watch.notifications_off(lambda: sum(xtables.remove(tool, PROXY_IPVS) for tool in self._tools.values()))
        drop_tables(PROXY_IPVS.tables, self._netns_path, self.watch.ignore_process)


def _jumps(ruleset: Ruleset) -> dict[str, tuple[str, ...]]:
    rules: dict[str, tuple[str, ...]] = {}
    for chain, rule in ruleset.jumps:
        rules[chain] = (*rules.get(chain, ()), rule)
    return rules
