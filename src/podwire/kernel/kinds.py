"""The kernel's half of every kind of state: read, apply, watch.

A row reads what a namespace holds under an owner mark, makes it hold the wanted values under that mark, and tells when
somebody may have changed them. The other half, with the mark itself, stands under the same name in ``state.kinds``.
A namespace is a path; None is that of the calling thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from podwire.errors import KernelError, Unsupported
from podwire.kernel import iptables, iptables_chains, network
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import Ticker
from podwire.kernel.iptables_watch import POLL_S
from podwire.kernel.iptables_watch import watch as watch_chains
from podwire.kernel.ipvs import Ipvs
from podwire.kernel.monitor import Monitor
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import NftMonitor
from podwire.state import ipvs_changes
from podwire.state.chain_marks import ChainMark
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import VirtualServer
from podwire.state.kinds import PATHS, NetworkMark, SetMark, TableName
from podwire.state.network import NetworkState, merge
from podwire.state.nft import AbsentTable, Table
from podwire.state.value import StateValue


class Watch(Protocol):
    """Tells when somebody may have changed what carries the mark; one's own changes count as well."""

    def fileno(self) -> int:
        """The descriptor that is readable when :meth:`changed` should be asked."""
        ...

    def changed(self) -> bool:
        """Whether something may have changed since the last call."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class KernelKind(NamedTuple):
    """One kind of state in a kernel. Each function is given the namespace and the owner mark.

    All three raise KernelError. ``apply`` returns what was done as text, and nothing when the kernel held it already;
    after a failure the values that were not refused are in force.
    """

    read: Callable[[NetnsPath, Any], tuple[StateValue, ...]]
    apply: Callable[[NetnsPath, Any, Sequence[Any]], tuple[str, ...]]
    watch: Callable[[NetnsPath, Any], Watch]


class _Watch(NamedTuple):
    """A watch made of three functions."""

    fileno: Callable[[], int]
    changed: Callable[[], bool]
    close: Callable[[], None]


def _poll(_netns_path: NetnsPath, _mark: object) -> Watch:
    """For kinds of which no kernel tells a change: they may have changed every 30 s."""
    ticker = Ticker(POLL_S)
    return _Watch(ticker.fileno, ticker.ticked, ticker.close)


# Objects of ip(8)


def _read_network(netns_path: NetnsPath, mark: NetworkMark | Literal["paths"]) -> tuple[NetworkState, ...]:
    with Netlink(netns_path) as netlink:
        if mark == PATHS:
            return (network.read_paths(netlink),)
        return (network.read(netlink, mark.owner, mark.sysctls),)


def _apply_network(netns_path: NetnsPath, mark: NetworkMark, wanted: Sequence[NetworkState]) -> tuple[str, ...]:
    with Netlink(netns_path) as netlink:
        report = network.apply(netlink, merge(wanted), mark.owner).check()
    return tuple(map(str, report.applied))


def _watch_network(netns_path: NetnsPath, _mark: NetworkMark) -> Watch:
    monitor = Monitor(netns_path)
    return _Watch(monitor.fileno, lambda: bool(monitor.read()), monitor.close)


# nftables


def _read_tables(netns_path: NetnsPath, names: Sequence[TableName]) -> tuple[Table, ...]:
    with Nft(netns_path) as nft:
        return tuple(table for name in names if (table := nft.read(*name)) is not None)


def _apply_tables(netns_path: NetnsPath, _names: Sequence[TableName], wanted: Sequence[Table]) -> tuple[str, ...]:
    done, failures = [], []
    with Nft(netns_path) as nft:
        for table in wanted:
            try:
                if transaction := nft.apply(table):
                    done.append(str(transaction))
            except KernelError as failure:
                failures.append(failure)
    if failures:
        raise failures[0]
    return tuple(done)


def _apply_absent(netns_path: NetnsPath, names: Sequence[TableName], _wanted: Sequence[AbsentTable]) -> tuple[str, ...]:
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


def _apply_chains(netns_path: NetnsPath, mark: ChainMark, wanted: Sequence[Ruleset]) -> tuple[str, ...]:
    return iptables_chains.apply(netns_path, mark, wanted)


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
        own = [name for name in sets.names() if name.startswith(mark.prefixes)] if mark.prefixes else []
        read = map(sets.read, dict.fromkeys((*mark.names, *own)))
        return tuple(each for each in read if each is not None)


def _apply_sets(netns_path: NetnsPath, _mark: SetMark, wanted: Sequence[IpSet]) -> tuple[str, ...]:
    with IpSets(netns_path) as sets:
        return tuple(str(operation) for each in wanted for operation in sets.apply(each))


def _read_servers(netns_path: NetnsPath, flag: int) -> tuple[VirtualServer, ...]:
    with Ipvs(netns_path) as ipvs:
        return ipvs.read([server.key for server in ipvs.servers() if server.flags & flag])


def _apply_servers(netns_path: NetnsPath, flag: int, wanted: Sequence[VirtualServer]) -> tuple[str, ...]:
    have = {server.key: server for server in _read_servers(netns_path, flag)}
    steps = ipvs_changes.plan(have, {server.key: server for server in wanted})
    with Ipvs(netns_path) as ipvs:
        ipvs.apply(steps)
    return tuple(map(str, steps))


KERNEL_KINDS: dict[str, KernelKind] = {
    "network": KernelKind(_read_network, _apply_network, _watch_network),
    "nftables": KernelKind(_read_tables, _apply_tables, _watch_tables),
    "iptables": KernelKind(_read_chains, _apply_chains, _watch_chains),
    "ipset": KernelKind(_read_sets, _apply_sets, _poll),
    "ipvs": KernelKind(_read_servers, _apply_servers, _poll),
    "absent nftables": KernelKind(_read_tables, _apply_absent, _watch_tables),
}
"""Every kind by the name that it has in ``state.kinds.KINDS``."""


def read_values(netns_path: NetnsPath, marks: Mapping[str, Any]) -> tuple[StateValue, ...]:
    """What a namespace holds under owner marks, which are given by the names of their kinds; in the order of marks.

    Raises: KernelError.
    """
    return tuple(value for name, mark in marks.items() for value in KERNEL_KINDS[name].read(netns_path, mark))
