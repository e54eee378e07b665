"""Objects of projectcalico.org/v3 in force at real BIRD processes, changed while these run."""

import asyncio
import re
from ipaddress import ip_network

from msgspec.structs import replace
from tests.kernel import bird_nodes
from tests.kernel.bird_nodes import (
    OUTSIDE,
    ROUTER_AS,
    Make,
    ask,
    bgp_filter,
    configuration,
    control,
    established,
    learned,
    objects,
    peer,
    pid,
    router,
    sessions,
    settings,
    take,
)
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, ClusterNode, Talk, inside
from tests.kernel.routing_programs import Nodes, run, until

from podwire.bgp.sessionstate import SessionState
from podwire.routing.backends.bgp.observe import read_sessions
from podwire.runtime.clock import SystemClock

make = bird_nodes.make

SERVICES = "10.96.0.0/16"


def routes_of_router(cluster: Cluster) -> str:
    return inside(cluster.fabric, "ip", "route", "show", "proto", "bird")


def test_mesh_gives_way_to_reflectors_by_label_without_loss(make: Make) -> None:
    reflected = peer("reflected", nodeSelector="all()", peerSelector="has(rr)")

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings())
        first, second, third, fourth = cluster.all
        await until(lambda: all(established(control(node), 3) for node in cluster.all))
        numbers = [pid(node) for node in cluster.all]
        a, b = third.pod("a"), fourth.pod("b")
        with b.running(ECHO_SERVER):
            talk = Talk(a, b)
            for node, identifier in ((first, "244.0.0.1"), (second, "244.0.0.2")):
                node.labels = {"rr": "yes", "projectcalico.org/RouteReflectorClusterID": identifier}
                cluster.nodes[node.name] = node.object()
            await take(cluster, nodes, reflected)
            await until(lambda: established(control(third), 3))
            await take(cluster, nodes, reflected, configuration(nodeToNodeMeshEnabled=False))
            await until(lambda: established(control(first), 3) and established(control(second), 3))
            await until(lambda: established(control(third), 2) and "node_10_89_0_14" not in sessions(control(third)))
            route = ("show", "route", "10.244.4.0/24", "all")
            await until(lambda: ask(control(third), *route).count("BGP.next_hop: 10.89.0.14") == 2)
            assert "244.0.0.1" in ask(control(third), *route), "the list of clusters has the reflector's identifier"
            assert talk.end() == 0, "no segment is lost"
        assert [pid(node) for node in cluster.all] == numbers, "no BIRD was started again"

    run(make(4), body)


def test_changed_filter_is_in_force_and_the_session_stays(make: Make) -> None:
    def tor(*filters: dict[str, object]) -> tuple[dict[str, object], ...]:
        peers = tuple(
            peer(f"tor-{n}", node=f"node-{n}", peerIP=f"10.89.{n % 2}.1", asNumber=ROUTER_AS, filters=["f"])
            for n in (1, 2)
        )
        return (*peers, *filters)

    outside = {"cidr": OUTSIDE, "matchOperator": "In"}
    pods = {"cidr": "10.244.0.0/16", "matchOperator": "In", "prefixLength": {"min": 24, "max": 24}}
    refuse = bgp_filter("f", importV4=[{"action": "Reject", **outside}])
    tag = bgp_filter(
        "f",
        exportV4=[{"action": "Accept", **pods, "operations": [{"addCommunity": {"value": "64512:9"}}]}],
    )

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        with router(cluster) as where:
            await nodes.use(settings())
            await take(cluster, nodes, *tor(refuse))
            first = cluster.all[0]
            await until(lambda: established(where, 2) and "10.244.2.0/24" in learned(first))
            assert OUTSIDE not in learned(first)
            before = (pid(first), sessions(control(first))["peer_10_89_1_1"])
            await take(cluster, nodes, *tor(tag))
            await until(lambda: OUTSIDE in learned(first))
            await until(lambda: "(64512,9)" in ask(where, "show", "route", "10.244.1.0/24", "all"))
            assert (pid(first), sessions(control(first))["peer_10_89_1_1"]) == before
            await take(cluster, nodes, *tor(refuse))
            await until(lambda: OUTSIDE not in learned(first))
            assert (pid(first), sessions(control(first))["peer_10_89_1_1"]) == before

    run(make(2, segments=2), body)


