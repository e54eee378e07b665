"""The kinds of state in a kernel: one row each.

A row has the parser for the lines of a share, the owner mark that selects a kernel's values of the kind, and the
comparison. Shares, comparisons and ``podwire state`` go through the rows and name no kind. The row of the same name in
``kernel.kinds`` reads, applies and watches.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from podwire.errors import ConfigError
from podwire.state import bpf, drift, ipset, iptables, ipvs, network, nft_text, offload, ovs, udptunnel, wireguard
from podwire.state.bpf import BpfFolder
from podwire.state.chain_marks import ChainMark, chain_mark
from podwire.state.drift import Difference
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import VirtualServer
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import FAMILIES, AbsentTable, Table
from podwire.state.offload import Offload
from podwire.state.ovs import OvsSwitch
from podwire.state.udptunnel import UdpTunnel
from podwire.state.value import StateValue
from podwire.state.wireguard import WireGuard, WireGuardMark

Values = tuple[Any, ...]
"""Values of one kind."""

TableName = tuple[str, str]
"""Family and name."""


class Kind(NamedTuple):
    """One kind of state; ``mark`` returns the argument for ``read`` in ``kernel.kinds``, which ``compare`` gets too."""

    type: type[StateValue]
    parse: Callable[[Sequence[str], str], Values]
    """Parses the kind's lines in a share; the second argument is the share's title for errors. Raises ConfigError or
    ValueError."""
    mark: Callable[[OwnerMark | None, Values], Any]
    """The mark that selects the share's values of a kernel, from the share's own mark and its values of the kind; None:
    the share has no such values."""
    compare: Callable[[str, Values, Values, Any], Iterator[Difference]]
    """The differences; arguments: the share's title, the kernel's values, the share's values, the mark."""
    located: Callable[[Any], Iterator[tuple[str, str]]]
    """Each line of a value that has a meaning by itself, with its location inside the share (may be empty)."""
    starts: tuple[str, ...] = ()
    """Prefixes of the kind's lines, or of the first line of a block; none: every line that no other kind has."""
    end: str = ""
    """The last line of a block; empty: the kind has no blocks."""


def _blocks(lines: Sequence[str], end: str) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        block.append(line)
        if line == end:
            yield block
            block = []


# Objects of ip(8)


class NetworkMark(NamedTuple):
    """The owner of the objects, and the share's sysctls."""

    owner: OwnerMark
    sysctls: tuple[str, ...] = ()


PATHS: Literal["paths"] = "paths"
"""Instead of a :class:`NetworkMark`: reads the devices, addresses, routes and rules of every owner and nothing else."""


def _network_parse(lines: Sequence[str], where: str) -> Values:
    return (network.parse("\n".join(lines), where),)


def _network_mark(owner: OwnerMark | None, desired: Values) -> NetworkMark | None:
    paths = (sysctl.path for state in desired for sysctl in state.sysctls)
    return NetworkMark(owner, tuple(paths)) if owner is not None else None


def _network_compare(title: str, present: Values, desired: Values, mark: NetworkMark) -> Iterator[Difference]:
    return drift.compare_network(title, network.merge(present), network.merge(desired), mark.owner)


# nftables


def _tables_parse(lines: Sequence[str], where: str) -> Values:
    return tuple(_parse_table(block, where) for block in _blocks(lines, "}"))


def _parse_table(lines: list[str], where: str) -> Table:
    tokens = lines[0].split()
    if len(tokens) != 4 or tokens[1] not in FAMILIES or tokens[3] != "{":
        raise ConfigError(where, lines[0], f"expected: table FAMILY NAME {{, FAMILY one of {', '.join(FAMILIES)}")
    return nft_text.parse_table("\n".join(lines))


def _table_names(_owner: OwnerMark | None, desired: Values) -> tuple[TableName, ...] | None:
    return tuple((table.family, table.name) for table in desired) or None


def _tables_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    held = {(table.family, table.name): table for table in present}
    for table in desired:
        yield from drift.compare_table(title, held.get((table.family, table.name)), table)


def _absent_parse(lines: Sequence[str], where: str) -> Values:
    return tuple(_parse_absent(line, where) for line in lines)


def _parse_absent(line: str, where: str) -> AbsentTable:
    tokens = line.split()
    if len(tokens) != 4 or tokens[2] not in FAMILIES:
        raise ConfigError(where, line, f"expected: no table FAMILY NAME, FAMILY one of {', '.join(FAMILIES)}")
    return AbsentTable(tokens[2], tokens[3])


def _absent_compare(title: str, present: Values, _desired: Values, _mark: object) -> Iterator[Difference]:
    for table in present:
        yield from drift.surplus_table(title, table)


# iptables


def _chains_parse(lines: Sequence[str], where: str) -> Values:
    return tuple(_parse_ruleset(block, where) for block in _blocks(lines, "COMMIT"))


def _parse_ruleset(lines: list[str], where: str) -> Ruleset:
    try:
        return iptables.parse(lines)
    except ValueError as failure:
        raise ConfigError(where, lines[0], str(failure)) from failure


def _chain_mark(_owner: OwnerMark | None, desired: Values) -> ChainMark | None:
    return chain_mark(desired) if desired else None


