"""The kernel's functions for every kind of state: read, apply, watch.

A row reads the values of a namespace under an owner mark, makes the namespace hold the desired values under that mark,
and reports possible changes by others. ``state.kinds`` has a row of the same name with the mark. A namespace is a path;
None is that of the calling thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from podwire.errors import KernelError, Unsupported
from podwire.kernel import bpf_state, ethtool, iptables, iptables_chains, network, ovs, udptunnel, wireguard
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import Ticker
from podwire.kernel.iptables_watch import POLL_S
from podwire.kernel.iptables_watch import watch as watch_chains
from podwire.kernel.ipvs import Ipvs
from podwire.kernel.monitor import Monitor
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_monitor import NftMonitor
from podwire.state import ipvs_changes
from podwire.state.chain_marks import ChainMark
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import VirtualServer
from podwire.state.kinds import PATHS, NetworkMark, SetMark, TableName
from podwire.state.network import NetworkState, merge
from podwire.state.nft import AbsentTable, Table
from podwire.state.ovs import OvsSwitch
from podwire.state.udptunnel import UdpTunnel
from podwire.state.value import StateValue
from podwire.state.wireguard import WireGuard, WireGuardMark


class Watch(Protocol):
    """Reports when values under the mark may have changed; changes by podwire count as well."""

    def fileno(self) -> int:
        """The descriptor; when it is readable, :meth:`changed` should be called."""
        ...

    def changed(self) -> bool:
        """Whether a value may have changed since the last call."""
        ...

    def close(self) -> None:
        """Stops the watch."""
        ...


class KernelKind(NamedTuple):
    """One kind of state in a kernel; each function takes the namespace and the owner mark.

    ``read``, ``apply`` and ``watch`` raise KernelError. ``apply`` returns the changes as text, empty when there were
    none; after a failure all values that the kernel did not refuse are in force.
    """

    read: Callable[[NetnsPath, Any], tuple[StateValue, ...]]
    apply: Callable[[NetnsPath, Any, Sequence[Any]], tuple[str, ...]]
    watch: Callable[[NetnsPath, Any], Watch]
    differs: Callable[[NetnsPath, Sequence[Any]], bool] | None = None
    """For a kind that notifies nobody of changes: whether something of the desired values is missing. It costs so
    little CPU time that it is called every second."""
    sessions: Callable[[NetnsPath, Sequence[Any]], frozenset[str]] | None = None
    """For a kind whose values have peers with public keys: those of the peers with which a session exists."""


class _Watch(NamedTuple):
    """A watch that consists of three functions."""

    fileno: Callable[[], int]
    changed: Callable[[], bool]
    close: Callable[[], None]


def _poll(_netns_path: NetnsPath, _mark: object) -> Watch:
    """For kinds without kernel notifications: reports a possible change every 30 s."""
    ticker = Ticker(POLL_S)
    return _Watch(ticker.fileno, ticker.period_ended, ticker.close)


# Objects of ip(8)


def _read_network(netns_path: NetnsPath, mark: NetworkMark | Literal["paths"]) -> tuple[NetworkState, ...]:
    with Netlink(netns_path) as netlink:
        if mark == PATHS:
            return (network.read_paths(netlink),)
        return (network.read(netlink, mark.owner, mark.sysctls),)


def _apply_network(netns_path: NetnsPath, mark: NetworkMark, desired: Sequence[NetworkState]) -> tuple[str, ...]:
    with Netlink(netns_path) as netlink:
        report = network.apply(netlink, merge(desired), mark.owner).check()
    return tuple(map(str, report.applied))


def _watch_network(netns_path: NetnsPath, _mark: NetworkMark) -> Watch:
    monitor = Monitor(netns_path)
    return _Watch(monitor.fileno, lambda: bool(monitor.read()), monitor.close)


# nftables


def _read_tables(netns_path: NetnsPath, names: Sequence[TableName]) -> tuple[Table, ...]:
    with Nft(netns_path) as nft:
        return tuple(table for name in names if (table := nft.read(*name)) is not None)


def _apply_tables(netns_path: NetnsPath, _names: Sequence[TableName], desired: Sequence[Table]) -> tuple[str, ...]:
    done, failures = [], []
    with Nft(netns_path) as nft:
        for table in desired:
            try:
                if transaction := nft.apply(table):
                    done.append(str(transaction))
            except KernelError as failure:
                failures.append(failure)
    if failures:
        raise failures[0]
    return tuple(done)


def _apply_absent(netns_path: NetnsPath, names: Sequence[TableName], _absent: Sequence[AbsentTable]) -> tuple[str, ...]:
    with Nft(netns_path) as nft:
        surplus = [name for name in names if name in nft.tables()]
        for family, name in surplus:
            nft.delete(family, name)
    return tuple(f"delete table {family} {name}" for family, name in surplus)


def _watch_tables(netns_path: NetnsPath, names: Sequence[TableName]) -> Watch:
    monitor = NftMonitor(netns_path)
    watched = {("", ""), *names}
    return _Watch(monitor.fileno, lambda: bool(watched & monitor.changed()), monitor.close)


# iptables


def _read_chains(netns_path: NetnsPath, mark: ChainMark) -> tuple[Ruleset, ...]:
    return iptables_chains.read(netns_path, mark)


def _apply_chains(netns_path: NetnsPath, mark: ChainMark, desired: Sequence[Ruleset]) -> tuple[str, ...]:
    return iptables_chains.apply(netns_path, mark, desired)


def _watch_chains(netns_path: NetnsPath, mark: ChainMark) -> Watch:
    held = (programs for programs, _ in iptables_chains.marked(netns_path, mark))
    return watch_chains(next(held, None) or iptables.choose(netns_path), mark.tables, netns_path)


# ipset and IPVS


def _read_sets(netns_path: NetnsPath, mark: SetMark) -> tuple[IpSet, ...]:
    try:
        sets = IpSets(netns_path)
    except Unsupported:
        return ()  # a kernel without ip_set holds no sets
    with sets:
        names = [name for name in sets.names() if name.startswith(mark.prefixes)] if mark.prefixes else []
        read = map(sets.read, dict.fromkeys((*mark.names, *names)))
        return tuple(ip_set for ip_set in read if ip_set is not None)


def _apply_sets(netns_path: NetnsPath, _mark: SetMark, desired: Sequence[IpSet]) -> tuple[str, ...]:
    with IpSets(netns_path) as sets:
        return tuple(str(operation) for ip_set in desired for operation in sets.apply(ip_set))


def _read_servers(netns_path: NetnsPath, flag: int) -> tuple[VirtualServer, ...]:
    with Ipvs(netns_path) as ipvs:
        return ipvs.read([server.key for server in ipvs.servers() if server.flags & flag])


def _apply_servers(netns_path: NetnsPath, flag: int, desired: Sequence[VirtualServer]) -> tuple[str, ...]:
    present = {server.key: server for server in _read_servers(netns_path, flag)}
    steps = ipvs_changes.plan(present, {server.key: server for server in desired})
    with Ipvs(netns_path) as ipvs:
        ipvs.apply(steps)
    return tuple(map(str, steps))


# WireGuard; the device of a process is reached by the socket of the process, whatever the namespace


def _read_wireguard(netns_path: NetnsPath, marks: Sequence[WireGuardMark]) -> tuple[WireGuard, ...]:
    return wireguard.read(netns_path, marks)


def _apply_wireguard(
    netns_path: NetnsPath, _marks: Sequence[WireGuardMark], desired: Sequence[WireGuard]
) -> tuple[str, ...]:
    done: list[str] = []
    failures = []
    for device in desired:
        try:
            done += wireguard.apply(netns_path, device)
        except KernelError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]
    return tuple(done)


# Tunnels of the backend udp; a tunnel is reached by the socket of its process


def _apply_tunnels(netns_path: NetnsPath, _names: Sequence[str], desired: Sequence[UdpTunnel]) -> tuple[str, ...]:
    return tuple(line for tunnel in desired for line in udptunnel.apply(netns_path, tunnel))


# Open vSwitch; a switch is reached by the sockets of its processes


def _apply_switches(netns_path: NetnsPath, _controls: Sequence[str], desired: Sequence[OvsSwitch]) -> tuple[str, ...]:
    return tuple(line for switch in desired for line in ovs.apply(netns_path, switch))


def _switches_differ(netns_path: NetnsPath, desired: Sequence[OvsSwitch]) -> bool:
    return any(ovs.differs(netns_path, switch) for switch in desired)


KERNEL_KINDS: dict[str, KernelKind] = {
    "network": KernelKind(_read_network, _apply_network, _watch_network),
    "nftables": KernelKind(_read_tables, _apply_tables, _watch_tables),
    "iptables": KernelKind(_read_chains, _apply_chains, _watch_chains),
    "ipset": KernelKind(_read_sets, _apply_sets, _poll),
    "ipvs": KernelKind(_read_servers, _apply_servers, _poll),
    "wireguard": KernelKind(_read_wireguard, _apply_wireguard, _poll, wireguard.differs, wireguard.sessions),
    "udp": KernelKind(udptunnel.read, _apply_tunnels, _poll, udptunnel.differs),
    "offload": KernelKind(ethtool.read, ethtool.apply, _poll),
    "ovs": KernelKind(ovs.read, _apply_switches, _poll, _switches_differ),
    "bpf": KernelKind(bpf_state.read, bpf_state.apply, _poll, bpf_state.differs),
    "absent nftables": KernelKind(_read_tables, _apply_absent, _watch_tables),
}
"""Every kind by its name in ``state.kinds.KINDS``."""


def read_values(netns_path: NetnsPath, marks: Mapping[str, Any]) -> tuple[StateValue, ...]:
    """The values of a namespace under owner marks, which are given by the names of their kinds; in the order of marks.

    Raises: KernelError.
    """
    return tuple(value for name, mark in marks.items() for value in KERNEL_KINDS[name].read(netns_path, mark))
