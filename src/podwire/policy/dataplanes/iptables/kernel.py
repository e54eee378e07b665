"""Rules and sets of the data plane in one network namespace: reads them, and deletes them."""

import os
import re
from collections.abc import Iterable
from contextlib import closing

from podwire.errors import KernelError, Unsupported
from podwire.kernel import iptables_chains, netns
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import FAMILIES, Iptables, Programs
from podwire.kernel.iptables_tables import drop_tables
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.network import read_paths
from podwire.policy.dataplanes.iptables.fixedchains import FixedChains
from podwire.policy.dataplanes.iptables.layout import ChainLayout
from podwire.policy.dataplanes.iptables.names import CHAIN, IN, OUT, RULE, TABLE, set_prefix
from podwire.policy.dataplanes.iptables.numbers import MarkBits
from podwire.policy.dataplanes.iptables.steps import removal
from podwire.policy.status.counts import Count
from podwire.state.chain_marks import POLICY
from podwire.state.ipset import IpSet
from podwire.state.iptables import parse_save
from podwire.state.iptables_diff import Saved
from podwire.state.iptables_diff import removal as removed_rules

_COUNTED = re.compile(rf"\[(\d+):(\d+)\] -A ({RULE}\S+) .*-j (?:RETURN|DROP)$", re.MULTILINE)
_TUNNELS = ("vxlan", "geneve", "wireguard", "ipip", "sit", "gre", "tun")
"""Kinds of links that never belong to a pod."""
_SETTLE = f"{CHAIN}SETTLE"


def read_rules(tool: Iptables) -> Saved:
    """The table of a family.

    Raises: KernelError.
    """
    return parse_save(tool.save(TABLE))


def read_counts(tool: Iptables) -> dict[str, Count]:
    """The counts of the chains of rules, by chain.
    Raises: KernelError.
    """
    matches = _COUNTED.findall(tool.save(TABLE, counters=True))
    return {chain: Count(int(packets), int(octets)) for packets, octets, chain in matches}


def read_sets(sets: IpSets, family: str) -> dict[str, IpSet]:
    """The sets of a family.

    Raises: KernelError.
    """
    prefix = set_prefix(family)
    read = (sets.read(name) for name in sets.names() if name.startswith(prefix))
    return {ipset.name: ipset for ipset in read if ipset is not None}


def forget(sets: IpSets, names: Iterable[str]) -> set[str]:
    """Deletes sets; returns those that rules still refer to, because nf_tables frees references with a delay."""
    names_in_use = set()
    for name in names:
        try:
            sets.destroy([name])
        except KernelError:
            names_in_use.add(name)
    return names_in_use


def remove(tool: Iptables, sets: IpSets) -> None:
    """Deletes all rules and sets of a family.

    nf_tables frees the references to sets some time after the rules are deleted. Adding a rule with a match or target
    of iptables makes the kernel finish that first, so such a rule is added and deleted when sets are left.

    Raises: KernelError.
    """
    text = removed_rules(read_rules(tool), POLICY)
    tool.restore(text)
    prefix = set_prefix(tool.family)
    names = [name for name in sets.names() if name.startswith(prefix)]
    if undeleted := forget(sets, names):
        tool.restore(f"*{TABLE}\n:{_SETTLE} -\n-A {_SETTLE} -m addrtype --src-type LOCAL -j RETURN\nCOMMIT\n")
        tool.restore(f"*{TABLE}\n:{_SETTLE} -\n-X {_SETTLE}\nCOMMIT\n")
        sets.commit(removal(undeleted))


def uplinks(netns_path: NetnsPath, addresses: Iterable[str], pods: Iterable[str]) -> tuple[str, ...]:
    """The devices with the node's addresses, and tunnels to other nodes; devices of pods are left out.

    Raises: KernelError.
    """
    node_addresses = set(addresses)
    with closing(Netlink(netns_path)) as netlink:
        state = read_paths(netlink)
    devices = {address.link for address in state.addresses if address.cidr.partition("/")[0] in node_addresses}
    devices |= {link.name for link in state.links if link.kind in _TUNNELS}
    return tuple(sorted(devices - set(pods)))


def clear(netns_path: NetnsPath = None) -> bool:
    """Deletes the rules and sets that an earlier run left; returns whether there were any.

    Raises: KernelError.
    """
    kinds = [programs for programs, _ in iptables_chains.marked(netns_path, POLICY)]
    try:
        sets = IpSets(netns_path)
    except Unsupported:
        return False
    with sets:
        prefixes = tuple(set_prefix(family) for family in FAMILIES)
        names = [name for name in sets.names() if name.startswith(prefixes)]
        for programs in kinds:
            for family in FAMILIES:
                with Iptables(family, programs, netns_path) as tool:
                    remove(tool, sets)
        sets.commit(removal(names))
    drop_tables((TABLE,), netns_path)
    return bool(kinds or names)


def check(programs: Programs) -> None:
    """Tries all needed sets and rules in a temporary network namespace.
    Raises: Unsupported naming what is missing.
    """
    layout = ChainLayout(family="ip", marks=MarkBits(0xFF), bridges=("lo",))
    descriptor = netns.create_anonymous()
    try:
        with netns.inside(descriptor), Iptables("ip", programs) as tool, IpSets() as sets:
            for ipset in layout.sets():
                sets.apply(ipset)
            fixed = FixedChains(layout)
            rules = fixed.chains(0) | dict.fromkeys((OUT, IN), fixed.root())
            lines = [f":{name} -" for name in rules]
            lines += [f"-A {name} {rule}" for name, chain_rules in rules.items() for rule in chain_rules]
            tool.restore("\n".join((f"*{TABLE}", *lines, "COMMIT", "")))
    except KernelError as failure:
        raise Unsupported("iptables", detail=f"{programs.kind}: {failure.detail or failure}") from failure
    finally:
        os.close(descriptor)
