"""What becomes of a plan when the cloud refuses, is full, or cannot be asked."""

import asyncio
from ipaddress import ip_network

from tests.fakes.memory_cloud import MemoryCloud

from podwire.controllers.cloudroutes.execution import SyncOutcome, carry_out
from podwire.controllers.cloudroutes.plan import CloudNode, plan
from podwire.controllers.cloudroutes.provider import Network
from podwire.observe.log import Log

PODS = (ip_network("10.244.0.0/16"),)


def nodes(*numbers: int) -> list[CloudNode]:
    return [
        CloudNode(name=f"node-{n}", instance=f"m-{n}", addresses=(f"10.0.0.{n}",), networks=(_network(n),))
        for n in numbers
    ]


def _network(number: int) -> Network:
    return ip_network(f"10.244.{number}.0/24")


def run(cloud: MemoryCloud, *numbers: int) -> SyncOutcome:
    wanted = nodes(*numbers)
    planned = plan(wanted, cloud.read({each.instance for each in wanted}), PODS)
    return asyncio.run(carry_out(cloud, planned, Log("test")))


def cloud_of(*numbers: int) -> MemoryCloud:
    cloud = MemoryCloud()
    for number in numbers:
        cloud.add(number, f"10.0.0.{number}")
    return cloud


def test_a_full_table_concerns_the_nodes_without_a_route() -> None:
    cloud = cloud_of(1, 2, 3)
    cloud.quota = 1
    outcome = run(cloud, 1, 2, 3)
    full = "add: RouteLimitExceeded: table table-1 is full"
    assert (outcome.problems, outcome.unavailable) == ({"node-2": full, "node-3": full}, "")
    assert cloud.routes() == {"10.244.1.0/24": "if-1"}
    assert cloud.log.count("route add 10.244.3.0/24 via if-3 table table-1") == 0, "asked once, not for each node"
    outcome = run(cloud, 2, 3)
    assert cloud.routes() == {"10.244.2.0/24": "if-2"}, "the deleted node's room is used in the same run"


def test_a_refused_change_does_not_stop_other_nodes() -> None:
    cloud = cloud_of(1, 2)
    wanted = nodes(1, 2)
    planned = plan(wanted, cloud.read({"m-1", "m-2"}), PODS)
    cloud.delete(1)
    outcome = asyncio.run(carry_out(cloud, planned, Log("test")))
    assert outcome.problems == {"node-1": "add: NotFound: no interface if-1"}
    assert cloud.routes() == {"10.244.2.0/24": "if-2"}


def test_a_cloud_that_is_away_ends_the_run() -> None:
    cloud = cloud_of(1, 2)
    planned = plan(nodes(1, 2), cloud.read({"m-1", "m-2"}), PODS)
    cloud.away = "no answer"
    outcome = asyncio.run(carry_out(cloud, planned, Log("test")))
    assert outcome.unavailable == "interface if-1 forwards: no answer"
    assert set(outcome.problems) == {"node-1", "node-2"} and outcome.changes == 0
    cloud.away = ""
    assert run(cloud, 1, 2).problems == {} and set(cloud.routes()) == {"10.244.1.0/24", "10.244.2.0/24"}
