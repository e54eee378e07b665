"""The iptables data plane with real packets, for both kinds: every case of the packet table, restart, healing."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.cases.service_table import ADDRESSES, NODE
from tests.fakes.collection import Collection
from tests.kernel.iptables_rules import desired_rulesets, in_kernel, iptables, programs
from tests.kernel.service_namespaces import (
    CASES,
    World,
    affinity_to_an_endpoint_that_goes,
    by_name,
    changes_under_traffic,
    inside,
    path,
    proxy_follows_and_heals,
    traffic,
    until,
)
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import iptables_chains, netns
from podwire.kernel.iptables import Kind, choose, nft_tables
from podwire.model import service as api
from podwire.model.node import Node
from podwire.proxy.dataplanes.iptables.dataplane import IptablesDataPlane, clear
from podwire.proxy.dataplanes.iptables.shared import MOST_RULES
from podwire.proxy.modes import ServiceModes
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.servicemap import ServiceMap
from podwire.proxy.switch import Switch
from podwire.runtime.clock import SystemClock
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables import Ruleset

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


@pytest.fixture(params=["nft", "legacy"])
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[ServiceOwner]:
    service_owner = ServiceOwner(IptablesDataPlane(NODE, path("node"), programs(request.param)))
    yield service_owner
    service_owner.remove()
    service_owner.close()


def test_the_kernel_holds_what_is_desired_after_every_change(plane: ServiceOwner) -> None:
    plane.load({})
    assert in_kernel(plane) == desired_rulesets(plane)
    keys: set[str] = set()
    for case in CASES:
        resolved = case.resolved()
        plane.update({**dict.fromkeys(keys - resolved.keys(), ()), **resolved})
        keys = set(resolved)
        assert in_kernel(plane) == desired_rulesets(plane), case.name
    assert not plane.disturbed()


def test_a_change_writes_the_chains_of_its_service_alone(plane: ServiceOwner) -> None:
    resolved = by_name("internalTrafficPolicy Local").resolved()
    plane.load(resolved)
    web = resolved["default/web"][0]
    fewer = msgspec.structs.replace(web, cluster_endpoints=web.cluster_endpoints[:1])
    four, six = plane.update({"default/web": (fewer,)})
    assert not six
    assert "default/away" not in four
    assert "*filter" not in four
    assert ":KUBE-SERVICES" not in four
    assert four.count("\n-X KUBE-SEP-") == 1


def test_a_restart_writes_nothing(plane: ServiceOwner) -> None:
    for case in CASES:
        plane.load(case.resolved())
        with contextlib.closing(IptablesDataPlane(NODE, path("node"), plane.programs)) as again:
            assert not any(again.load(case.resolved())), case.name


def test_a_restart_applies_changes_made_meanwhile(plane: ServiceOwner) -> None:
    plane.load(by_name("externalTrafficPolicy Local").resolved())
    with contextlib.closing(IptablesDataPlane(NODE, path("node"), plane.programs)) as again:
        again.load(by_name("ClusterIP").resolved())
        assert in_kernel(plane) == desired_rulesets(again)


def test_rules_of_others_stay(plane: ServiceOwner) -> None:
    for arguments in (
        ("-t", "filter", "-N", "KUBE-FIREWALL"),
        ("-t", "filter", "-A", "INPUT", "-j", "KUBE-FIREWALL"),
        ("-t", "nat", "-A", "POSTROUTING", "-s", "198.51.100.0/24", "-j", "MASQUERADE"),
    ):
        iptables(plane, *arguments)
    before = iptables(plane, "-S"), iptables(plane, "-t", "nat", "-S")
    plane.load(by_name("externalTrafficPolicy Local").resolved())
    assert "KUBE-SERVICES" in iptables(plane, "-S", "FORWARD")
    plane.remove()
    assert (iptables(plane, "-S"), iptables(plane, "-t", "nat", "-S")) == before
    iptables(plane, "-F")
    iptables(plane, "-X")
    iptables(plane, "-t", "nat", "-F")


def test_state_of_an_earlier_run_is_cleared(plane: ServiceOwner) -> None:
    assert not clear(path("node"))
    plane.load(by_name("ClusterIP").resolved())
    assert clear(path("node"))
    assert not clear(path("node"))
    assert "KUBE-" not in iptables(plane, "-t", "nat", "-S")


def test_tables_that_the_mode_created_are_deleted_with_it() -> None:
    place = path("bare")
    netns.create(place)
    try:
        for killed in (False, True):
            with contextlib.closing(IptablesDataPlane(NODE, place, programs("nft"))) as plane:
                plane.load(by_name("ClusterIP").resolved())
                assert {name for _, name in nft_tables(place)} == {"nat", "filter"}
                if not killed:
                    plane.remove()
            assert clear(place) == killed
            assert not nft_tables(place)
    finally:
        netns.delete(place)


def test_rules_without_the_owner_mark_are_not_cleared(plane: ServiceOwner) -> None:
    plane.load(by_name("ClusterIP").resolved())
    iptables(plane, "-t", "nat", "-X", "PODWIRE-PROXY")
    inside("node", f"ip6tables-{plane.programs.kind}", "-t", "nat", "-X", "PODWIRE-PROXY")
    assert not clear(path("node"))
    assert "KUBE-SERVICES" in iptables(plane, "-t", "nat", "-S")
    iptables(plane, "-t", "nat", "-N", "KUBE-PROXY-CANARY")
    assert clear(path("node")), "a kube-proxy that is gone"
    assert "KUBE-" not in iptables(plane, "-t", "nat", "-S")


def test_the_kind_that_is_in_use_is_chosen(world: World) -> None:
    inside("outside", "iptables-legacy", "-A", "INPUT", "-s", "198.51.100.1", "-j", "DROP")
    assert choose(path("outside")).kind == "legacy"
    inside("outside", "iptables-legacy", "-F")
    assert choose(path("outside")).kind == "nft"


def test_restart_keeps_the_iptables_kind_that_holds_rules(plane: ServiceOwner) -> None:
    plane.load(by_name("ClusterIP").resolved())
    for kind in ("nft", "legacy"):
        inside("node", f"iptables-{kind}", "-t", "mangle", "-A", "FORWARD", "-j", "ACCEPT")
    with contextlib.closing(IptablesDataPlane(NODE, path("node"))) as again:
        assert again.programs.kind == plane.programs.kind
    for kind in ("nft", "legacy"):
        inside("node", f"iptables-{kind}", "-t", "mangle", "-F")


def test_changes_under_traffic_lose_nothing(world: World, plane: ServiceOwner) -> None:
    changes_under_traffic(world, plane, least=10)


def test_a_full_load_follows_a_refused_change(plane: ServiceOwner) -> None:
    plane.load(by_name("ClusterIP").resolved())
    iptables(plane, "-t", "nat", "-F", "KUBE-SERVICES")
    plane.update({"default/web": ()})
    assert in_kernel(plane) == desired_rulesets(plane)


def test_affinity_ends_with_a_removed_endpoint(world: World, plane: ServiceOwner) -> None:
    affinity_to_an_endpoint_that_goes(world, plane)


def test_only_changes_by_others_are_reported(world: World) -> None:
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(by_name("ClusterIP").resolved())
        assert not plane.disturbed()
        plane.update(by_name("session affinity").resolved())
        assert not plane.disturbed()
        iptables(plane, "-t", "nat", "-D", "PREROUTING", "1")
        assert plane.disturbed()
        assert "PREROUTING" in "".join(plane.heal())
        assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        plane.remove()
        assert not plane.disturbed()


@pytest.mark.parametrize("kind", ["nft", "legacy"])
def test_the_proxy_follows_its_sources_and_restores_rules(world: World, kind: Kind) -> None:
    with contextlib.closing(IptablesDataPlane(NODE, path("node"), programs(kind))) as plane:
        proxy_follows_and_heals(world, plane, legacy=kind == "legacy")
        plane.remove()


class Interrupted(IptablesDataPlane):
    """Flushes the translation rules once more right after the next write, without a notification."""

    flushes = 0

    def _load_families(self, services: ServiceMap) -> list[str]:
        written = super()._load_families(services)
        if self.flushes:
            iptables(self, "-t", "nat", "-F")
            self.flushes -= 1
        return written


def test_rules_that_are_flushed_during_a_repair_are_restored(world: World) -> None:
    case = by_name("ClusterIP")
    services, slices, nodes = Collection[api.Service](), Collection[api.EndpointSlice](), Collection[Node]()
    for source in (services, slices, nodes):
        source.synced.set()
    services.put("default/web", case.services[0])

    async def scenario(plane: Interrupted) -> None:
        proxy = ServiceProxy(Sources(services, slices, nodes), plane, NODE, SystemClock())
        for piece in case.slices:
            slices.put(f"default/{piece.metadata.name}", piece)
        running = asyncio.ensure_future(proxy.run())
        await until(proxy.programmed.is_set)
        plane.flushes = 1
        iptables(plane, "-t", "nat", "-F")
        await until(lambda: not plane.flushes and in_kernel(plane) == desired_rulesets(plane))
        running.cancel()

    with contextlib.closing(Interrupted(NODE, path("node"), programs("nft"))) as plane:
        asyncio.run(scenario(plane))
        assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        plane.remove()


@pytest.mark.parametrize("order", [("nftables", "iptables"), ("iptables", "nftables")])
def test_a_change_of_mode_under_traffic_loses_nothing(world: World, order: tuple[str, str]) -> None:
    services = by_name("externalTrafficPolicy Local").resolved() | by_name("ClusterIP").resolved()
    with contextlib.closing(Switch(ServiceModes(path("node")), order[0], NODE)) as plane:
        plane.load(services)
        with traffic(world, "far", "10.96.0.10") as results:
            for _ in range(2):
                for mode in (order[1], order[0]):
                    plane.configured_mode = mode
                    plane.load(services)
                    assert (plane.name, plane.problem) == (mode, None)
                    assert ("podwire-proxy" in inside("node", "nft", "list", "tables")) == (mode == "nftables")
                    assert bool(iptables_chains.read(path("node"), PROXY_IPTABLES)) == (mode == "iptables")
                    assert not plane.disturbed()
            deadline = time.monotonic() + 60
            while len(results) <= 50:
                assert time.monotonic() < deadline, "too few connections"
                time.sleep(0.01)
        assert set(results) <= {"one", "two"}, {r: results.count(r) for r in set(results)}
        for name in order:
            ServiceModes(path("node")).clear(name)


def test_a_connection_outlives_a_change_of_mode(world: World) -> None:
    services = by_name("ports and protocols are independent").resolved()
    with contextlib.closing(Switch(ServiceModes(path("node")), "nftables", NODE)) as plane:
        plane.load(services)
        with netns.inside(path("far")):
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with client:
            client.settimeout(20)
            client.connect(("10.96.0.10", 53))
            for mode in ("iptables", "nftables", "iptables"):
                plane.configured_mode = mode
                plane.load(services)
                client.send(b"x")
                assert client.recv(100).split()[0] == b"two"
        ServiceModes(path("node")).clear("iptables")


@pytest.fixture
def restless_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def loose_ends(ruleset: Ruleset) -> set[str]:
    """Service chains that rules jump to and that do not exist, and chains that no rule jumps to."""
    own = {chain for chain in ruleset.chains if chain.startswith(("KUBE-SVC-", "KUBE-SEP-"))}
    targets = {rule.rpartition(" -j ")[2] for rules in ruleset.chains.values() for rule in rules}
    return own ^ {target for target in targets if target.startswith(("KUBE-SVC-", "KUBE-SEP-"))}


def test_the_desired_state_is_complete_during_a_change(plane: ServiceOwner, restless_threads: None) -> None:
    (port,) = by_name("ClusterIP").resolved()["default/web"]
    plane.load({})
    result: list[set[str]] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            result.extend(filter(None, map(loose_ends, plane.desired())))

    asking = threading.Thread(target=ask)
    asking.start()
    for turn in range(6):
        names = [f"default/s{number}" for number in range(100 * turn, 100 * turn + 100)]
        changes = {name: (msgspec.structs.replace(port, service=name, cluster_ip=f"10.96.{turn + 1}.{n}"),)
                   for n, name in enumerate(names)}  # fmt: skip
        plane.update(changes)
        plane.update(dict.fromkeys(names, ()))
    stop.set()
    asking.join()
    assert not result


def test_many_services_change_at_once(world: World, plane: ServiceOwner) -> None:
    """When many rules of a shared chain go, the whole chain is written."""
    (port,) = by_name("ClusterIP").resolved()["default/web"]
    many = {
        f"default/s{n}": (msgspec.structs.replace(port, service=f"default/s{n}", cluster_ip=f"10.96.1.{n}"),)
        for n in range(1, 41)
    }
    plane.load({})
    plane.update(many)
    assert in_kernel(plane) == desired_rulesets(plane)
    assert world.connect("far", "10.96.1.40", 80)[0] in ("one", "two")
    plane.update(dict.fromkeys(list(many)[:30], ()))
    assert in_kernel(plane) == desired_rulesets(plane)
    assert world.connect("far", "10.96.1.40", 80)[0] in ("one", "two")
    assert world.connect("far", "10.96.1.1", 80)[0] == "dropped"
    assert ADDRESSES["one"][0] in str(desired_rulesets(plane))


def test_no_connection_is_lost_while_chains_are_divided(world: World, plane: ServiceOwner) -> None:
    """Hundreds of Services come and go in one change, and then a few around the limit."""
    (port,) = by_name("ClusterIP").resolved()["default/web"]
    several = {
        f"default/s{n}": (msgspec.structs.replace(port, service=f"default/s{n}", cluster_ip=f"10.96.2.{n}"),)
        for n in range(MOST_RULES - 4)
    }
    few = {name: several.pop(name) for name in list(several)[:8]}
    plane.load(by_name("ClusterIP").resolved())
    with traffic(world, "far", "10.96.0.10") as results:
        for change in (several | few, dict.fromkeys(few, ()), few, dict.fromkeys(few, ()), dict.fromkeys(several, ())):
            plane.update(change)
            assert ("KUBE-SVC-ADDRESSES" in str(plane.desired())) == (len(plane.services) > MOST_RULES), "it is divided"
            assert in_kernel(plane) == desired_rulesets(plane)
            seen = len(results)
            while len(results) < seen + 10:
                time.sleep(0.01)
    assert plane.counts().refused_updates == 0
    assert set(results) <= {"one", "two"}, {result: results.count(result) for result in set(results)}
