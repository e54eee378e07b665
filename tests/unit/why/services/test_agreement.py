"""Services as they come, by chance: what the rules of each mode do is what Kubernetes' terms say of it."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cases.service_table import Case, parse_case
from tests.unit.why.services.test_hop import MACHINE, backed, traced, view

from podwire.why.services.hop import explain_hop

SOURCES = ("one", "two", "node", "outside")
CONDITIONS: tuple[dict[str, bool], ...] = (
    {},
    {"ready": False},
    {"ready": False, "serving": False},
    {"ready": False, "terminating": True},
    {"ready": False, "serving": False, "terminating": True},
    {"ready": True, "serving": True, "terminating": True},
)
RANGES = ("192.168.99.0/24", "10.180.0.1/32", "198.51.100.0/24", "0.0.0.0/0", "192.168.99.1/32")
FRONTS = {
    "one": ("10.96.0.10", "30080", "203.0.113.7", "203.0.113.8"),
    "two": ("10.96.0.11", "30081", "203.0.113.9", "203.0.113.10"),
}


@st.composite
def endpoints(draw: st.DrawFn) -> list[dict[str, Any]]:
    pods = draw(st.lists(st.sampled_from(("one", "two", "far")), unique=True))
    result = []
    for pod in pods:
        entry: dict[str, Any] = {"pod": pod, **draw(st.sampled_from(CONDITIONS))}
        entry |= draw(st.sampled_from(({}, {}, {"zones": ["z1"]}, {"zones": ["z2"]}, {"nodes": ["n1"]})))
        result.append(entry)
    return result


@st.composite
def services(draw: st.DrawFn, name: str) -> dict[str, Any]:
    address, node_port, external, balanced = FRONTS[name]
    kind = draw(st.sampled_from(("ClusterIP", "NodePort", "LoadBalancer")))
    port: dict[str, Any] = {"port": 80, "protocol": draw(st.sampled_from(("TCP", "UDP")))}
    entry: dict[str, Any] = {"name": name, "type": kind, "clusterIP": address, "ports": [port]}
    if kind != "ClusterIP":
        port["nodePort"] = int(node_port)
        entry["externalTrafficPolicy"] = draw(st.sampled_from(("Cluster", "Local")))
    if kind == "LoadBalancer":
        entry["ingress"] = [balanced]
        entry["sourceRanges"] = draw(st.lists(st.sampled_from(RANGES), max_size=2))
    if draw(st.booleans()):
        entry["externalIPs"] = [external]
    entry["internalTrafficPolicy"] = draw(st.sampled_from(("Cluster", "Local")))
    entry["affinity"] = draw(st.sampled_from((0, 0, 600)))
    return entry


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = list(FRONTS)
    targets = [f"{address}:{port}" for ends in FRONTS.values() for address in (ends[0], *ends[2:]) for port in (80, 81)]
    targets += [f"{address}:{ends[1]}" for ends in FRONTS.values() for address in ("192.168.99.1", "192.168.99.3")]
    targets.append("10.96.0.99:80")
    packets = st.fixed_dictionaries(
        {"from": st.sampled_from(SOURCES), "to": st.sampled_from(targets), "protocol": st.sampled_from(("tcp", "udp"))}
    )
    document = {
        "name": "by chance",
        "node": draw(st.sampled_from(({}, {"zone": ""}, {"external_ips": False}))),
        "services": [draw(services(name)) for name in names],
        "endpoints": {name: draw(endpoints()) for name in names},
        "packets": draw(st.lists(packets, min_size=1, max_size=8)),
    }
    return parse_case(document)


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_rules_and_reasons_agree(mode: str, case: Case) -> None:
    here = view(case, mode)
    for packet in case.packets:
        hop, _ = explain_hop(traced(packet), backed(case), here)
        if hop.reason == "Mode":
            # As in kube-proxy, Services that nobody serves refuse before source ranges are asked for, and at every
            # address of the node.
            assert mode == "iptables" and hop.outcome in ("refused", "dropped"), f"{packet}: {hop.message}"
            assert "loadBalancerSourceRanges" in hop.message or "no Service has node port" in hop.message
            continue
        assert hop.drift == ()
        assert hop.snat is None or hop.snat.reason != "Rules", f"{packet}: {hop}"
        assert not {e.reason for e in hop.endpoints} & {"NotInKernel", "OnlyInKernel"}
        # And the objects alone come to the same.
        alone, _ = explain_hop(traced(packet), backed(case), msgspec.structs.replace(here, planned=None, held=None))
        assert (alone.outcome, alone.reason, alone.snat) == (hop.outcome, hop.reason, hop.snat)
        assert [(e.address, e.used, e.masqueraded) for e in alone.endpoints] == [
            (e.address, e.used, e.masqueraded) for e in hop.endpoints
        ]
    assert here.machine is MACHINE
