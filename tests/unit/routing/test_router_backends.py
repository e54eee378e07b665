"""Backends in the router: what the kernel lacks, child processes, keys, switches and objects of the API."""

import asyncio
from collections.abc import Iterable, Mapping
from ipaddress import ip_network

import pytest
from msgspec.structs import replace
from tests.fakes.clock import FakeClock
from tests.unit.routing.router_lab import Lab, MemoryMachine, node

from podwire.errors import ConfigError
from podwire.model.node import Node, NodeAddress, NodeStatus
from podwire.routing.backends.bgp.objects import BgpObjects, ConfigurationValues
from podwire.routing.backends.ovs.switch import INBOUND
from podwire.routing.nodes import NodeKey, RoutingFacts
from podwire.routing.router import CHECK_S, QUIET_S, RESYNC_S, Router
from podwire.routing.settings import RoutingSettings, parse_settings
from podwire.routing.transition import SWITCH_S
from podwire.runtime.children import ChildEvent
from podwire.runtime.program import Child
from podwire.state.network import NetworkState
from podwire.state.nft import AbsentTable, Table


def test_tables_follow_the_options() -> None:
    machine = MemoryMachine()
    router = Router("node-1", lambda: {"node-1": node(1), "node-2": node(2)}, machine, FakeClock())
    router.reconcile()
    tables = [value.name for value in machine.values if isinstance(value, Table)]
    assert tables == ["podwire-masquerade", "podwire-routing"]
    router.configure(RoutingSettings(backend="hostgw", masquerade=False))
    router.reconcile()
    assert {AbsentTable("inet", name) for name in tables} <= set(machine.values)
    assert {type(value) for value in machine.values} == {AbsentTable}
    assert {sample.labels.get("backend"): sample.value for sample in router.applied.samples()}["hostgw"] == 1
    assert router.plan is not None
    assert router.plan.facts.annotations()["podwire.io/routing"] == "hostgw"


def test_unsupported_backend_is_named_and_replaced() -> None:
    async def body() -> None:
        async with Lab() as lab:
            assert lab.router.backends.missing == ""
            lab.machine.without = {"vxlan"}
            lab.router.disturbed()
            await lab.clock.advance(1)
            assert lab.router.backends.missing == "routing.backend vxlan: the kernel has no vxlan; using hostgw"
            state = lab.machine.states[-1]
            assert [(r.dst, r.via) for r in state.routes if r.via] == [("10.244.2.0/24", "10.89.0.12")]
            assert state.link("podwire-vxlan") is None
            assert lab.announced[-1].facts == RoutingFacts("hostgw", ("hostgw",), {"mtu": 1500})

    asyncio.run(body())


def unreachable(state: NetworkState) -> set[str]:
    return {route.dst for route in state.routes if route.kind == "unreachable"}


def devices_of_routes(state: NetworkState) -> dict[str, str]:
    """The devices of the routes to pods of other nodes."""
    return {
        route.dst: route.link for route in state.routes if route.kind == "unicast" and route.dst.startswith("10.244.")
    }


def with_key(backend: str = "wireguard") -> dict[str, str]:
    details = {"wireguard": {"generation": 0, "keys": {"0": "B" * 42 + "A="}}}
    return RoutingFacts(backend, (backend, "wireguard"), details).annotations()