def test_bird_writes_no_routes_to_pods_that_the_configuration_takes(make: Make) -> None:
    """``programClusterRoutes``; BIRD knows the routes, and other routes stay in the kernel."""
    racks = [peer(f"tor-{n}", node=f"node-{n}", peerIP=f"10.89.{n % 2}.1", asNumber=ROUTER_AS) for n in (1, 2)]
    without = configuration(programClusterRoutes="Disabled", ignoredInterfaces=["cali*"])

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        with router(cluster):
            await nodes.use(settings())
            await take(cluster, nodes, *racks)
            first = cluster.all[0]
            number = pid(first)
            for taken, written in ((racks, True), ([*racks, without], False), (racks, True)):
                await take(cluster, nodes, *taken)
                await until(lambda written=written: ("10.244.2.0/24" in learned(first)) == written)  # type: ignore[misc]
                await until(lambda: OUTSIDE in learned(first))
                assert "10.244.2.0/24" in ask(control(first), "show", "route")
            assert pid(first) == number

    run(make(2, segments=2), body)


def test_services_are_announced_and_pools_without_export_are_not(make: Make) -> None:
    tor = peer("tor", nodeSelector="all()", peerIP="10.89.0.1", asNumber=ROUTER_AS)
    tagged = configuration(
        serviceClusterIPs=[{"cidr": SERVICES}],
        communities=[{"name": "services", "value": "64512:96"}],
        prefixAdvertisements=[{"cidr": SERVICES, "communities": ["services"]}],
    )
    hidden = {"kind": "IPPool", "name": "pods", "spec": {"cidr": "10.244.2.0/24", "disableBGPExport": True}}

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        with router(cluster) as where:
            await nodes.use(settings())
            await take(cluster, nodes, tor, tagged)
            await until(lambda: SERVICES in routes_of_router(cluster) and "10.244.2.0/24" in routes_of_router(cluster))
            await until(lambda: ask(where, "show", "route", SERVICES, "all").count("(64512,96)") == 2)
            assert "(64512,96)" not in ask(where, "show", "route", "10.244.1.0/24", "all")
            assert SERVICES not in learned(cluster.all[0]), "a node keeps the route to Services to itself"
            await take(cluster, nodes, tor, tagged, hidden)
            await until(lambda: "10.244.2.0/24" not in routes_of_router(cluster))
            assert "10.244.1.0/24" in routes_of_router(cluster)
            second = cluster.all[1]
            local = (ip_network("10.96.0.77/32"),)
            second.router.take_objects("bgp", replace(objects(tor, tagged), service_addresses=local))
            await nodes.settle()
            await until(lambda: f"10.96.0.77 via {second.ip} " in routes_of_router(cluster))

    run(make(2), body)


def test_address_of_a_node_is_peered_from_both_ends(make: Make) -> None:
    reflector = peer("reflector", nodeSelector="all()", peerIP="10.89.0.12", asNumber=64512)

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings(mesh=False))
        await take(cluster, nodes, reflector)
        first, second, third = cluster.all
        await until(lambda: established(control(second), 2))
        assert established(control(first), 1) and established(control(third), 1)

    run(make(3), body)


def test_state_of_each_session_is_read_with_its_error(make: Make) -> None:
    async def read(node: ClusterNode) -> dict[str, SessionState]:
        return {session.address: session for session in await read_sessions(node.router.own.run_dir)}

    async def body(cluster: Cluster, nodes: Nodes) -> None:
        first, second = cluster.all
        assert await read(first) == {}, "BIRD does not run yet"
        with router(cluster):
            await nodes.use(settings())
            tor = peer("tor", peerIP="10.89.0.1", asNumber=ROUTER_AS)
            stranger = peer("stranger", nodeSelector="all()", peerIP="10.89.0.99", asNumber=65000)
            await take(cluster, nodes, tor, stranger)
            async with asyncio.timeout(60):
                while True:
                    result = await read(first)
                    tor_now, node, away = result["10.89.0.1"], result[second.ip], result["10.89.0.99"]
                    if tor_now.received and tor_now.sent and node.received and away.last_error:
                        break
                    await SystemClock().sleep(0.05)
        assert (node.peer, node.state, node.as_number, node.received) == ("Node node-2", "Established", 64512, 1)
        assert (tor_now.peer, tor_now.state, tor_now.as_number) == ("BGPPeer tor", "Established", ROUTER_AS)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", tor_now.since)
        assert away.state != "Established" and away.last_error == "Socket: No route to host"

    run(make(2), body)


def test_ports_and_addresses_of_listening_follow_the_configuration(make: Make) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings())
        first = cluster.all[0]
        await until(lambda: all(established(control(node), 2) for node in cluster.all))
        await take(cluster, nodes, configuration(listenPort=1179, bindMode="NodeIP", asNumber=64999))
        await until(lambda: all(established(control(node), 2) for node in cluster.all))
        listening = {line.split()[3] for line in first.shows("ss", "-Htln").splitlines()}
        assert {"10.89.0.11:1179", "[fd89::11]:1179"} <= listening and not {"0.0.0.0:1179", "[::]:1179"} & listening
        assert "Neighbor AS:      64999" in ask(control(first), "show", "protocols", "all", "node_10_89_0_12")

    run(make(2, families="46"), body)
