"""The steps of a migration on nodes of Flannel and kube-proxy, with numbered flows between pods of two nodes.

Real: the plugins ``bridge`` and ``host-local``, iptables and nft, the kernel. By specification: what flanneld programs
(:mod:`tests.kernel.flannel_machine`). Recorded: the rules of kube-proxy (:mod:`tests.kernel.kube_proxy_rules`).
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import msgspec
import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.bridge_pods import NETWORK
from tests.kernel.cni_node import ping
from tests.kernel.flannel_machine import FlannelNode, FlowProcess
from tests.kernel.kube_proxy_rules import IPTABLES, NFTABLES
from tests.kernel.reference_plugins import PLUGINS

from podwire.flows import sending
from podwire.flows.count import FlowReport, summary
from podwire.install.migration.record import NodeBefore
from podwire.install.migration.run import AGENT_FACTS
from podwire.kernel import netns
from podwire.kube.resources import NODES

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not shutil.which("bridge", path=PLUGINS), reason="needs containernetworking-plugins"),
]

MODES = {"node-1": "iptables", "node-2": "nftables"}
"""The mode of kube-proxy on each node: both move and go back in one cluster."""
RULES = {"iptables": (IPTABLES, ("iptables-restore", "--noflush")), "nftables": (NFTABLES, ("nft", "-f", "-"))}


def program_kube_proxy(node: FlannelNode) -> None:
    """Loads the rules as kube-proxy's start does."""
    text, command = RULES[MODES[node.name]]
    subprocess.run(["nsenter", f"--net={node.place}", *command], input=text.encode(), check=True)


def rules(node: FlannelNode) -> str:
    return inside(node.place, "iptables-save") + inside(node.place, "nft", "list", "tables")


def reports(process: FlowProcess) -> list[FlowReport]:
    return sending.parse(process.log)


def goes_on(process: FlowProcess) -> bool:
    counts = reports(process)
    return bool(counts) and all(flow.answered > 20 and flow.silent_ms < 1000 for flow in counts)


def stop_agent(machine: Machine, name: str) -> None:
    process = machine.processes[name]
    process.send_signal(signal.SIGTERM)
    process.wait()


@pytest.fixture
def nodes(machine: Machine) -> Iterator[list[FlannelNode]]:
    """Two nodes of Flannel."""
    created = [FlannelNode(machine, number) for number in (1, 2)]
    try:
        yield created
    finally:
        for node in created:
            node.stop()


@pytest.mark.slow
def test_nodes_of_flannel_move_to_podwire_and_back(machine: Machine, nodes: list[FlannelNode]) -> None:
    old = {f"old-{node.number}": node.runtime.add(f"old-{node.number}")[0] for node in nodes}
    for node in nodes:
        node.start()
        program_kube_proxy(node)
    pods = machine.root / "pods"
    eventually(lambda: ping(pods / "old-1", old["old-2"]) and ping(pods / "old-2", old["old-1"]))
    for pod in old:
        FlowProcess(machine, pod)
    for source, target in (("old-1", "old-2"), ("old-2", "old-1")):
        with netns.inside(pods / source):
            assert sending.unreachable([old[target]], 60.0) == []
    senders = [FlowProcess(machine, "old-1", old["old-2"]), FlowProcess(machine, "old-2", old["old-1"])]
    eventually(lambda: all(map(goes_on, senders)), 60)
    before: dict[str, NodeBefore] = {}
    for node in nodes:
        *_, last = node.step("check").splitlines()
        before[node.name] = msgspec.json.decode(last, type=NodeBefore)
        assert before[node.name].devices == ("flannel.1",) and before[node.name].kube_proxy == MODES[node.name]
        assert (before[node.name].pods, before[node.name].routes) == (1, ())
        node.stop()
        machine.start_agent(node.name)
        node.step("network")
        assert node.files() == ["10-flannel.conflist.podwire-saved", "10-podwire.conflist"]
        node.step("services")
        eventually(lambda node=node: machine.ready(node.name), 60)
        node.step("network")  # A step that is repeated changes nothing.
        held = rules(node)
        assert (
            "podwire-proxy" in held and "FLANNEL" not in held and "KUBE-S" not in held and "ip kube-proxy" not in held
        )
        assert "flannel.1" not in inside(node.place, "ip", "link")
        eventually(lambda: all(map(goes_on, senders)), 60)
    eventually(lambda: machine.drift("node-1") == [])
    new = machine.pod("node-1", "new", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=")
    for source, target in (("old-1", new), ("old-2", new), ("new", old["old-1"]), ("new", old["old-2"])):
        eventually(lambda source=source, target=target: ping(pods / source, target))
    forward = [report for sender in senders for report in reports(sender)]
    for node in reversed(nodes):
        stop_agent(machine, node.name)
        machine.api("patch", NODES, node.name, {"metadata": {"annotations": dict.fromkeys(AGENT_FACTS)}})
        facts = msgspec.json.encode(before[node.name]).decode()
        node.step("network-back", "--before", facts)
        node.start()
        program_kube_proxy(node)
        node.step("services-back", "--before", facts)
        assert node.files() == ["10-flannel.conflist"]
        held = rules(node)
        assert "podwire-proxy" not in held
        assert ("KUBE-SVC" in held, "ip kube-proxy" in held) == (
            MODES[node.name] == "iptables", MODES[node.name] == "nftables",
        )  # fmt: skip
        eventually(lambda: all(map(goes_on, senders)), 60)
    held_by_host_local = {path.name for path in (machine.root / "node-1-networks" / NETWORK).glob("10.*")}
    assert held_by_host_local == {old["old-1"], new}
    later = nodes[0].runtime.add("later")[0]
    assert later not in (new, old["old-1"])
    for source, target in (("new", later), ("later", new), ("old-2", new), ("new", old["old-2"])):
        eventually(lambda source=source, target=target: ping(pods / source, target))
    counts = [report for sender in senders for report in reports(sender)]
    print("\n".join(["there:", *summary(forward), "there and back:", *summary(counts)]))
    assert [flow.broken for flow in counts] == [0] * len(counts), "no connection ended"
    assert all(flow.lost == 0 for flow in counts if flow.kind != "udp")
