"""What a comparison says changes, against the evaluator asked before and after, in random clusters."""

import os
from pathlib import Path

import pytest
from tests.cases.policy_table import read_cases
from tests.cases.random_policies import RandomPolicies

from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.policy.connectionmatch import Connection
from podwire.policy.diff.compare import OTHER, ClusterComparison, Peers, PortChange, VerdictDifference, compare
from podwire.policy.diff.peers import EXTERNAL, NODES, PODS
from podwire.policy.evaluate import EvaluationOptions, evaluate

BASE = read_cases(Path(__file__).parents[3] / "cases/policies")[0].world
FIRST = int(os.environ.get("SEED", "0"))


class Looked:
    """What a comparison says, by names of ends."""

    def __init__(self, cluster_comparison: ClusterComparison) -> None:
        self.found = cluster_comparison
        self.outside = {
            (group.family, name): group
            for group in cluster_comparison.groups.common
            if group.kind == EXTERNAL and not group.rest
            for name in group.names
        }

    def change(self, source: Party, destination: Party, protocol: str, port: int) -> PortChange | None:
        """The change that a connection has; None: the verdict stays."""
        family = 6 if ":" in source.address else 4
        results = [
            change
            for difference in self.found.differences
            if family in difference.families and self.has(difference, source, destination)
            for change in difference.changes
            if change.protocol == (protocol if protocol != "ICMP" else OTHER) and change.first <= port <= change.last
        ]
        assert len(results) < 2, "each pair is told once"
        return results[0] if results else None

    def has(self, difference: VerdictDifference, source: Party, destination: Party) -> bool:
        own = {source.pod is None, destination.pod is None} == {True, False} and bool(source.node)
        own = own and source.node == destination.node
        if own != difference.own_node:
            return False
        return self.among(source, difference.sources) and self.among(destination, difference.destinations)

    def among(self, party: Party, every: tuple[Peers, ...]) -> bool:
        return any(self.meant(party, ends) for ends in every)

    def meant(self, party: Party, ends: Peers) -> bool:
        if party.pod is not None:
            return ends.kind == PODS and key_of(party.pod.metadata) in ends.names
        if party.node:
            return ends.kind == NODES and party.node in ends.names
        if ends.kind != EXTERNAL:
            return False
        named = [name for (_, name) in self.outside if inside(party.address, name)]
        return ends.rest if not named else any(name in ends.names for name in named)


def inside(address: str, cidr: str) -> bool:
    from ipaddress import ip_address, ip_network

    network = ip_network(cidr)
    return ip_address(address).version == network.version and ip_address(address) in network


def allowed(world: World, connection: Connection, *, own_node_egress: bool) -> bool:
    source, destination = world.party(connection.source.address), world.party(connection.destination.address)
    asked = Connection(source=source, destination=destination, protocol=connection.protocol, port=connection.port)
    return evaluate(world, asked, EvaluationOptions(own_node_egress=own_node_egress)).allowed


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 30))
def test_random_clusters(seed: int) -> None:
    chaos = RandomPolicies(BASE, seed)
    own_node_egress = seed % 4 > 0
    old = chaos.world()
    new = chaos.changed(old)
    looked = Looked(compare(old, new, own_node_egress=own_node_egress))
    for connection in chaos.connections(new, 120):
        before = allowed(old, connection, own_node_egress=own_node_egress)
        after = allowed(new, connection, own_node_egress=own_node_egress)
        reported = looked.change(connection.source, connection.destination, connection.protocol, connection.port)
        assert (reported is not None) == (before != after), (connection, before, after)
        if reported is not None:
            assert (reported.before.allowed, reported.after.allowed) == (before, after)