def test_without_its_program_wireguard_refuses_packets_until_it_appears() -> None:
    async def body() -> None:
        lab = Lab()
        lab.machine.without = {"wireguard-engine"}
        lab.router.keys = MemoryKeys()
        lab.nodes["node-2"], lab.nodes["node-3"] = node(2, with_key()), node(3, with_key("vxlan"))
        lab.router.cidrs = (ip_network("10.244.0.0/16"),)
        lab.router.configure(RoutingSettings(backend="wireguard"))
        async with lab:
            reason = (
                "routing.backend wireguard: the kernel has no wireguard-engine; packets to and from pods of other nodes"
            )
            assert (
                lab.router.backends.missing == lab.router.backends.refused == f"{reason} are refused until it is there"
            )
            assert "node-2: this node has no WireGuard key" in lab.router.applied.unreached
            state = lab.machine.states[-1]
            assert devices_of_routes(state) == {} and unreachable(state) >= {"10.244.0.0/16"}
            assert [link.name for link in state.links] == ["podwire-vxlan"], "it receives from node-3"
            assert lab.announced[-1].facts.backend == "wireguard"
            assert "wireguard" not in lab.announced[-1].facts.receives
            lab.machine.without = set()
            await lab.clock.advance(CHECK_S + 1)
            assert devices_of_routes(lab.machine.states[-1]) == dict.fromkeys(
                ["10.244.2.0/24", "10.244.3.0/24"], "podwire-wg"
            )
            assert lab.router.backends.missing == lab.router.backends.refused == ""
            assert "wireguard" in lab.announced[-1].facts.receives

    asyncio.run(body())


def test_a_switch_to_wireguard_waits_briefly_for_keys_of_peers() -> None:
    async def body() -> None:
        lab = Lab()
        lab.router.keys = MemoryKeys()
        for number in (2, 3, 4):
            lab.nodes[f"node-{number}"] = node(number, RoutingFacts("hostgw", ("hostgw",)).annotations())
        lab.router.configure(RoutingSettings(backend="hostgw"))
        async with lab:
            assert set(devices_of_routes(lab.machine.states[-1]).values()) == {"eth0"}
            lab.router.configure(RoutingSettings(backend="wireguard"))
            before, lab.nodes["node-3"] = lab.nodes["node-3"], node(3, with_key("hostgw"))
            lab.router.node_changed("node-3", before, lab.nodes["node-3"])
            before, lab.nodes["node-4"] = lab.nodes["node-4"], node(4, RoutingFacts("wireguard", ()).annotations())
            lab.router.node_changed("node-4", before, lab.nodes["node-4"])
            lab.nodes["node-5"] = node(5)
            lab.router.node_changed("node-5", None, lab.nodes["node-5"])
            await lab.clock.advance(SWITCH_S - 2)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "eth0", "10.244.3.0/24": "podwire-wg"}
            await lab.clock.advance(4)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.3.0/24": "podwire-wg"}
            assert unreachable(lab.machine.states[-1]) >= {"10.244.2.0/23", "10.244.4.0/23"}
            assert "node node-2 has announced no WireGuard key yet" in lab.router.applied.unreached

    asyncio.run(body())


def test_a_switch_to_wireguard_waits_briefly_for_sessions_with_peers() -> None:
    async def body() -> None:
        lab = Lab()
        lab.router.keys, lab.router.programs.children = MemoryKeys(), MemoryPrograms()
        vxlan = RoutingFacts("vxlan", ("vxlan",), {"mac": "02:00:00:00:00:02"})
        lab.nodes["node-2"] = node(2, vxlan.annotations())
        async with lab:
            lab.machine.shakes_hands = False
            lab.router.configure(RoutingSettings(backend="wireguard"))
            before = lab.nodes["node-2"]
            details = {"wireguard": {"generation": 0, "keys": {"0": "B" * 42 + "A="}}, **vxlan.details}
            both = RoutingFacts("wireguard", ("vxlan", "wireguard"), details, ("vxlan",))
            lab.nodes["node-2"] = node(2, both.annotations())
            lab.router.node_changed("node-2", before, lab.nodes["node-2"])
            lab.nodes["node-3"] = node(3, both.annotations())
            lab.router.node_changed("node-3", None, lab.nodes["node-3"])
            await lab.clock.advance(CHECK_S + 1)
            ways = {"10.244.2.0/24": "podwire-vxlan", "10.244.3.0/24": "podwire-wg"}
            assert devices_of_routes(lab.machine.states[-1]) == ways, "a node that joins has had no clear packets"
            assert list(lab.announced[-1].facts.sends) == ["vxlan"]
            lab.machine.shakes_hands = True
            await lab.clock.advance(CHECK_S + 1)
            assert set(devices_of_routes(lab.machine.states[-1]).values()) == {"podwire-wg"}
            assert list(lab.announced[-1].facts.sends) == []
            assert lab.machine.states[-1].link("podwire-vxlan") is not None, "node-2 announces that it sends by vxlan"

    asyncio.run(body())


