"""Every case of the packet table, followed through the tables that each data plane would program on each node."""

from collections.abc import Callable, Iterable

import pytest
from tests.cases.policy_table import Case
from tests.unit.policy.dataplanes.nftables.test_contents import device, fresh
from tests.unit.policy.test_compile import CASES, Chaos

from podwire.cluster.world import Party, World
from podwire.policy.compile import compile_world
from podwire.policy.connectionmatch import Connection
from podwire.policy.dataplanes.nftables.layout import TableLayout
from podwire.policy.evaluate import evaluate
from podwire.trace import nft
from podwire.trace.packet import LocalAddresses, Packet

Verdict = Callable[[Packet], str]

POD_RANGES = {"n1": ("10.180.0.0/24", "fd18::/64"), "n2": ("10.180.1.0/24", "fd18:1::/64")}


def nftables(world: World, node: str, *, own_node_egress: bool = True) -> Verdict:
    addresses = next(item for item in world.nodes if item.metadata.name == node).internal_ips
    compiler = compile_world(world, node, own_node_egress=own_node_egress)
    tables = []
    for index, family in enumerate(("ip", "ip6")):
        layout = TableLayout(
            family=family, pod_ranges=POD_RANGES[node][index:][:1], node_addresses=addresses[index:][:1]
        )
        tables.append(fresh(layout, compiler).table())
    tracer = nft.Tracer(tables, LocalAddresses(addresses=frozenset(addresses)))
    return lambda packet: next(iter(tracer.outcomes(packet))).verdict


DATAPLANES = {"nftables": nftables}


def device_of(party: Party, node: str) -> str:
    """The device by which a node has an end: a pod's own, or that to everywhere else."""
    if party.pod is not None and party.node == node:
        return device(f"{party.pod.metadata.namespace}/{party.pod.metadata.name}")
    return "" if party.node == node else "eth0"


def nodes_on_the_way(connection: Connection) -> Iterable[str]:
    return dict.fromkeys(party.node for party in (connection.source, connection.destination) if party.node)


def of_nobody(connection: Connection) -> bool:
    """Whether an end has an address of a node's pods and is none: data planes drop that, whatever policies say."""
    prefixes = tuple(text.rpartition("/")[0].rstrip("0") for ranges in POD_RANGES.values() for text in ranges)
    parties = (connection.source, connection.destination)
    return any(party.pod is None and party.address.startswith(prefixes) for party in parties)


def passes(planes: dict[str, Verdict], connection: Connection) -> bool:
    """Whether every node on the way lets it through."""
    protocol = {"ICMP": "icmp" if "." in connection.source.address else "ipv6-icmp"}.get(
        connection.protocol, connection.protocol.lower()
    )
    for node in nodes_on_the_way(connection):
        packet = Packet(
            source=connection.source.address,
            destination=connection.destination.address,
            protocol=protocol,
            destination_port=connection.port,
            input=device_of(connection.source, node),
            output=device_of(connection.destination, node),
        )
        if planes[node](packet) != "accept":
            return False
    return True


@pytest.mark.parametrize("name", DATAPLANES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_table(case: Case, name: str) -> None:
    planes = {node: DATAPLANES[name](case.world, node, own_node_egress=case.own_node_egress) for node in ("n1", "n2")}
    for check in case.checks:
        for family in check.families:
            connection = case.connection(check, family)
            if connection.source == connection.destination:
                continue
            assert passes(planes, connection) == check.allowed, (str(check), family)


@pytest.mark.parametrize("name", DATAPLANES)
@pytest.mark.parametrize("seed", range(8))
def test_random_clusters(seed: int, name: str) -> None:
    chaos = Chaos(9000 + seed)
    for _ in range(6):
        for _ in range(4):
            chaos.change()
        planes = {node: DATAPLANES[name](chaos.world, node) for node in ("n1", "n2")}
        for connection in chaos.connections():
            if connection.source != connection.destination and not of_nobody(connection):
                expected = evaluate(chaos.world, connection)
                assert passes(planes, connection) == expected.allowed, (connection.source.name, connection, expected)