def _chains_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    held = {(ruleset.family, ruleset.table): ruleset for ruleset in present}
    for ruleset in desired:
        empty = Ruleset(family=ruleset.family, table=ruleset.table)
        yield from drift.compare_ruleset(title, held.get((ruleset.family, ruleset.table), empty), ruleset)


# ipset and IPVS


class SetMark(NamedTuple):
    """Names of sets, and prefixes of names."""

    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


def _set_mark(_owner: OwnerMark | None, desired: Values) -> SetMark | None:
    return SetMark(tuple(desired_set.name for desired_set in desired)) if desired else None


def _sets_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    held = {present_set.name: present_set for present_set in present}
    for desired_set in desired:
        yield from drift.compare_ipset(title, held.get(desired_set.name), desired_set)


def _server_flag(_owner: OwnerMark | None, desired: Values) -> int | None:
    return ipvs.OWNER_FLAG if desired else None


def _servers_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    return drift.compare_servers(title, present, desired)


# WireGuard


def _device_marks(_owner: OwnerMark | None, desired: Values) -> tuple[WireGuardMark, ...] | None:
    return tuple(WireGuardMark(device.device, device.control, device.private_key_file) for device in desired) or None


def _devices_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    return drift.compare_wireguard(title, present, desired)


# Tunnels of the backend udp


def _tunnel_names(_owner: OwnerMark | None, desired: Values) -> tuple[str, ...] | None:
    return tuple(device.device for device in desired) or None


def _tunnels_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    return drift.compare_udp(title, present, desired)


# Checksum offload


def _offload_names(_owner: OwnerMark | None, desired: Values) -> tuple[str, ...] | None:
    return tuple(value.device for value in desired) or None


def _offloads_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    return drift.compare_offloads(title, present, desired)


# Open vSwitch


def _switch_controls(_owner: OwnerMark | None, desired: Values) -> tuple[str, ...] | None:
    return tuple(switch.control for switch in desired) or None


def _switches_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    return drift.compare_ovs(title, present, desired)


# BPF


def _bpf_folders(_owner: OwnerMark | None, desired: Values) -> tuple[str, ...] | None:
    return tuple(folder.folder for folder in desired) or None


def _bpf_compare(title: str, present: Values, desired: Values, _mark: object) -> Iterator[Difference]:
    return drift.compare_bpf(title, present, desired)


KINDS: dict[str, Kind] = {
    "network": Kind(
        NetworkState,
        _network_parse,
        _network_mark,
        _network_compare,
        lambda state: (("", line) for line in state.lines()),
    ),
    "nftables": Kind(
        Table,
        _tables_parse,
        _table_names,
        _tables_compare,
        lambda table: ((f"table {table.family} {table.name}", line.strip()) for line in table.lines() if line),
        ("table ",),
        "}",
    ),
    "iptables": Kind(
        Ruleset,
        _chains_parse,
        _chain_mark,
        _chains_compare,
        lambda ruleset: ((ruleset.title, line) for line in ruleset.lines() if line[0] in ":-"),
        ("*",),
        "COMMIT",
    ),
    "ipset": Kind(
        IpSet,
        lambda lines, _where: ipset.parse(lines),
        _set_mark,
        _sets_compare,
        lambda declared: ((f"set {declared.name}", line) for line in declared.lines()),
        ("create ", "add "),
    ),
    "ipvs": Kind(
        VirtualServer,
        lambda lines, _where: ipvs.parse(lines),
        _server_flag,
        _servers_compare,
        lambda server: (("ipvs", line) for line in server.lines()),
        ("-A ", "-a "),
    ),
    "wireguard": Kind(
        WireGuard,
        lambda lines, _where: wireguard.parse(lines),
        _device_marks,
        _devices_compare,
        lambda device: ((f"wireguard {device.device}", line) for line in device.lines()),
        ("wireguard ", "wireguard-peer "),
    ),
    "udp": Kind(
        UdpTunnel,
        lambda lines, _where: udptunnel.parse(lines),
        _tunnel_names,
        _tunnels_compare,
        lambda tunnel: ((f"udp {tunnel.device}", line) for line in tunnel.lines()),
        ("udp ", "udp-peer "),
    ),
    "offload": Kind(
        Offload,
        lambda lines, _where: offload.parse(lines),
        _offload_names,
        _offloads_compare,
        lambda value: (("offload", line) for line in value.lines()),
        ("offload ",),
    ),
    "ovs": Kind(
        OvsSwitch,
        lambda lines, _where: ovs.parse(lines),
        _switch_controls,
        _switches_compare,
        lambda switch: (("ovs", line) for line in switch.lines()),
        ("ovs ", "ovs-"),
    ),
    "bpf": Kind(
        BpfFolder,
        lambda lines, _where: bpf.parse(lines),
        _bpf_folders,
        _bpf_compare,
        lambda folder: ((f"bpf {folder.folder}", line) for line in folder.lines()),
        ("bpf-",),
    ),
    "absent nftables": Kind(
        AbsentTable,
        _absent_parse,
        _table_names,
        _absent_compare,
        lambda _table: iter(()),
        ("no table ",),
    ),
}
"""Every kind by name, in the order in which a share prints them."""


def kind_of_line(line: str) -> str:
    """The name of the kind to which a line, or the block that it begins, belongs."""
    rest = next(name for name, kind in KINDS.items() if not kind.starts)
    return next((name for name, kind in KINDS.items() if kind.starts and line.startswith(kind.starts)), rest)
