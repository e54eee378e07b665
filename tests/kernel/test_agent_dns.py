"""The agent's DNS answers in the kernel: from the API to a pod's packets, policies, kill -9, and a silent API."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.test_agent_policy import add, elements, pod
from tests.kernel.test_uninstall import uninstall

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.dns.wire import DnsMessage
from podwire.kernel import bpf_state, netns
from podwire.kernel.bpf_state import BpfPins
from podwire.kube.resources import NETWORKPOLICIES, SERVICES
from podwire.state.bpf import BpfFolder

FOLDER = f"test-agent-{os.getpid()}"
WEB = "web.default.svc.cluster.local"
DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny", "namespace": "default"},
    "spec": {"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"]},
}


def service(machine: Machine, namespace: str, name: str, address: str) -> None:
    spec = {"clusterIP": address, "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}
    meta = {"name": name, "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
    machine.api("create", SERVICES, body, namespace)


@pytest.fixture
def answering(machine: Machine) -> Iterator[Machine]:
    """A node whose kernel answers, with a pod."""
    machine.add_node(1, ("cni", "routing", "policy"), start=False)
    path = machine.root / "node-1.yaml"
    config: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"dns": {"kernel": True, "folder": FOLDER}}))
    machine.start_agent("node-1")
    service(machine, "kube-system", "kube-dns", "10.96.0.10")
    service(machine, "default", "web", "10.96.0.77")
    eventually(lambda: machine.ready("node-1"))
    pod(machine, "a")
    status, answer = add(machine, "a")
    assert status == 0, answer
    yield machine
    bpf_state.remove_folder(FOLDER)


def ask(machine: Machine, name: str, timeout_s: float = 10.0) -> DnsMessage | None:
    with netns.inside(machine.root / "pods" / "a"):
        link = socket.socket(type=socket.SOCK_DGRAM)
    with link:
        # A fixed port: the kernel leaves one of 65,536 checksums, which have two meanings, to the server.
        link.bind(("0.0.0.0", 40000))
        link.settimeout(timeout_s)
        link.connect(("10.96.0.10", 53))
        link.send(wire.encode(DnsMessage(7, wire.RD, encode_name(name), wire.A)))
        try:
            return wire.parse_message(link.recv(512))
        except OSError:
            return None


def answers(machine: Machine) -> DnsMessage:
    """The kernel's first answer; a query that nobody answers is repeated."""
    reply = eventually(lambda: ask(machine, WEB, 0.2))
    assert isinstance(reply, DnsMessage)
    return reply


def clients() -> list[bytes]:
    table = BpfPins(FOLDER).open_map("dns_clients")
    try:
        return list(table)
    finally:
        table.close()


def generation() -> int:
    table = BpfPins(FOLDER).open_map("dns_generation")
    try:
        return int.from_bytes(table.read(bytes(4)) or b"", "little")
    finally:
        table.close()


def test_pod_is_answered_and_policies_hold(answering: Machine) -> None:
    reply = answers(answering)
    assert [record.tail for record in reply.answer] == [bytes((10, 96, 0, 77))]
    missing = ask(answering, f"{WEB}.default.svc.cluster.local")
    assert missing is not None
    assert missing.rcode == wire.NXDOMAIN
    assert not answering.drift("node-1")
    parts = {share.part: share for share in answering.state("node-1")}
    assert [a.hook for a in parts["dns"].values(BpfFolder)[0].attachments] == ["ingress"]
    answering.api("create", NETWORKPOLICIES, DENY, "default")
    eventually(lambda: "goto out-" in elements(answering, "egress"))
    assert clients() == [], "the policy is in force, and the kernel still answers"
    assert ask(answering, WEB, 0.3) is None
    answering.api("delete", NETWORKPOLICIES, "deny", "default")
    assert answers(answering).rcode == wire.NOERROR


@pytest.mark.slow
def test_killed_agent_loses_no_query_and_catches_up(answering: Machine) -> None:
    answers(answering)
    answering.kill("node-1")
    answering.api("delete", SERVICES, "web", "default")
    service(answering, "default", "late", "10.96.0.78")
    for _ in range(200):
        assert ask(answering, WEB) is not None
    answering.start_agent("node-1")
    while True:
        reply = ask(answering, WEB)
        assert reply is not None
        if reply.rcode == wire.NXDOMAIN:
            break
    late = ask(answering, "late.default.svc.cluster.local")
    assert late is not None
    assert late.rcode == wire.NOERROR
    answering.kill("api")
    before = generation()
    eventually(lambda: generation() > before + 1)
    assert ask(answering, WEB) is not None
    answering.kill("node-1")
    removed = uninstall(answering, "node-1", "--with-pods")
    assert f"removed BPF programs and maps in /sys/fs/bpf/podwire/{FOLDER}" in removed.stdout, removed.stderr
    assert FOLDER not in bpf_state.folders()


def test_answers_end_when_they_are_switched_off(answering: Machine) -> None:
    answers(answering)
    answering.kill("node-1")
    path = answering.root / "node-1.yaml"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dns": {"folder": FOLDER}}))
    answering.start_agent("node-1")
    eventually(lambda: FOLDER not in bpf_state.folders())
    assert "sched_cls" not in inside(answering.root / "node-1", "tc", "filter", "show", "dev", device(answering))


def device(machine: Machine) -> str:
    shown = inside(machine.root / "node-1", "ip", "-o", "link", "show", "type", "veth")
    return next(line.split(": ")[1].partition("@")[0] for line in shown.splitlines() if "eth0" not in line)


def test_log_says_what_is_missing(machine: Machine, tmp_path: Path) -> None:
    machine.add_node(1, ("cni", "routing"), start=False)
    path = machine.root / "node-1.yaml"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dns": {"kernel": True, "folder": FOLDER}}))
    machine.start_agent("node-1")
    log = tmp_path / "node-1.log"
    eventually(lambda: "need the parts cni and policy" in log.read_text())
