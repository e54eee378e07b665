"""The whole agent in a container of runc without privileges: the capabilities of its DaemonSet are enough."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.kernel import agent_container
from tests.kernel.agent_cluster import AGENT, Machine, eventually, inside
from tests.kernel.cni_node import ping

from podwire.kernel import bpf_state
from podwire.kube.resources import NETWORKPOLICIES, PODS
from podwire.state.bpf import BpfFolder

pytestmark = pytest.mark.skipif(not shutil.which("runc"), reason="needs runc")
NAME = "podwire-agent"
REFUSED = ("Operation not permitted", "Permission denied", "Read-only", "EPERM", "EACCES", "EROFS")


class Contained:
    """The agent of a node in a container."""

    def __init__(self, machine: Machine, capabilities: tuple[str, ...] = agent_container.CAPABILITIES) -> None:
        self.log = machine.root / "container.log"
        self.directory = machine.root / "bundle"
        argv = [sys.executable, "-c", AGENT, str(machine.root / "node-1.yaml")]
        agent_container.bundle(self.directory, machine.root / "node-1", machine.root, argv, capabilities)
        self.start()

    def start(self) -> None:
        self.process = agent_container.run(self.directory, NAME, self.log)

    def kill(self) -> None:
        agent_container.kill(self.directory, NAME)
        self.process.wait()


@pytest.fixture
def machine(machine: Machine) -> Iterator[Machine]:
    """A cluster with a node whose agent is not started; namespaces of pods appear in the container."""
    pods = machine.root / "pods"
    pods.mkdir()
    subprocess.run(["mount", "--bind", str(pods), str(pods)], check=True)
    subprocess.run(["mount", "--make-shared", str(pods)], check=True)
    machine.add_node(1, ("cni", "routing", "policy", "proxy"), start=False)
    yield machine
    subprocess.run(["umount", "--lazy", str(pods)], check=True)


def pod(machine: Machine, name: str) -> str:
    spec = {"nodeName": "node-1", "containers": [{"name": "c", "image": "x"}]}
    meta = {"name": name, "namespace": "default", "labels": {"app": name}}
    machine.api("create", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")
    return machine.pod("node-1", name, f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}")


def test_agent_needs_few_capabilities(machine: Machine) -> None:
    folder, file = f"test-container-{os.getpid()}", machine.root / "node-1.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dns": {"kernel": True, "folder": folder}}))
    agent = Contained(machine)
    try:
        eventually(lambda: machine.ready("node-1"), 60)
        deny = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "deny", "namespace": "default"},
            "spec": {"podSelector": {"matchLabels": {"app": "shut"}}, "policyTypes": ["Ingress"]},
        }
        machine.api("create", NETWORKPOLICIES, deny, "default")
        first, shut = pod(machine, "web"), pod(machine, "shut")
        pods = machine.root / "pods"
        assert ping(pods / "web", "10.89.0.11") and ping(pods / "shut", first)
        assert not ping(pods / "web", shut)
        agent.kill()
        agent.start()
        eventually(lambda: machine.ready("node-1"), 60)
        assert ping(pods / "shut", first, patience_s=10) and not ping(pods / "web", shut)
        eventually(lambda: not machine.drift("node-1"))
        dns = next(share for share in machine.state("node-1") if share.part == "dns")
        assert len(dns.values(BpfFolder)[0].attachments) == 2, "the kernel answers DNS queries of both pods"
    finally:
        agent.kill()
        bpf_state.remove_folder(folder)
    log = agent.log.read_text()
    print(log)
    print(inside(machine.root / "node-1", "nft", "list", "tables"))
    assert not [x for x in log.splitlines() if "OOM score" not in x and any(text in x for text in REFUSED)]
