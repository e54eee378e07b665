"""Blocks claimed at the real API server by several nodes: races, kills at every write, an absent API, nodes that go."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest
from tests.fakes.block_nodes import BlockNode, until
from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.cluster.blocks import Block, read_block
from podwire.cni.ipam.blocks import keeper
from podwire.controllers.ipamblocks import controller
from podwire.errors import NotFound
from podwire.kube.resources import CUSTOMRESOURCEDEFINITIONS, EVENTS, IPAMBLOCKS, IPPOOLS, NODES, Json
from podwire.local.addons.ensure import manifests
from podwire.local.controllers import LocalControllerConfig


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other quickly, and a node that is missing is soon gone."""
    monkeypatch.setattr(keeper, "_LOOK_S", 1.0)
    monkeypatch.setattr(controller, "GRACE_S", 3.0)
    monkeypatch.setattr(controller, "_LOOK_S", 1.0)


CONTROLLERS = LocalControllerConfig(parts=("ipamblocks",))
SMALL: Json = {"cidr": "10.1.0.0/27", "blockSize": 29}
"""Four blocks of five addresses."""


@asynccontextmanager
async def cluster(
    plane: StartControlPlane, folder: Path, pools: Sequence[Json] = (SMALL,), nodes: int = 2, **settings: object
) -> AsyncIterator[tuple[ControlPlane, list[BlockNode]]]:
    """Nodes that claim blocks of these pools."""
    async with plane(nodes=nodes, config=CONTROLLERS) as control:
        client = control.client
        for manifest in manifests(("ipamblock.yaml", "ippool.yaml"), "10.96.0.10", 1):
            if manifest.kind == "CustomResourceDefinition":
                await client.create(CUSTOMRESOURCEDEFINITIONS, manifest.body)
        for number, spec in enumerate(pools):
            await control.until(partial(create_pool, control, f"pool-{number}", spec))
        running = [BlockNode(client, f"node-{number}", folder, **settings) for number in range(1, nodes + 1)]
        try:
            yield control, running
        finally:
            for node in running:
                await node.stop()


async def create_pool(control: ControlPlane, name: str, spec: Json) -> bool:
    pool = {"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": name}, "spec": spec}
    try:
        await control.client.create(IPPOOLS, pool)
    except NotFound:
        return False
    return True


async def blocks(control: ControlPlane) -> list[Block]:
    return [read_block(obj) for obj in (await control.client.list(IPAMBLOCKS)).items]


def check_nothing_is_used_twice(nodes: Sequence[BlockNode], objects: Sequence[Block]) -> None:
    """No address has two pods, no range two nodes, and every pod's address is routed to its node."""
    every = [address for node in nodes for address in node.addresses()]
    assert len(every) == len(set(every))
    ranges = [(network, node.name) for node in nodes for network in node.announced]
    for network, name in ranges:
        for other, owner in ranges:
            overlap = network.version == other.version and network.overlaps(other)
            assert name == owner or not overlap or network.prefixlen != other.prefixlen
    for node in nodes:
        for address in map(ip_network, node.addresses()):
            holders = [
                (n.prefixlen, owner) for n, owner in ranges if n.version == address.version and n.overlaps(address)
            ]
            assert max(holders)[1] == node.name, (address, holders)
    confirmed = [block.network for block in objects if block.confirmed]
    for index, network in enumerate(confirmed):
        assert not any(network.version == o.version and network.overlaps(o) for o in confirmed[index + 1 :])


