"""The ends that two clusters have in common, grouped where policies treat them alike (pure).

Ends are pods by name, nodes by name, and ranges of addresses, which are cut at the border of every ipBlock of both
clusters. An end that only one cluster has cannot change its verdict; it is listed.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, summarize_address_range
from itertools import pairwise

import msgspec

from podwire.cluster.addresses import pods_by_address
from podwire.model.meta import controller_of, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.policy.blocks import Blocks
from podwire.policy.diff.side import PeerTraits, Side

PODS, NODES, EXTERNAL = "pods", "nodes", "external"
_LAST = {4: 2**32 - 1, 6: 2**128 - 1}
_HASH_LENGTHS = range(5, 11)
_HASH = frozenset("bcdfghjklmnpqrstvwxz2456789")
"""The characters of the suffix in the names of a Deployment's ReplicaSets (k8s.io/apimachinery/pkg/util/rand)."""


class PeerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ends that policies treat alike, before and after."""

    kind: str
    """pods, nodes or external."""
    family: int
    old: PeerTraits
    new: PeerTraits
    names: tuple[str, ...]
    """Keys of pods, names of nodes, ranges of addresses."""
    addresses: tuple[str, str]
    """One address of each side, which stands for all of the group."""
    same: bool
    """Whether labels, ports and addresses are equal on both sides, so that only policies can change a verdict."""
    on: frozenset[str] = frozenset()
    """The nodes of the pods (on the new side); of a group of nodes, their names."""
    rest: bool = False
    """Whether these are all addresses outside of every block."""


class PeerGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of ends that both sides have, and the pods of only one side."""

    common: tuple[PeerGroup, ...]
    workloads: Mapping[str, str]
    """The workload of each pod, ``Kind namespace/name``; of a pod without one, itself."""
    only_old: tuple[str, ...]
    """Pods, by key."""
    only_new: tuple[str, ...]


def peer_groups(old: Side, new: Side) -> PeerGroups:
    """The ends of two clusters."""
    before, after = _pods(old), _pods(new)
    groups: list[PeerGroup] = []
    both = [key for key in after if key in before]
    groups += _together(PODS, ((key, _of_pod(old, before[key]), _of_pod(new, after[key])) for key in both), after)
    nodes_before, nodes_after = _nodes(old), _nodes(new)
    common = [key for key in nodes_after if key in nodes_before]
    rows = ((key, _of_node(old, nodes_before[key]), _of_node(new, nodes_after[key])) for key in common)
    groups += _together(NODES, rows, {})
    pod_addresses = {address for side in (before, after) for _, address in side.values()}
    pod_addresses |= {address for side in (nodes_before, nodes_after) for _, address in side.values()}
    for family in (4, 6):
        if any(key[1] == family for key in both):
            groups += _external(old, new, family, pod_addresses)
    names = {key for key, _ in before}, {key for key, _ in after}
    return PeerGroups(
        common=tuple(groups),
        workloads={key_of(pod.metadata): workload(pod) for pod, _ in after.values()},
        only_old=tuple(sorted(names[0] - names[1])),
        only_new=tuple(sorted(names[1] - names[0])),
    )


def workload(pod: Pod) -> str:
    """``Kind namespace/name`` of the workload of a pod; for a ReplicaSet of a Deployment, the Deployment."""
    owner = controller_of(pod.metadata)
    namespace = pod.metadata.namespace
    if owner is None:
        return f"Pod {key_of(pod.metadata)}"
    name, _, end = owner.name.rpartition("-")
    if owner.kind == "ReplicaSet" and name and len(end) in _HASH_LENGTHS and set(end) <= _HASH:
        return f"Deployment {namespace}/{name}"
    return f"{owner.kind} {namespace}/{owner.name}"


Key = tuple[str, int]
"""Name and family."""


