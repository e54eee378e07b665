"""The nftables data plane with real packets: every case of the packet table, restart, healing, replacement."""

import contextlib
import os
from collections.abc import Iterator

import pytest
from tests.kernel.serviceworld import (
    CASES,
    World,
    affinity_to_an_endpoint_that_goes,
    by_name,
    changes_under_traffic,
    failures_of,
    inside,
    path,
    proxy_follows_and_heals,
)

from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.dataplanes.nftables.layout import TABLE
from podwire.state.nft_text import parse_table
from podwire.testing.servicecases import NODE, Case

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def plane(world: World) -> Iterator[NftablesDataPlane]:
    made = NftablesDataPlane(NODE, path("node"))
    yield made
    made.remove()
    made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_table(world: World, plane: NftablesDataPlane, case: Case) -> None:
    plane.load(case.resolved())
    assert not failures_of(world, case.by(plane.name))


def held(family: str) -> str:
    return inside("node", "nft", "list", "table", family, TABLE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nft_lists_what_is_desired(plane: NftablesDataPlane, case: Case) -> None:
    plane.load(case.resolved())
    assert TABLE in inside("node", "nft", "-j", "list", "ruleset")
    for table in plane.desired():
        assert str(parse_table(held(table.family))) == str(table.canonical())


def test_a_restart_writes_nothing(world: World, plane: NftablesDataPlane) -> None:
    for case in CASES:
        plane.load(case.resolved())
        with contextlib.closing(NftablesDataPlane(NODE, path("node"))) as again:
            assert not any(again.load(case.resolved())), case.name


def test_a_restart_into_another_world(world: World, plane: NftablesDataPlane) -> None:
    plane.load(by_name("externalTrafficPolicy Local").resolved())
    with contextlib.closing(NftablesDataPlane(NODE, path("node"))) as again:
        again.load(by_name("ClusterIP").resolved())
        for table in again.desired():
            assert str(parse_table(held(table.family))) == str(table.canonical())


def test_foreign_tables_stay(world: World, plane: NftablesDataPlane) -> None:
    inside("node", "nft", "add", "table", "ip", "foreign")
    plane.load(by_name("ClusterIP").resolved())
    plane.remove()
    assert inside("node", "nft", "list", "tables") == "table ip foreign\n"
    inside("node", "nft", "delete", "table", "ip", "foreign")


def test_changes_under_traffic_lose_nothing(world: World, plane: NftablesDataPlane) -> None:
    changes_under_traffic(world, plane, least=50)


def test_a_refused_commit_is_answered_by_a_full_load(world: World, plane: NftablesDataPlane) -> None:
    plane.load(by_name("ClusterIP").resolved())
    inside("node", "nft", "flush", "map", "ip", TABLE, "services")
    plane.update({"default/web": ()})
    for table in plane.desired():
        assert str(parse_table(held(table.family))) == str(table.canonical())


def test_affinity_forgets_an_endpoint_that_is_gone(world: World, plane: NftablesDataPlane) -> None:
    affinity_to_an_endpoint_that_goes(world, plane)


def test_the_proxy_follows_its_sources_and_heals(world: World, plane: NftablesDataPlane) -> None:
    proxy_follows_and_heals(world, plane, lambda: inside("node", "nft", "flush", "ruleset"))
