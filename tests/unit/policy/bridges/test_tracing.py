"""What becomes of packets of pods that are ports of bridges, by rules as they are planned."""

from pathlib import Path
from typing import Any

import pytest
from tests.cases.policy_table import read_cases
from tests.unit.policy.test_packet_table import POD_RANGES

from podwire.cluster.world import World
from podwire.policy.bridges.tracing import BridgePorts, BridgeTracer, planned
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.dataplanes.nftables import tracing
from podwire.policy.foreign.locate import PodLink
from podwire.trace.packet import LocalAddresses, Packet

CASES = read_cases(Path(__file__).parents[3] / "cases/policies")
ISOLATED = next(case for case in CASES if case.name == "a policy without rules isolates").world
OPEN = next(case for case in CASES if case.name == "without a policy everything passes").world
WEB, DB = "10.180.0.1", "10.180.0.2"
PODS = {"shop/web": (WEB, "fd18::1"), "shop/db": (DB, "fd18::2")}
PLACES = {"shop/web": PodLink("cni0", "veth1"), "shop/db": PodLink("cni0", "veth2")}
MISSING = "bridge-nf-call-iptables is 0"
MACHINE = LocalAddresses(addresses=frozenset({"192.168.99.1"}))


def bridges(pod_links: dict[str, PodLink] = PLACES, *, observed: bool = True) -> BridgePorts:
    unseen = {place.device: {} if observed else dict.fromkeys(("ip", "ip6"), MISSING) for place in pod_links.values()}
    addresses = {address: item for pod, item in pod_links.items() for address in PODS[pod]}
    return BridgePorts(links=pod_links, addresses=addresses, unseen=unseen, held=None)


def rules(world: World, there: BridgePorts) -> BridgeTracer:
    compiler: Compiler = compile_world(world, "n1")
    facts = PolicyFacts(pod_ranges=POD_RANGES["n1"], addresses=("192.168.99.1",), bridges=("cni0",))
    devices = {key: "cni0" if key in PODS else "veth9" for key in compiler.pods}
    plane = tracing.planned(compiler, devices, facts, MACHINE)
    selected = {key for key, pod in compiler.pods.items() if pod.ingress is not None or pod.egress is not None}
    return BridgeTracer(plane, planned(there, selected, PODS), there, MACHINE)


def packet(source: str = WEB, destination: str = DB, **more: str) -> Packet:
    devices: dict[str, Any] = {"input": "cni0", "output": "cni0"}
    return Packet(source=source, destination=destination, destination_port=80, **{**devices, **more})


def came_by(rules: BridgeTracer, item: Packet) -> tuple[str, list[str]]:
    """What becomes of a packet, and the hooks and tables of the rules that matched, each once."""
    result = next(rules.outcomes(item))
    return result.verdict, list(dict.fromkeys(f"{step.hook}: {step.table}" for step in result.steps))


FRAME = "prerouting: bridge podwire-policy"


def test_with_br_netfilter_policies_decide_between_ports() -> None:
    verdict, positions = came_by(rules(OPEN, bridges()), packet())
    assert verdict == "accept" and positions[0] == FRAME
    shut = rules(ISOLATED, bridges())
    result = next(shut.outcomes(packet()))
    assert result.verdict == "drop"
    assert result.steps[0].table == "bridge podwire-policy"
    assert result.steps[-1].table == "ip podwire-policy" and "pods app=db of shop" in shut.about(result.steps[-1])
    assert "own port of the bridge" in shut.about(result.steps[0])


@pytest.mark.parametrize(("source", "destination"), [(WEB, DB), ("fd18::1", "fd18::2")])
def test_selected_pod_is_isolated_from_other_ports(source: str, destination: str) -> None:
    blind = bridges(observed=False)
    shut = rules(ISOLATED, blind)
    for ends in ((source, destination), (destination, source)):
        result = next(shut.outcomes(packet(*ends)))
        assert result.verdict == "drop"
        assert [step.table for step in result.steps] == ["bridge podwire-policy"] * 2
        assert shut.about(result.steps[-1]).endswith(f"isolated from the other pods of their bridge: {MISSING}")
    assert came_by(rules(OPEN, blind), packet(source, destination)) == ("accept", [FRAME])


def test_packets_to_services_or_other_devices_are_routed() -> None:
    blind = rules(OPEN, bridges(observed=False))
    for item in (packet(sent_to="10.96.0.1"), packet(destination="192.0.2.1", output="eth0")):
        verdict, positions = came_by(blind, item)
        assert verdict == "accept" and positions[0] == FRAME
        assert not any(place.startswith("forward: bridge") for place in positions)
    shut = rules(ISOLATED, bridges(observed=False))
    result = next(shut.outcomes(packet(sent_to="10.96.0.1")))
    assert (result.verdict, result.steps[-1].table) == ("drop", "ip podwire-policy"), "by the policy itself"
    two = bridges({"shop/web": PodLink("cni0", "veth1"), "shop/db": PodLink("cni1", "veth2")}, observed=False)
    assert "bridge" not in came_by(rules(ISOLATED, two), packet(output="cni1"))[1][-1]


def test_packets_from_other_devices_skip_the_bridge_table() -> None:
    verdict, positions = came_by(rules(ISOLATED, bridges(observed=False)), packet("192.0.2.1", input="eth0"))
    assert verdict == "drop"
    assert not any("bridge" in place for place in positions)


def test_port_with_foreign_or_no_address_cannot_send() -> None:
    """As the held table may have it: the pod has another port now."""
    stale = planned(bridges({"shop/web": PodLink("cni0", "veth8")}), (), PODS)
    moved = BridgeTracer(None, stale, bridges(), MACHINE)
    result = next(moved.outcomes(packet()))
    assert (result.verdict, result.steps[-1].elements) == ("drop", ("set pods4 { 10.180.0.1 }",))


def test_everything_passes_without_table_and_rules() -> None:
    assert next(BridgeTracer(None, None, bridges(), MACHINE).outcomes(packet())).verdict == "accept"


def test_a_ping_by_ipv6_is_no_advertisement() -> None:
    ping = packet("fd18::1", "fd18::2", protocol="ipv6-icmp")
    assert next(rules(OPEN, bridges(observed=False)).outcomes(ping)).verdict == "accept"
    assert next(rules(ISOLATED, bridges(observed=False)).outcomes(ping)).verdict == "drop"