def _pods(side: Side) -> dict[Key, tuple[Pod, str]]:
    """The pods to which policies apply, with their address of each family."""
    result: dict[Key, tuple[Pod, str]] = {}
    for address, pod in pods_by_address(side.world.pods).items():
        result.setdefault((key_of(pod.metadata), _family(address)), (pod, address))
    return dict(sorted(result.items()))


def _nodes(side: Side) -> dict[Key, tuple[Node, str]]:
    """The nodes, with their first address of each family."""
    result: dict[Key, tuple[Node, str]] = {}
    pod_addresses = pods_by_address(side.world.pods)
    for node in side.world.nodes:
        for address in node.addresses:
            if address not in pod_addresses:
                result.setdefault((node.metadata.name, _family(address)), (node, address))
    return dict(sorted(result.items()))


def _family(address: str) -> int:
    return 6 if ":" in address else 4


End = tuple[PeerTraits, str, object]
"""Traits, address, and everything else that a policy can select by."""


def _of_pod(side: Side, pod_and_address: tuple[Pod, str]) -> End:
    pod, address = pod_and_address
    spaces = side.labels_of(pod.metadata.namespace)
    return side.of_pod(pod, address), address, (pod.metadata.labels, spaces, pod.declared_ports)


def _of_node(side: Side, node_and_address: tuple[Node, str]) -> End:
    node, address = node_and_address
    return side.of_node(node, address), address, node.metadata.labels


def _together(
    kind: str, rows: Iterable[tuple[Key, End, End]], pods: Mapping[Key, tuple[Pod, str]]
) -> Iterator[PeerGroup]:
    groups: dict[tuple[PeerTraits, PeerTraits, int, bool], list[tuple[str, str, str]]] = {}
    for (name, family), (old, address, selectable), (new, later, selectable_now) in rows:
        groups.setdefault((old, new, family, selectable == selectable_now and address == later), []).append(
            (name, address, later)
        )
    for (old, new, family, same), members in groups.items():
        names = tuple(name for name, _, _ in members)
        yield PeerGroup(
            kind=kind,
            family=family,
            old=old,
            new=new,
            names=names,
            addresses=members[0][1:],
            same=same,
            on=frozenset(pods[name, family][0].spec.node_name if pods else name for name in names),
        )


def _external(old: Side, new: Side, family: int, pod_addresses: set[str]) -> Iterator[PeerGroup]:
    """All addresses of a family, as disjoint ranges that no block of either side cuts."""
    numbers = sorted(int(ip_address(text)) for text in pod_addresses if _family(text) == family)
    blocks = Blocks(enumerate((*old.ranges, *new.ranges)), family)
    borders = {0, _LAST[family] + 1}
    for first, last, _ in blocks.intervals:
        borders |= {first, last + 1}
    ranges_by_traits: dict[tuple[PeerTraits, PeerTraits], list[tuple[int, int]]] = {}
    for first, after in pairwise(sorted(borders)):
        address = _address(first, family)
        facts = old.of_address(address), new.of_address(address)
        ranges_by_traits.setdefault(facts, []).append((first, after - 1))
    largest = max(ranges_by_traits.values(), key=_size)
    for (before, later), ranges in ranges_by_traits.items():
        here = sum(1 for number in numbers if any(first <= number <= last for first, last in ranges))
        if here == _size(ranges):
            continue
        address = _address(ranges[0][0], family)
        yield PeerGroup(
            kind=EXTERNAL,
            family=family,
            old=before,
            new=later,
            names=tuple(_cidrs(ranges, family)),
            addresses=(address, address),
            same=True,
            rest=ranges is largest,
        )


def _size(ranges: list[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _address(number: int, family: int) -> str:
    return str(IPv4Address(number) if family == 4 else IPv6Address(number))


def _cidrs(ranges: list[tuple[int, int]], family: int) -> Iterator[str]:
    kind = IPv4Address if family == 4 else IPv6Address
    for first, last in ranges:
        yield from (str(network) for network in summarize_address_range(kind(first), kind(last)))
