"""Compares a node's kernel with the shares that its agent told, from outside of the agent.

The agent is not asked what the kernel holds: the comparison is true also while it is stopped or at fault. What the
cluster changes in this moment can show as a difference. Cost: a dump of each namespace that a share is about, and of
each of its tables.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from podwire.kernel import netns, network
from podwire.kernel.ipset import IpSets
from podwire.kernel.ipvs import Ipvs
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.state.drift import (
    Difference,
    compare_ipset,
    compare_network,
    compare_ruleset,
    compare_servers,
    compare_table,
    missing_share,
    surplus_table,
)
from podwire.state.iptables import Ruleset
from podwire.state.share import Share


def compare(shares: Iterable[Share], place: Path | None) -> Iterator[Difference]:
    """The differences of all shares in their order; ``place`` is the node's namespace, None that of this process.

    A share that is not known now counts as a difference: nothing says that the kernel holds it.

    Raises: KernelError when the kernel cannot be read.
    """
    for share in shares:
        if share.note:
            yield Difference(share.title, "+", f"# not known yet: {share.note}")
        elif share.netns and not netns.exists(share.netns):
            yield from missing_share(share)
        else:
            yield from _compare(share, Path(share.netns) if share.netns else place)


def _compare(share: Share, place: Path | None) -> Iterator[Difference]:
    if share.owner is not None:
        with Netlink(place) as netlink:
            have = network.read(netlink, share.owner, tuple(x.path for x in share.state.sysctls))
        yield from compare_network(have, share)
    if share.rulesets:
        yield from _compare_rulesets(share, place)
    if share.sets:
        with IpSets(place) as sets:
            for one in share.sets:
                yield from compare_ipset(share.title, sets.read(one.name), one)
    if share.servers:
        from podwire.proxy.dataplanes.ipvs.compile import OWN

        with Ipvs(place) as ipvs:
            own = [server.key for server in ipvs.servers() if server.flags & OWN]
            yield from compare_servers(share.title, ipvs.read(own), share.servers)
    if not share.tables and not share.absent:
        return
    with Nft(place) as nft:
        for table in share.tables:
            yield from compare_table(share.title, nft.read(table.family, table.name), table)
        for family, name in share.absent:
            surplus = nft.read(family, name)
            if surplus is not None:
                yield from surplus_table(share.title, surplus)


def _compare_rulesets(share: Share, place: Path | None) -> Iterator[Difference]:
    there = {(each.family, each.table): each for each in _held(share, place)}
    for want in share.rulesets:
        have = there.get((want.family, want.table), Ruleset(family=want.family, table=want.table))
        yield from compare_ruleset(share.title, have, want)


def _held(share: Share, place: Path | None) -> Iterable[Ruleset]:
    """What the kernel holds of the part's rules."""
    if share.part == "policy":
        from podwire.policy.dataplanes.iptables.dataplane import held as held_of_policy

        return (each for each in held_of_policy(place) if isinstance(each, Ruleset))
    from podwire.proxy.dataplanes.iptables.dataplane import held
    from podwire.proxy.dataplanes.ipvs.dataplane import held as held_of_ipvs
    from podwire.state.chain_marks import IPVS_MARK

    balanced = any(IPVS_MARK in each.chains for each in share.rulesets)
    return (held_of_ipvs if balanced else held)(place)