def wireguard_facts(generation: int, *generations: int) -> dict[str, str]:
    keys = {str(number): "BC"[number] * 42 + "A=" for number in generations}
    return RoutingFacts(
        "wireguard", ("wireguard",), {"wireguard": {"generation": generation, "keys": keys}}
    ).annotations()


def test_a_new_key_of_wireguard_waits_briefly_for_sessions() -> None:
    async def body() -> None:
        lab = Lab()
        lab.router.keys, lab.router.programs.children = MemoryKeys(), MemoryPrograms()
        lab.nodes["node-2"] = node(2, wireguard_facts(0, 0))
        lab.nodes["node-3"] = node(3, RoutingFacts("hostgw", ("hostgw",)).annotations())
        lab.router.configure(parse_settings({"backend": "wireguard"}, "test"))

        def changes(name: str, changed: Node) -> None:
            before, lab.nodes[name] = lab.nodes[name], changed
            lab.router.node_changed(name, before, changed)

        async with lab:
            changes("node-1", node(1, lab.announced[-1].facts.annotations()))
            await lab.clock.advance(1)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "podwire-wg"}
            lab.machine.shakes_hands_with = {"B" * 42 + "A="}
            lab.router.configure(parse_settings({"backend": "wireguard", "wireguard.keyGeneration": 1}, "test"))
            changes("node-2", node(2, wireguard_facts(1, 0, 1)))
            await lab.clock.advance(1)
            changes("node-1", node(1, lab.announced[-1].facts.annotations()))
            await lab.clock.advance(CHECK_S + 1)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "podwire-wg"}, "node-3 gets none"
            lab.machine.shakes_hands_with = None
            await lab.clock.advance(CHECK_S + 1)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "podwire-wg2"}
            assert lab.machine.states[-1].link("podwire-wg") is not None, "node-2 may not have a session yet"
            await lab.clock.advance(SWITCH_S)
            changes("node-1", node(1, lab.announced[-1].facts.annotations()))
            await lab.clock.advance(1)
            assert [link.name for link in lab.machine.states[-1].links] == ["podwire-wg2"]

    asyncio.run(body())


@pytest.mark.parametrize("learned", [True, False])
def test_a_switch_to_bgp_waits_briefly_for_learned_routes(learned: bool) -> None:
    facts = RoutingFacts("bgp", ("bgp", "vxlan"), {"bgp": {"asNumber": 64512}}).annotations()
    behind = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="10.89.1.13"),))

    async def body() -> None:
        lab = Lab()
        lab.router.programs.children = MemoryPrograms()
        lab.nodes |= {"node-2": node(2, facts), "node-3": replace(node(3, facts), status=behind)}
        async with lab:
            assert set(devices_of_routes(lab.machine.states[-1]).values()) == {"podwire-vxlan"}
            lab.router.configure(RoutingSettings(backend="bgp"))
            await lab.clock.advance(SWITCH_S - 2)
            waiting = {"10.244.2.0/24": "eth0", "10.244.3.0/24": "podwire-vxlan"}
            assert devices_of_routes(lab.machine.states[-1]) == waiting
            lab.machine.learned_routes = {"10.244.3.0/24"} if learned else {"10.244.4.0/24"}
            await lab.clock.advance(CHECK_S)
            assert devices_of_routes(lab.machine.states[-1]) == (waiting if not learned else {"10.244.2.0/24": "eth0"})
            await lab.clock.advance(RESYNC_S)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "eth0"}

    asyncio.run(body())


