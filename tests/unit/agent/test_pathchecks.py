"""What an agent publishes of its self-test: the condition of the Node, and the offload that is switched off."""

import asyncio
from collections.abc import Mapping
from ipaddress import ip_interface
from typing import Any

from msgspec.structs import replace
from tests.fakes.clock import FakeClock

from podwire.agent.config import parse
from podwire.agent.pathchecks import CONDITION, PathReports
from podwire.agent.shared import Shared
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.nodes import RoutingFacts, Underlay
from podwire.routing.probes import PathResult
from podwire.routing.router import Router
from podwire.routing.settings import RoutingSettings


class Kernel:
    """Holds nothing, and lacks nothing."""

    def lacks(self, _feature: str) -> str:
        return ""

    def underlay(self, _addresses: Any) -> Underlay:
        return Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),))

    def hold(self, *_: Any) -> tuple[str, ...]:
        return ()

    follow = hold_values = follow_values = hold

    def watch(self, *_: Any) -> None:
        """There is nothing to watch."""

    def drifted(self, values: object) -> bool:
        return False

    def learned(self, _proto: int) -> frozenset[str]:
        return frozenset()

    def sessions(self, _values: object) -> frozenset[str]:
        return frozenset()


def node(number: int) -> Node:
    facts = RoutingFacts("vxlan", ("hostgw", "vxlan"), {"mtu": 1500})
    cidr = f"10.244.{number}.0/24"
    return Node(
        metadata=ObjectMeta(name=f"node-{number}", annotations=facts.annotations()),
        spec=NodeSpec(pod_cidr=cidr, pod_cidrs=(cidr,)),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=f"10.89.0.{10 + number}"),)),
    )


def test_results_become_a_condition_and_offload_is_switched_off() -> None:
    async def body() -> None:
        nodes: Mapping[str, Node] = {f"node-{number}": node(number) for number in (1, 2, 3)}
        client = Client(ApiConfig("http://127.0.0.1:1"), FakeClock())
        shared = Shared(parse("nodeName: node-1", "test"), client)
        router = Router("node-1", lambda: nodes, Kernel(), client.clock)
        reports = PathReports(shared, router)
        assert reports.targets() == ()
        router.reconcile()
        first, second = reports.targets()
        conditions = shared.announcer.conditions
        reports.report([PathResult(target=first, largest=1450)])
        assert conditions == {}, "not all targets are tested"
        reports.report([PathResult(target=first, largest=1450), PathResult(target=second, largest=1400)])
        assert (conditions[CONDITION]["status"], conditions[CONDITION]["reason"]) == ("True", "PathTooNarrow")
        assert "node-3 (IPv4, 10.244.3.1): packets of 1400 bytes pass" in str(shared.degraded)
        wrong = PathResult(target=second, largest=1450, checksums=False)
        reports.report([PathResult(target=first, largest=1450), wrong])
        assert conditions[CONDITION]["status"] == "False"
        assert str(shared.degraded).startswith("packets in podwire-vxlan arrive at node-3 with wrong checksums")
        router.reconcile()
        assert "offload podwire-vxlan tx off" in list(map(str, router.applied.values)) and reports.is_plain(
            "podwire-vxlan"
        )
        router.configure(replace(RoutingSettings(), self_test=False, tx_checksum="on"))
        assert reports.targets() == () and reports.is_plain("other"), "a configured offload is not tested"
        await client.close()

    asyncio.run(body())
