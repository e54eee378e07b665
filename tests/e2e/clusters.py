"""Clusters that one test module uses alone, and traffic between their pods."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.driver import Cluster, eventually, run_podwire, shell_pod
from tests.e2e.traffic import PACE_S, Traffic

from podwire.cluster.inforce import lag
from podwire.errors import PodwireError, ProtocolError
from podwire.http.fetch import fetch
from podwire.kernel import comparison
from podwire.local import credentials, inventory
from podwire.local.probe.collect import pod_namespaces
from podwire.local.topology import Topology
from podwire.state import share
from podwire.state.drift import render


def run(*arguments: str, stdin: str = "", timeout: float = 180) -> subprocess.CompletedProcess[str]:
    """Runs a podwire command; returns the result, whatever the exit status is."""
    return run_podwire(*arguments, stdin=stdin, timeout=timeout)


def done(*arguments: str, stdin: str = "", timeout: float = 180) -> str:
    """Runs a podwire command and returns its output; fails the test when the exit status is not 0."""
    finished = run(*arguments, stdin=stdin, timeout=timeout)
    assert finished.returncode == 0, f"podwire {' '.join(arguments)}:\n{finished.stdout}{finished.stderr}"
    return finished.stdout


def own_name(area: str) -> str:
    """A name that no other test run has."""
    return f"{area}-{os.getpid()}"


def up(name: str, *arguments: str, stdin: str = "") -> Cluster:
    """Starts a cluster, or changes one that runs."""
    done("up", "--name", name, *arguments, *(("-f", "-") if stdin else ()), stdin=stdin)
    return Cluster(name, str(credentials.kubeconfig_path(inventory.existing(name), "admin")))


@contextmanager
def running(name: str, *arguments: str, stdin: str = "") -> Iterator[Cluster]:
    """A cluster that runs until the end of the block."""
    try:
        yield up(name, *arguments, stdin=stdin)
    finally:
        run("down", "--name", name, timeout=120)


@contextmanager
def without_network(area: str, folder: Path, audit: Path) -> Iterator[Cluster]:
    """Two nodes without a network; the image ``podwire`` is this podwire, ``audit`` the log of service accounts."""
    file = folder / "cluster.yaml"
    document = {
        "nodes": 2,
        "network": "none",
        "images": [{"name": "podwire", "command": [str(Path(sys.executable).parent / "podwire")]}],
        "audit": {"file": str(audit), "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}]},
    }
    file.write_text(json.dumps(document))
    with running(own_name(area), "--config", str(file)) as cluster:
        yield cluster


def server(name: str, node: str = "", labels: str = "") -> str:
    """The manifest of a stand-in server, on the given node or on any."""
    place = f"\n  nodeName: {node}" if node else ""
    return f"""
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels or f"app: {name}"}}}}}
spec:{place}
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: nginx:1.27
      ports: [{{containerPort: 80}}]
      readinessProbe: {{httpGet: {{path: /, port: 80}}, periodSeconds: 1}}
"""


PAIR = f"""{server("one", "node-1", "tier: web")}{server("two", "node-2", "tier: web")}
---
apiVersion: v1
kind: Service
metadata: {{name: both}}
spec: {{type: NodePort, selector: {{tier: web}}, ports: [{{port: 80, nodePort: 30080}}]}}
---{shell_pod("client", "sleep 3600")}"""
"""A server on each of two nodes, a Service of both, and a client."""


def topology(cluster: Cluster) -> Topology:
    return inventory.existing(cluster.name)


def netns_of(cluster: Cluster, pod: str, namespace: str = "default") -> Path:
    """The network namespace of a pod."""
    uid = cluster.get("pod", pod, "-n", namespace)["metadata"]["uid"]
    return pod_namespaces(topology(cluster))[uid]


def address_of(cluster: Cluster, pod: str, version: int = 4) -> str:
    """The address of a pod in one IP family."""
    result = cluster.get("pod", pod)["status"]["podIPs"]
    return next(str(item["ip"]) for item in result if (":" in item["ip"]) == (version == 6))


@contextmanager
def flows(cluster: Cluster, pairs: Sequence[tuple[str, str]], pace_s: float = PACE_S) -> Iterator[list[Traffic]]:
    """Continuous traffic from pods to addresses (or to other pods, by name), all at once."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(Traffic(netns_of(cluster, source), _address(cluster, target), 80, pace_s))
            for source, target in pairs
        ]


def _address(cluster: Cluster, target: str) -> str:
    return target if "." in target or ":" in target else address_of(cluster, target)


def identities(cluster: Cluster) -> dict[str, tuple[Any, ...]]:
    """The uid and the container starts of each pod of ``default``: they change when a pod is replaced or restarted."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            pod["status"]["podIP"],
            *(status["restartCount"] for status in pod["status"]["containerStatuses"]),
        )
        for pod in cluster.get("pods")["items"]
    }


def policies_in_force(cluster: Cluster) -> None:
    """Waits until the kernel of every node holds the policies, pods and namespaces that the API has now."""
    kinds = {"NetworkPolicy": "networkpolicies", "Pod": "pods", "Namespace": "namespaces"}

    def late() -> str:
        expected: dict[str, dict[str, str]] = {plural: {} for plural in kinds.values()}
        sockets = []
        for item in cluster.get("nodes,networkpolicies,pods,namespaces", "-A")["items"]:
            meta = item["metadata"]
            if item["kind"] == "Node":
                sockets.append(Path(topology(cluster).node_run(meta["name"]), "agent.sock"))
                continue
            key = f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
            expected[kinds[item["kind"]]][key] = meta["resourceVersion"]
        try:
            return next(filter(None, (lag([*fetch(path, "/seen")], "policy", expected) for path in sockets)), "")
        except (OSError, ProtocolError) as failure:
            return f"an agent does not answer: {failure}"

    eventually(lambda: not late())


def drift(cluster: Cluster, node: str, part: str = "") -> list[str]:
    """How the kernel of a node differs from what its agent wants, of one part or of all; also while none answers.

    It is what ``podwire state --diff`` shows, without a process for each look.
    """
    try:
        shares = share.parse(fetch(Path(topology(cluster).node_run(node), "agent.sock"), "/state"))
        wanted = [item for item in shares if part in ("", item.part)]
        return list(render(comparison.compare(wanted, Path(topology(cluster).netns(node)))))
    except (OSError, PodwireError) as failure:
        return [f"{node}: {failure}"]


def in_node(cluster: Cluster, node: str, *command: str) -> str:
    """The output of a command that runs in the network namespace of a node; fails the test unless it exits with 0."""
    arguments = ["nsenter", f"--net={topology(cluster).netns(node)}", "--", *command]
    finished = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, f"{node}: {' '.join(command)}:\n{finished.stdout}{finished.stderr}"
    return finished.stdout