def test_nodes_that_start_together_get_blocks_of_their_own(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(plane, tmp_path, nodes=4) as (control, nodes):
            await until(lambda: all(node.announced for node in nodes))
            objects = await blocks(control)
            assert len(objects) == 4
            assert all(block.confirmed for block in objects)
            check_nothing_is_used_twice(nodes, objects)

    asyncio.run(run())


def test_more_nodes_than_blocks_borrow(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(plane, tmp_path, nodes=6) as (control, nodes):
            await until(lambda: all(node.announced for node in nodes))
            await asyncio.gather(*(node.add(2) for node in nodes))
            objects = await blocks(control)
            check_nothing_is_used_twice(nodes, objects)
            assert len({block.node for block in objects}) == 4
            assert sum(len(block.lent) for block in objects) >= 4

    asyncio.run(run())


def test_block_comes_goes_and_is_claimed_by_another(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(plane, tmp_path) as (control, (one, two)):
            await until(lambda: one.announced and two.announced)
            first = one.announced[0]
            pods = await one.add(12)
            assert len([network for network in one.announced if network.prefixlen == 29]) == 3
            check_nothing_is_used_twice([one, two], await blocks(control))
            one.delete([pod.key for pod in pods])
            await until(lambda: one.announced == (first,))
            await two.add(14)
            check_nothing_is_used_twice([one, two], await blocks(control))
            assert {block.node for block in await blocks(control)} == {"node-1", "node-2"}

    asyncio.run(run())


def test_strict_affinity_keeps_addresses_with_their_node(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(plane, tmp_path, strict=True, most=2) as (control, (one, two)):
            await until(lambda: one.announced and two.announced)
            await one.add(10)
            one.keeper.waiting = 1
            one.keeper.disturbed()
            await asyncio.sleep(10)
            assert one.try_add() is None
            assert not any(block.lent or block.requests for block in await blocks(control))

    asyncio.run(run())


def test_disabled_pool_is_left_for_another(plane: StartControlPlane, tmp_path: Path) -> None:
    second: Json = {"cidr": "10.2.0.0/27", "blockSize": 29}

    async def run() -> None:
        async with cluster(plane, tmp_path, nodes=1) as (control, (one,)):
            pods = await one.add(2)
            await create_pool(control, "second", second)
            await control.client.patch(IPPOOLS, "pool-0", {"spec": {"disabled": True}})
            await until(lambda: any(network.overlaps(ip_network("10.2.0.0/27")) for network in one.announced))
            await until(lambda: one.leases.closed)
            (pod,) = await one.add()
            assert pod.addresses[0].startswith("10.2.")
            assert len(one.announced) == 2
            one.delete([each.key for each in pods])
            await until(lambda: all(str(network).startswith("10.2.") for network in one.announced))

    asyncio.run(run())


def test_node_selector_follows_the_labels(plane: StartControlPlane, tmp_path: Path) -> None:
    pools: list[Json] = [
        {"cidr": "10.1.0.0/27", "blockSize": 29, "nodeSelector": "zone == 'a'"},
        {"cidr": "10.2.0.0/27", "blockSize": 29, "nodeSelector": "zone == 'b'"},
    ]

    async def run() -> None:
        async with cluster(plane, tmp_path, pools) as (control, (one, two)):
            for node, zone in (("node-1", "a"), ("node-2", "b")):
                await control.client.patch(NODES, node, {"metadata": {"labels": {"zone": zone}}})
            await until(lambda: one.announced and two.announced)
            assert [str(one.announced[0])[:5], str(two.announced[0])[:5]] == ["10.1.", "10.2."]
            await control.client.patch(NODES, "node-1", {"metadata": {"labels": {"zone": "b"}}})
            await until(lambda: [str(network)[:5] for network in one.announced] == ["10.2."])

    asyncio.run(run())


def test_node_without_a_pool_says_so(plane: StartControlPlane, tmp_path: Path) -> None:
    other: Json = {"cidr": "10.1.0.0/27", "blockSize": 29, "nodeSelector": "zone == 'b'"}

    async def run() -> None:
        async with cluster(plane, tmp_path, [other], nodes=1) as (control, (one,)):
            await until(lambda: one.keeper.problem)
            assert one.keeper.problem == "node node-1 has no addresses for pods: no IPPool is for it"
            await control.client.patch(NODES, "node-1", {"metadata": {"labels": {"zone": "b"}}})
            await until(lambda: one.announced)
            assert one.keeper.problem == ""

    asyncio.run(run())


def test_both_families_or_none(plane: StartControlPlane, tmp_path: Path) -> None:
    six: Json = {"cidr": "fd00::/120", "blockSize": 125}

    async def run() -> None:
        async with cluster(plane, tmp_path, [SMALL, six], nodes=1) as (_, (one,)):
            await until(lambda: one.announced)
            assert {network.version for network in one.announced} == {4, 6}
            assert {len(pod.addresses) for pod in await one.add(8)} == {2}

    asyncio.run(run())


def test_blocks_of_a_node_that_is_gone_come_back(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(plane, tmp_path, nodes=5) as (control, nodes):
            await until(lambda: all(node.announced for node in nodes))
            borrower = next(node for node in nodes if node.announced[0].prefixlen == 32)
            await borrower.add()
            owner = next(block.node for block in await blocks(control) if block.lent_to(borrower.name))
            lender = next(node for node in nodes if node.name == owner)
            gone = next(node for node in nodes if node not in (lender, borrower))
            for node in (gone, lender):
                await node.stop()
                await control.client.delete(NODES, node.name)
            left = [node for node in nodes if node not in (gone, lender)]

            async def without_the_gone() -> bool:
                return not {block.node for block in await blocks(control)} & {gone.name, lender.name}

            await control.until(without_the_gone, 600)
            await asyncio.gather(*(node.add(4) for node in left))
            check_nothing_is_used_twice(left, await blocks(control))
            for node in (gone, lender):
                node.start()

    asyncio.run(run())


def test_pods_get_addresses_while_the_api_is_away(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(plane, tmp_path) as (control, (one, two)):
            await until(lambda: one.announced and two.announced)
            await one.add(2)
            away = asyncio.ensure_future(control.restart(5))
            await asyncio.sleep(1)
            assert one.try_add() is not None and one.try_add() is not None
            await asyncio.gather(one.add(6), two.add(6), away)
            check_nothing_is_used_twice([one, two], await blocks(control))

    asyncio.run(run())


def test_deleted_block_with_pods_is_claimed_again(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(plane, tmp_path, nodes=1) as (control, (one,)):
            await one.add(2)
            (block,) = await blocks(control)
            await control.client.delete(IPAMBLOCKS, block.name)

            async def again() -> bool:
                return [(b.name, b.node, b.confirmed) for b in await blocks(control)] == [(block.name, "node-1", True)]

            await control.until(again, 600)
            assert one.announced == (block.network,)

    asyncio.run(run())


def test_wrong_pool_gets_an_event(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        wrong: Json = {"cidr": "10.1.0.0/24", "blockSize": 31}
        async with cluster(plane, tmp_path, [SMALL, wrong], nodes=1) as (control, (one,)):
            await until(lambda: one.announced)

            async def event() -> str:
                events = [e for e in (await control.client.list(EVENTS)).items if e["reason"] == "ObjectRefused"]
                return events[0]["message"] if events else ""

            assert "spec.blockSize: 31: expected 24 to 29" in await control.until(event)

    asyncio.run(run())


def test_agents_killed_at_each_write_lose_and_double_nothing(plane: StartControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster(plane, tmp_path) as (control, (one, two)):
            one.client.mortal = two.client.mortal = True
            many = await one.add(12)  # Three blocks.
            await two.add(7)  # One block, and two borrowed addresses.
            check_nothing_is_used_twice([one, two], await blocks(control))
            borrowed = {str(network[0]) for network in two.announced if network.prefixlen == 32}
            assert len(borrowed) == 2
            one.delete([pod.key for pod in many])
            two.delete([key for key, pod in two.leases.held.items() if borrowed & {*pod.addresses}])
            await until(lambda: not [network for network in two.announced if network.prefixlen == 32])
            await until(lambda: len(one.announced) == 1)
            one.client.mortal = two.client.mortal = False
            await two.add(5)
            objects = await blocks(control)
            check_nothing_is_used_twice([one, two], objects)
            assert (len(one.addresses()), len(two.addresses())) == (0, 10)
            assert {block.node for block in objects} == {"node-1", "node-2"}
            assert min(one.kills, two.kills) >= 8

    asyncio.run(run())
