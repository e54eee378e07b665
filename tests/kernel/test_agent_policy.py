"""The agent's policy component: CNI waits for it, a restart keeps the rules, missing features are reported."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.agent_cluster import AGENT, Machine, eventually, inside

from podwire.cni import program
from podwire.kernel import netns
from podwire.kube.resources import NETWORKPOLICIES, NODES, PODS

WITHOUT_NFTABLES = Path(__file__).parents[1] / "e2e/without_nftables.py"
DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny", "namespace": "default"},
    "spec": {"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Ingress"]},
}


FILE_UID = "5f0b6cb0c6e04f2d9d7a6f2a1a2b3c4d"
"""Of a static pod: the kubelet computes it from the file, and hands it over instead of that of the object."""


def pod(machine: Machine, name: str, **annotations: str) -> None:
    """A Pod object on the first node."""
    spec = {"nodeName": "node-1", "containers": [{"name": "c", "image": "x"}]}
    meta = {"name": name, "namespace": "default", "labels": {"app": name}, "annotations": annotations}
    machine.api("create", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")


def add(machine: Machine, name: str, **more: str) -> tuple[int, Any]:
    """Exit status and answer of the ADD that kubelet would run, with ``more`` in the environment."""
    place = machine.root / "pods" / name
    if not place.exists():
        netns.create(place)
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": f"c-{name}",
        "CNI_NETNS": str(place),
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}",
        "PODWIRE_CNI_SOCKET": str(machine.root / "node-1-run" / "cni.sock"),
        **more,
    }
    conf = b'{"cniVersion": "1.0.0", "name": "podwire"}'
    done = subprocess.run([str(program.path())], env=environment, capture_output=True, check=False, input=conf)
    return done.returncode, json.loads(done.stdout or "{}")


def elements(machine: Machine, name: str) -> str:
    return inside(machine.root / "node-1", "nft", "list", "map", "ip", "podwire-policy", name)


@pytest.mark.slow
def test_a_pod_is_wired_when_its_policies_are_in_force(machine: Machine) -> None:
    machine.add_node(1, ("cni", "routing", "policy"))
    eventually(lambda: machine.ready("node-1"))
    machine.api("create", NETWORKPOLICIES, DENY, "default")
    status, answer = add(machine, "a")
    assert (status, answer["code"]) == (1, 11), "the pod is not known"
    pod(machine, "a")
    status, answer = add(machine, "a")
    assert status == 0, answer
    assert "goto in-" in elements(machine, "ingress")
    before = elements(machine, "ingress"), elements(machine, "egress")
    machine.kill("node-1")
    assert (elements(machine, "ingress"), elements(machine, "egress")) == before
    machine.start_agent("node-1")
    eventually(lambda: machine.ready("node-1"))
    assert (elements(machine, "ingress"), elements(machine, "egress")) == before
    eventually(lambda: not machine.drift("node-1"))
    machine.api("delete", NETWORKPOLICIES, "deny", "default")
    eventually(lambda: "goto" not in elements(machine, "ingress"))


@pytest.mark.slow
def test_policies_apply_to_packets_of_static_pods(machine: Machine) -> None:
    machine.add_node(1, ("cni", "routing", "policy"))
    eventually(lambda: machine.ready("node-1"))
    machine.api("create", NETWORKPOLICIES, DENY, "default")
    pod(machine, "a", **{"kubernetes.io/config.mirror": FILE_UID})
    pod(machine, "b")
    arguments = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID={FILE_UID}"
    addresses = {}
    for name, more in (("a", {"CNI_ARGS": arguments}), ("b", {})):
        status, answer = add(machine, name, **more)
        assert status == 0, answer
        addresses[name] = answer["ips"][0]["address"].partition("/")[0]
    assert not reaches(machine, "b", addresses["a"]), "the policy denies all that comes in"
    assert reaches(machine, "a", addresses["b"])
    machine.api("delete", NETWORKPOLICIES, "deny", "default")
    eventually(lambda: reaches(machine, "b", addresses["a"]))


def reaches(machine: Machine, name: str, address: str) -> bool:
    """Whether a pod's connection gets an answer within a second; nobody listens, so that is a refusal."""
    with netns.inside(machine.root / "pods" / name):
        client = socket.socket()
    with client:
        client.settimeout(1)
        try:
            client.connect((address, 80))
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False
    raise AssertionError("somebody listens")


@pytest.mark.slow
def test_no_pod_is_wired_without_agent_and_changes_catch_up(machine: Machine) -> None:
    machine.add_node(1, ("cni", "routing", "policy"))
    eventually(lambda: machine.ready("node-1"))
    machine.api("create", NETWORKPOLICIES, DENY, "default")
    for name in ("a", "b", "late"):
        pod(machine, name)
    assert add(machine, "a")[0] == add(machine, "b")[0] == 0
    before = eventually(lambda: elements(machine, "ingress") if "goto in-" in elements(machine, "ingress") else "")
    machine.kill("node-1")
    status, answer = add(machine, "late", PODWIRE_CNI_WAIT_S="1")
    assert status == 1
    assert answer["code"] == 11, "the runtime is to try again"
    assert "eth0" not in inside(machine.root / "pods" / "late", "ip", "link")
    machine.api("delete", NETWORKPOLICIES, "deny", "default")
    other = {**DENY, "metadata": {"name": "other", "namespace": "default"}}
    other["spec"] = {"podSelector": {"matchLabels": {"app": "late"}}, "policyTypes": ["Egress"]}
    machine.api("create", NETWORKPOLICIES, other, "default")
    machine.api("delete", PODS, "b", "default", grace_period_s=0)
    assert elements(machine, "ingress") == before, "nobody opens anything"
    machine.start_agent("node-1")
    eventually(lambda: machine.ready("node-1"))
    eventually(lambda: "goto" not in elements(machine, "ingress"))
    eventually(lambda: elements(machine, "ingress").count("accept") == 1)
    assert add(machine, "late")[0] == 0
    eventually(lambda: "goto out-" in elements(machine, "egress"))


@pytest.mark.slow
def test_without_nftables_pods_selected_by_policies_are_refused(machine: Machine) -> None:
    machine.add_node(1, ("cni", "routing", "policy"), start=False)
    arguments = ["nsenter", f"--net={machine.root}/node-1", sys.executable, str(WITHOUT_NFTABLES), sys.executable]
    with (machine.root / "node-1.log").open("ab") as log:
        machine.processes["node-1"] = subprocess.Popen(
            [*arguments, "-c", AGENT, str(machine.root / "node-1.yaml")],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    eventually(lambda: machine.ready("node-1"), 20)
    reported = "policy: the kernel has no nftables (in Linux since 3.13); pods that policies select are refused"
    eventually(lambda: reported in str(machine.api("get", NODES, "node-1")["metadata"].get("annotations")))
    machine.api("create", NETWORKPOLICIES, DENY, "default")
    for name in ("a", "b"):
        pod(machine, name)

    def refused() -> str:
        """The reason why ADD refuses a pod; a pod that came before the policy arrived is removed again."""
        status, answer = add(machine, "a")
        if status == 0:
            add(machine, "a", CNI_COMMAND="DEL")
            return ""
        return str(answer["msg"] + answer.get("details", ""))

    assert "cannot enforce the policies that select default/a" in eventually(refused)
    assert add(machine, "b")[0] == 0
