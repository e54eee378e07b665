"""The difference between the routes that nodes need and those of a cloud, as text."""

from ipaddress import ip_network

import pytest
from msgspec.structs import replace

from podwire.controllers.cloudroutes.plan import NO_TABLE, CloudNode, choose_interface, plan
from podwire.controllers.cloudroutes.provider import (
    AddRoute,
    Claim,
    CloudInterface,
    CloudRoute,
    CloudState,
    CloudTable,
    DeleteRoute,
    Release,
)

PODS = (ip_network("10.244.0.0/16"), ip_network("fd00::/48"))


def node(number: int, *further: str, **fields: str) -> CloudNode:
    networks = tuple(ip_network(text) for text in (f"10.244.{number}.0/24", *further))
    made = CloudNode(name=f"node-{number}", instance=f"i-{number}", addresses=(f"10.0.0.{number}",), networks=networks)
    return replace(made, **fields)


def interface(number: int, **fields: bool) -> CloudInterface:
    made = CloudInterface(id=f"eni-{number}", instance=f"i-{number}", addresses=(f"10.0.0.{number}",))
    return replace(made, **fields)


def ready(number: int) -> CloudInterface:
    return interface(number, forwards=True, marked=True, restores=True)


def route(text: str, target: str = "", *, dead: bool = False) -> CloudRoute:
    return CloudRoute(ip_network(text), target, dead)


def state(*interfaces: CloudInterface, tables: dict[str, tuple[CloudRoute, ...]]) -> CloudState:
    made = tuple(CloudTable(name, routes) for name, routes in tables.items())
    return CloudState(made, {each.id: each for each in interfaces})


LOCAL = route("10.0.0.0/16")


def test_a_new_node_gets_a_route_in_each_table() -> None:
    have = state(interface(1), tables={"rtb-a": (LOCAL,), "rtb-b": ()})
    made = plan([node(1, "fd00:0:0:1::/64")], have, PODS)
    assert str(made) == (
        "interface eni-1 forwards\n"
        "route add 10.244.1.0/24 via eni-1 table rtb-a\n"
        "route add fd00:0:0:1::/64 via eni-1 table rtb-a\n"
        "route add 10.244.1.0/24 via eni-1 table rtb-b\n"
        "route add fd00:0:0:1::/64 via eni-1 table rtb-b\n"
    )
    assert made.changes[0] == (Claim("eni-1", restores=True), "node-1")
    assert {name for _, name in made.changes} == {"node-1"}


def test_nothing_changes_when_the_cloud_has_everything() -> None:
    have = state(ready(1), tables={"rtb": (LOCAL, route("10.244.1.0/24", "eni-1"))})
    assert str(plan([node(1)], have, PODS)) == ""


def test_a_deleted_node_loses_its_route_then_its_interface() -> None:
    left = ready(2)
    have = state(ready(1), left, tables={"rtb": (route("10.244.1.0/24", "eni-1"), route("10.244.2.0/24", "eni-2"))})
    first = plan([node(1)], have, PODS)
    assert first.changes == ((DeleteRoute("rtb", ip_network("10.244.2.0/24")), ""),)
    have = state(ready(1), left, tables={"rtb": (route("10.244.1.0/24", "eni-1"),)})
    assert plan([node(1)], have, PODS).changes == ((Release("eni-2", restores=True), ""),)


def test_a_check_that_was_off_before_stays_off() -> None:
    have = state(interface(1, forwards=True), tables={"rtb": ()})
    assert plan([node(1)], have, PODS).changes[0][0] == Claim("eni-1", restores=False)
    have = state(interface(1, forwards=True, marked=True), tables={"rtb": ()})
    (change, _), *more = plan([], have, PODS).changes
    assert (change, more) == (Release("eni-1", restores=False), [])
    assert str(change) == "interface eni-1 is released"


