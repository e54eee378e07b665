"""What another program changes of routing and of the hostPorts comes back by itself, and nothing else is written."""

import asyncio
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.cni_node import NodeAgent, inside
from tests.kernel.healing import PATIENCE_S, EagerClock, checking, restored, until, with_router
from tests.kernel.routing_nodes import Cluster, ClusterNode
from tests.kernel.routing_nodes import inside as run

from podwire.kernel.nft import Nft
from podwire.kernel.nft_drift import TableWatch
from podwire.routing.settings import RoutingSettings
from podwire.routing.tables import MASQUERADE
from podwire.state.chain_marks import MASQUERADE_CHAIN, MASQUERADE_PODS_CHAIN
from podwire.state.nft import AbsentTable, Table


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterNode]:
    """The first of two nodes."""
    cluster = Cluster(tmp_path, 2)
    try:
        cluster.configure(RoutingSettings(backend="vxlan"))
        cluster.settle()
        yield cluster.all[0]
    finally:
        cluster.close()


def test_damaged_tables_of_routing_come_back(node: ClusterNode) -> None:
    async def body() -> None:
        for table, chain, members in ((MASQUERADE, "postrouting", "pods4"), ("podwire-routing", "forward", "nodes")):
            for damage in (
                f"delete table inet {table}",
                f"flush table inet {table}",
                f"flush chain inet {table} {chain}",
                f"flush set inet {table} {members}",
                f"add element inet {table} {members} {{ 203.0.113.7 }}",
                f"insert rule inet {table} {chain} accept",
                f"add chain inet {table} foreign",
                f"add chain inet {table} {chain} {{ policy drop; }}",
            ):
                run(node.place, "nft", *damage.split())
                await restored(node)
        run(node.place, "nft", "add", "table", "inet", "podwire-routing-geneve")
        deadline = time.monotonic() + PATIENCE_S
        while "podwire-routing-geneve" in run(node.place, "nft", "list", "tables"):
            assert time.monotonic() < deadline, "a table of a backend that is not in use stays"
            await asyncio.sleep(0.02)

    with_router(node, body)


def test_tables_of_others_cause_no_run(node: ClusterNode) -> None:
    async def body() -> None:
        await asyncio.sleep(2.5)  # checks have verified the tables
        runs = node.router.applied.runs
        with closing(Nft(node.place)) as nft:
            for number in range(15):
                run(node.place, "nft", "add", "table", "inet", f"foreign{number}")
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.5)
            assert node.router.applied.runs == runs
            generation = nft.generation()
            await asyncio.sleep(1.5)
            assert nft.generation() == generation, "something was written"

    with_router(node, body)


@pytest.mark.parametrize("kind", ["nft", "legacy"])
def test_masquerade_rules_of_iptables_come_back(tmp_path: Path, kind: str) -> None:
    cluster = Cluster(tmp_path, 2, clock=EagerClock())
    node, program = cluster.all[0], f"iptables-{kind}"
    if kind == "legacy":
        run(node.place, program, "-A", "INPUT", "-j", "ACCEPT")  # The kind of rules that are there is taken.
    damages = (f"-F {MASQUERADE_CHAIN}", f"-D {MASQUERADE_PODS_CHAIN} 1", f"-I {MASQUERADE_CHAIN} -j ACCEPT")

    async def damaged(command: str) -> None:
        runs = node.router.applied.runs
        run(node.place, program, "-t", "nat", *shlex.split(command))
        await until(lambda: node.router.applied.runs > runs)
        await restored(node)

    async def body() -> None:
        _, _, *rule = shlex.split(run(node.place, program, "-t", "nat", "-S", MASQUERADE_CHAIN, "1"))
        replaced = ("-R", MASQUERADE_CHAIN, "1", *(argument.replace("10.244.", "10.245.") for argument in rule))
        assert "10.245." in " ".join(replaced), "the rule names networks of pods"
        for command in (*damages, "-F", shlex.join(replaced)):
            await until(lambda: node.router.settled)
            began = time.monotonic()
            await checking(node, lambda command=command: damaged(command))  # type: ignore[misc]
            assert time.monotonic() - began < 10, command
        await until(lambda: node.router.settled)
        runs = node.router.applied.runs

        async def disturb_others() -> None:
            run(node.place, program, "-t", "nat", "-A", "OUTPUT", "-d", "192.0.2.9", "-j", "ACCEPT")
            await asyncio.sleep(1.5)

        await checking(node, disturb_others)
        assert kind == "legacy" or node.router.applied.runs == runs, "rules of others cause no run"

    try:
        cluster.configure(RoutingSettings(backend="hostgw", masquerade_rules="iptables"))
        cluster.settle()
        with_router(node, body)
        assert MASQUERADE_CHAIN in run(node.place, f"{program}-save")
    finally:
        cluster.close()


def test_a_hostport_table_changed_by_others_comes_back(make: Callable[..., NodeAgent]) -> None:
    node = make()
    ports: dict[str, Any] = {
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}
    }
    node.add("web", **ports)

    def listing() -> str:
        return inside(node.place, "nft", "list", "table", "inet", "podwire-hostport").stdout

    whole = listing()
    assert "8080" in whole
    for damage in (
        "delete table inet podwire-hostport",
        "flush chain inet podwire-hostport prerouting",
        "flush map inet podwire-hostport any4",
        "delete element inet podwire-hostport any4 { tcp . 8080 }",
    ):
        done = inside(node.place, "nft", *damage.split())
        assert done.returncode == 0, done.stderr
        deadline = time.monotonic() + PATIENCE_S
        while listing() != whole:
            assert time.monotonic() < deadline, f"{damage}: {listing()}"
            time.sleep(0.02)

    node.call("DEL", "web")
    assert listing() == "", "without hostPorts the table goes and does not come back"


def test_a_check_reads_tables_only_after_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, 1)
    reads: list[str] = []
    read = Nft.read
    monkeypatch.setattr(Nft, "read", lambda nft, family, name: reads.append(name) or read(nft, family, name))  # type: ignore[func-returns-value]
    place = cluster.all[0].place
    table = Table(family="inet", name="one")
    try:
        with closing(TableWatch(place)) as watch, closing(Nft(place)) as nft:
            assert not watch.drifted(), "nothing is desired yet"
            watch.expect([table, AbsentTable("inet", "two")])
            assert watch.drifted() and watch.drifted(), "it says so until the table is there"
            nft.apply(table)
            assert not watch.drifted()
            reads.clear()
            nft.apply(Table(family="inet", name="other"))
            reads.clear()
            assert not watch.drifted()
            watch.expect([table, AbsentTable("inet", "two")])
            assert not watch.drifted() and reads == [], "the dump is the verified one"
            nft.apply(Table(family="inet", name="two"))
            assert watch.drifted()
            nft.delete("inet", "two")
            assert not watch.drifted()
    finally:
        cluster.close()