def test_without_a_session_no_packet_stays_clear() -> None:
    async def body() -> None:
        lab = Lab()
        lab.router.keys, lab.router.programs.children = MemoryKeys(), MemoryPrograms()
        lab.nodes["node-2"] = node(2, with_key("hostgw"))
        lab.router.configure(RoutingSettings(backend="hostgw"))
        lab.machine.shakes_hands = False
        async with lab:
            lab.router.configure(RoutingSettings(backend="wireguard"))
            await lab.clock.advance(SWITCH_S - 2)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "eth0"}
            await lab.clock.advance(4)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "podwire-wg"}

    asyncio.run(body())


def test_a_process_that_is_never_configured_keeps_no_clear_routes() -> None:
    async def body() -> None:
        lab = Lab()
        lab.router.keys, lab.router.programs.children = MemoryKeys(), MemoryPrograms()
        lab.nodes["node-2"] = node(2, with_key("vxlan"))
        lab.machine.program_failures = ["podwire-wg: its process does not answer"]
        async with lab:
            lab.router.configure(RoutingSettings(backend="wireguard"))
            await lab.clock.advance(1)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "podwire-vxlan"}
            await lab.clock.advance(SWITCH_S + 11)
            assert devices_of_routes(lab.machine.states[-1]) == {"10.244.2.0/24": "podwire-wg"}

    asyncio.run(body())


def test_new_devices_have_their_neighbours_before_routes_lead_to_them() -> None:
    async def body() -> None:
        lab = Lab()
        lab.machine.without = {"openvswitch"}
        lab.router.programs.children = MemoryPrograms()
        lab.router.configure(RoutingSettings(backend="hostgw"))
        async with lab:
            lab.machine.program_failures = ["ovs: its process does not answer"]
            lab.router.configure(RoutingSettings(backend="ovs"))
            await lab.clock.advance(1)
            state = lab.machine.states[-1]
            assert devices_of_routes(state) == {"10.244.2.0/24": "eth0"}
            assert INBOUND[4] in {neighbour.ip for neighbour in state.neighbours}

    asyncio.run(body())


def test_peer_with_unsupported_backend_is_reached_by_another() -> None:
    async def body() -> None:
        lab = Lab()
        lab.machine.without = {"vxlan"}
        lab.nodes["node-2"] = node(
            2, RoutingFacts("vxlan", ("hostgw", "vxlan"), {"mac": "02:00:00:00:00:02"}).annotations()
        )
        async with lab:
            assert lab.router.plan is not None
            assert lab.router.plan.senders == {"node-2": "hostgw"}
            assert lab.router.problem == ""

    asyncio.run(body())


def test_missing_nftables_is_named_and_pods_are_routed() -> None:
    async def body() -> None:
        lab = Lab()
        lab.machine.without = {"nftables"}
        async with lab:
            assert lab.router.backends.missing.startswith("routing: the kernel has no nftables; ")
            assert (lab.machine.values, lab.router.problem) == ((), "")
            assert len(lab.announced) == 1

    asyncio.run(body())


def test_a_changed_label_of_a_node_reaches_the_plan() -> None:
    async def body() -> None:
        async with Lab() as lab:
            old, runs = lab.nodes["node-2"], lab.router.applied.runs
            new = replace(old, metadata=replace(old.metadata, labels={"route-reflector": "true"}))
            lab.nodes["node-2"] = new
            lab.router.node_changed("node-2", old, new)
            await lab.clock.advance(4 * QUIET_S)
            assert lab.router.applied.runs == runs + 1

    asyncio.run(body())


class RefusingPrograms:
    """Refuses the files of child processes while ``reason`` is set."""

    def __init__(self) -> None:
        self.reason = ""
        self.calls = 0

    async def apply(self, desired: Iterable[Child]) -> None:
        self.calls += 1
        if self.reason:
            raise ConfigError("the files of bird", "", self.reason)