def test_a_half_claimed_interface_keeps_the_value_of_its_mark() -> None:
    have = state(interface(1, marked=True, restores=True), tables={"rtb": ()})
    assert plan([node(1)], have, PODS).changes[0][0] == Claim("eni-1", restores=True)


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param(route("10.244.9.0/24", "eni-9"), id="to an interface without the mark"),
        pytest.param(route("10.244.9.0/24"), id="to a gateway"),
        pytest.param(route("10.244.9.0/24", dead=True), id="to a gateway that no longer exists"),
        pytest.param(route("10.99.0.0/24", "eni-1"), id="to the node, outside of the pod networks"),
        pytest.param(route("0.0.0.0/0"), id="to everything"),
        pytest.param(route("10.244.0.0/15", "eni-1"), id="wider than the pod networks"),
    ],
)
def test_foreign_routes_are_not_touched(foreign: CloudRoute) -> None:
    have = state(ready(1), interface(9), tables={"rtb": (foreign, route("10.244.1.0/24", "eni-1"))})
    assert str(plan([node(1)], have, PODS)) == ""


def test_a_foreign_route_to_a_pod_cidr_is_a_problem() -> None:
    have = state(ready(1), ready(2), tables={"rtb": (route("10.244.1.0/24", "eni-9"), route("10.244.2.0/24"))})
    assert str(plan([node(1), node(2)], have, PODS)) == (
        "# node-1: table rtb has a route of others to 10.244.1.0/24, via eni-9: delete it\n"
        "# node-2: table rtb has a route of others to 10.244.2.0/24, via something that is no interface: delete it\n"
    )


def test_routes_to_deleted_instances_are_deleted_or_replaced() -> None:
    dead = (route("10.244.1.0/24", "eni-old", dead=True), route("10.244.7.0/24", "eni-gone", dead=True))
    made = plan([node(1)], state(ready(1), tables={"rtb": dead}), PODS)
    assert str(made) == ("route del 10.244.7.0/24 table rtb\nroute replace 10.244.1.0/24 via eni-1 table rtb\n")


def test_the_route_to_a_stopped_instance_stays() -> None:
    have = state(ready(1), tables={"rtb": (route("10.244.1.0/24", "eni-1", dead=True),)})
    assert str(plan([node(1)], have, PODS)) == ""


def test_a_moved_pod_cidr_is_replaced_in_place() -> None:
    have = state(ready(1), ready(2), tables={"rtb": (route("10.244.1.0/24", "eni-2"),)})
    assert plan([node(1), replace(node(2), networks=())], have, PODS).changes == (
        (AddRoute("rtb", ip_network("10.244.1.0/24"), "eni-1", replace=True), "node-1"),
    )


def test_a_node_without_a_known_instance_keeps_its_route() -> None:
    routes = (route("10.244.1.0/24", "eni-1"), route("10.244.2.0/24", "eni-2", dead=True))
    nodes = [node(1, instance="", problem="spec.providerID is ''"), node(2)]
    made = plan(nodes, state(ready(1), tables={"rtb": routes}), PODS)
    assert str(made) == (
        "route del 10.244.2.0/24 table rtb\n"
        "# node-1: spec.providerID is ''\n"
        "# node-2: instance i-2 does not exist, or has no interface\n"
    )


def test_a_pod_cidr_of_two_nodes_goes_to_the_first() -> None:
    other = replace(node(2), networks=node(1).networks)
    made = plan([other, node(1)], state(ready(1), interface(2), tables={"rtb": ()}), PODS)
    assert str(made) == (
        "route add 10.244.1.0/24 via eni-1 table rtb\n# node-2: pod CIDR 10.244.1.0/24 is also that of node node-1\n"
    )


def test_without_a_table_every_node_has_a_problem() -> None:
    made = plan([node(1), replace(node(3), networks=())], state(interface(1), tables={}), PODS)
    assert (made.changes, made.problems) == ((), {"node-1": NO_TABLE})


def test_the_interface_with_the_address_of_the_node_is_chosen() -> None:
    first = CloudInterface(id="eni-a", instance="i-1", index=0, addresses=("10.0.9.9",))
    second = CloudInterface(id="eni-b", instance="i-1", index=1, addresses=("10.0.0.1",))
    assert choose_interface(node(1), state(first, second, tables={})) == second
    assert choose_interface(node(1, instance="i-1"), state(first, tables={})) == first
    assert choose_interface(node(2), state(first, second, tables={})) is None
