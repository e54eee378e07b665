"""Traces of ``podwire why`` through the kernel's rules, for every case of the packet table, without packets."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.cases.service_table import NODE, Case
from tests.unit.why.services.test_hop import CASES, MACHINE, backed, check, traced, tracing

from podwire.dataplane.tracing import trace_held
from podwire.kernel import netns, xt_recent
from podwire.proxy.modes import open_dataplane
from podwire.why.answer import MatchedRule
from podwire.why.services.hop import ServiceRules, explain_hop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MODES = ("nftables", "iptables")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("netns") / "why"
    netns.create(path)
    yield path
    netns.delete(path)


def view(case: Case, mode: str, place: Path) -> ServiceRules:
    """The actual and the desired state of the kernel."""
    seam = tracing(mode)
    return ServiceRules(
        mode=mode,
        facts=case.node,
        machine=MACHINE,
        planned=seam.planned(case.resolved(), case.node, MACHINE),
        held=trace_held(seam, place, MACHINE),
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_kernel_holds_the_table_of_the_share(place: Path, mode: str) -> None:
    plane = open_dataplane(mode, NODE, place)
    try:
        for case in CASES:
            plane.load(case.resolved(), case.node)
            here = view(case, mode, place)
            for packet in case.by(mode).packets:
                hop, _ = explain_hop(traced(packet), backed(case), here)
                assert (hop.state, hop.drift) == ("held", ()), f"{case.name}: {packet}"
                check(packet, hop)
    finally:
        plane.remove()
        plane.close()


@pytest.mark.parametrize("mode", MODES)
def test_an_endpoint_missing_in_the_kernel_is_drift(place: Path, mode: str) -> None:
    case = next(case for case in CASES if case.name == "NodePort with policy Cluster")
    plane = open_dataplane(mode, NODE, place)
    try:
        ports = case.resolved()["default/web"]
        fewer = tuple(msgspec.structs.replace(p, cluster_endpoints=p.cluster_endpoints[:1]) for p in ports)
        plane.load({"default/web": fewer}, case.node)
        hop, _ = explain_hop(traced(case.packets[0]), backed(case), view(case, mode, place))
    finally:
        plane.remove()
        plane.close()
    assert (hop.outcome, hop.reason) == ("forwarded", "Drift")
    assert sorted(e.reason for e in hop.endpoints) == ["NotInKernel", "Ready"]
    missing = ports[0].cluster_endpoints[1].address
    assert any(line.sign == "+" and missing in line.text for line in hop.drift)


@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_without_rules_has_no_tracer(place: Path, mode: str) -> None:
    case = next(case for case in CASES if case.name == "ClusterIP")
    hop, _ = explain_hop(traced(case.packets[0]), backed(case), view(case, mode, place))
    assert (hop.outcome, hop.reason) == ("untouched", "Drift")
    assert hop.drift


def test_lists_of_clients_are_read_with_their_ages(place: Path) -> None:
    with netns.inside(place):
        for program, name, address in (("iptables", "four", "192.0.2.7"), ("ip6tables", "six", "2001:db8::7")):
            subprocess.run([program, "-A", "INPUT", "-m", "recent", "--set", "--name", name], check=True)
            Path(f"/proc/thread-self/net/xt_recent/{name}").write_text(f"+{address}\n")
    time.sleep(0.3)
    result = xt_recent.read(place)
    assert {name: list(observed) for name, observed in result.items()} == {
        "four": ["192.0.2.7"],
        "six": ["2001:db8::7"],
    }
    assert all(0.25 <= age < 60 for observed in result.values() for age in observed.values())


def test_rules_are_printed_as_nft_lists_them(place: Path) -> None:
    listed, steps = listing_and_steps(place, "nftables", "nft", "list", "ruleset")
    lines = {line.strip().removeprefix("elements = { ").removesuffix(" }").rstrip(",") for line in listed}
    sets = {line.strip().removesuffix(" {") for line in listed}
    for step in steps:
        assert step.rule in lines
        for element in step.elements:
            name, _, text = element.partition(" { ")
            assert name in sets
            assert text.removesuffix(" }") in lines


def test_rules_are_printed_as_iptables_save_prints_them(place: Path) -> None:
    listed, steps = listing_and_steps(place, "iptables", "iptables-save")
    for step in steps:
        assert f"-A {step.where.rpartition(' ')[2]} {step.rule}" in listed


def listing_and_steps(place: Path, mode: str, *command: str) -> tuple[set[str], list[MatchedRule]]:
    """The listing of a program, and the steps of packets through the same rules."""
    steps: list[MatchedRule] = []
    case = next(case for case in CASES if case.name == "externalTrafficPolicy Local")
    plane = open_dataplane(mode, NODE, place)
    try:
        plane.load(case.resolved(), case.node)
        here = view(case, mode, place)
        for packet in case.packets:
            steps += explain_hop(traced(packet), backed(case), here)[0].steps
        with netns.inside(place):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        plane.remove()
        plane.close()
    assert len(steps) > 2 * len(case.packets)
    return set(done.stdout.splitlines()), steps