def test_refused_files_of_a_program_are_named_until_accepted() -> None:
    async def body() -> None:
        lab, programs = Lab(), RefusingPrograms()
        lab.router.programs.children = programs
        async with lab:
            assert lab.router.problem == ""
            programs.reason = "refused: line 3"
            lab.router.disturbed()
            await lab.clock.advance(1)
            problem = "cannot run the programs of routing: the files of bird: refused: line 3"
            assert lab.router.problem == problem
            lab.router.reconcile()
            assert lab.router.problem == problem, "a run that reads only the kernel does not hide it"
            programs.reason, calls = "", programs.calls
            await lab.clock.advance(11)
            assert programs.calls > calls
            assert lab.router.problem == ""

    asyncio.run(body())


class MemoryPrograms:
    """Remembers the child processes that should run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def apply(self, desired: Iterable[Child]) -> None:
        self.names = [child.name for child in desired]


class MemoryKeys:
    """One public key for every name."""

    broken = False

    def keep(self, backend: str, names: Iterable[str]) -> Mapping[str, NodeKey]:
        if self.broken:
            raise OSError("no space left on device")
        return {name: NodeKey("A" * 43 + "=", f"/keys/{backend}-{name}") for name in names}


def test_a_key_is_announced_once_its_process_is_configured() -> None:
    async def body() -> None:
        async with Lab() as lab:
            programs = lab.router.programs.children = MemoryPrograms()
            lab.router.keys = MemoryKeys()
            lab.machine.without = {"wireguard"}
            lab.machine.program_failures = ["podwire-wg: its process does not answer"]
            lab.router.configure(RoutingSettings(backend="wireguard"))
            await lab.clock.advance(1)
            assert programs.names == ["podwire-wg"]
            assert lab.router.problem == "podwire-wg: its process does not answer"
            assert "wireguard" not in lab.announced[-1].facts.details
            state = str(lab.machine.states[-1])
            assert "link podwire-wg " in state and " dev podwire-vxlan onlink" in state, "the routes stay meanwhile"
            lab.machine.program_failures = []
            await lab.clock.advance(11)
            assert lab.router.problem == ""
            assert "podwire-vxlan" not in str(lab.machine.states[-1])
            assert lab.announced[-1].facts.details["wireguard"]["keys"] == {"0": "A" * 43 + "="}
            runs = lab.runs
            lab.router.programs.note_child(ChildEvent("podwire-wg", 7, "ended"))
            await lab.clock.advance(1)
            assert lab.runs == runs + 1, "the new process is configured"

    asyncio.run(body())


def test_keys_that_cannot_be_kept_are_the_problem() -> None:
    async def body() -> None:
        async with Lab() as lab:
            keys = lab.router.keys = MemoryKeys()
            keys.broken = True
            lab.router.configure(RoutingSettings(backend="wireguard"))
            await lab.clock.advance(1)
            assert lab.router.problem == "cannot keep the keys of routing: no space left on device"
            keys.broken = False
            await lab.clock.advance(11)
            assert lab.router.problem == ""

    asyncio.run(body())


def test_nothing_is_written_before_objects_of_the_backend_are_known() -> None:
    started: list[str] = []

    async def body() -> None:
        lab = Lab()
        lab.router.backends.followers = {"bgp": lambda: started.append("bgp")}
        async with lab:
            assert lab.runs == 1 and not started, "the backend vxlan has no such objects"
            lab.router.configure(RoutingSettings(backend="bgp"))
            await lab.clock.advance(4 * QUIET_S)
            assert lab.runs == 1 and started
            assert lab.router.problem == "the objects of bgp are not known yet"
            lab.router.take_objects("bgp", BgpObjects(default=ConfigurationValues(as_number=64999)))
            await lab.clock.advance(1)
            assert lab.router.problem == "" and lab.runs > 1
            (bird,) = lab.announced[-1].children
            assert b" as 64999;" in next(iter(bird.files.values()))

    asyncio.run(body())
