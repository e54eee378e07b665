"""Processes are killed under continuous traffic: no connection breaks, new ones work, and the cluster converges."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.clusters import done, own_name, run, running
from tests.e2e.driver import Cluster, deployment, eventually
from tests.e2e.traffic import Traffic

from podwire.local import inventory
from podwire.local.probe.collect import pod_namespaces
from podwire.local.topology import Topology
from podwire.runtime.process import start_ticks

ALL = ("apiserver", "controller", "agent-node-1", "agent-node-2", "kubelet-node-1", "kubelet-node-2")
NAME = own_name("faults")


@pytest.fixture(scope="module")
def faulty() -> Iterator[Cluster]:
    """A cluster of two nodes with a Service of three endpoints and a client."""
    manifest = f"""{deployment("web", replicas=3)}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  selector: {{app: web}}
  ports: [{{port: 80}}]
---
{deployment("client", replicas=1)}
"""
    with running(NAME, "--nodes", "2", stdin=manifest) as cluster:
        yield cluster


def topology() -> Topology:
    return inventory.existing(NAME)


def pid_of(process: str) -> int:
    record = json.loads((Path(topology().run) / "processes" / f"{process}.json").read_text())
    return int(record["pid"])


def alive(pid: int) -> bool:
    return bool(start_ticks(pid))


def kill(process: str) -> int:
    pid = pid_of(process)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        assert process == "supervisor", "a supervisor ends with its keeper"
    return pid


def traffic(cluster: Cluster) -> Traffic:
    client = cluster.get("pods", "-l", "app=client")["items"][0]
    service = cluster.get("service", "web")
    namespace = pod_namespaces(topology())[client["metadata"]["uid"]]
    return Traffic(namespace, service["spec"]["clusterIP"], 80)


def restarts(cluster: Cluster) -> dict[str, int]:
    return {
        pod["metadata"]["name"]: sum(s["restartCount"] for s in pod["status"]["containerStatuses"])
        for pod in cluster.get("pods")["items"]
    }


@pytest.mark.parametrize("process", ["apiserver", "controller", "agent-node-1", "kubelet-node-1", "kubelet-node-2"])
def test_a_killed_process_costs_no_packet_and_comes_back(faulty: Cluster, process: str) -> None:
    before = restarts(faulty)
    with traffic(faulty) as flow:
        killed = kill(process)
        assert eventually(lambda: pid_of(process) != killed and alive(pid_of(process)))
        eventually(lambda: faulty.run(["kubectl", "get", "nodes"]).returncode == 0)
        flow.go_on(30)
        faulty.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=90s")
    assert flow.problems == []
    assert restarts(faulty) == before


def test_work_goes_on_after_every_component_was_killed(faulty: Cluster) -> None:
    with traffic(faulty) as flow:
        for process in ALL:
            kill(process)
        eventually(lambda: faulty.run(["kubectl", "scale", "deployment/web", "--replicas=4"]).returncode == 0)
        faulty.rolled_out("web")
        names = {pod["metadata"]["name"] for pod in faulty.get("pods", "-l", "app=web")["items"]}
        eventually(lambda: flow.answered_by >= names)
    assert flow.problems == []
    faulty.kubectl("scale", "deployment/web", "--replicas=3")
    eventually(lambda: len(faulty.get("pods", "-l", "app=web")["items"]) == 3)


_LOOKUPS = """
import json, socket, time
failed, done, end = [], 0, time.monotonic() + 6
print("begun", flush=True)
while done < 50 or time.monotonic() < end:
    try:
        socket.getaddrinfo("web.default.svc.cluster.local", 80, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as failure:
        failed.append(str(failure))
    done += 1
    time.sleep(0.005)
print(json.dumps([done, failed]))
"""


def test_killed_dns_server_is_replaced_and_no_query_fails(faulty: Cluster) -> None:
    """Looks names up with the C library's resolver all the time, with a new socket each time."""
    client = faulty.get("pods", "-l", "app=client")["items"][0]["metadata"]["name"]
    with faulty.stream("exec", client, "--", "python3", "-c", _LOOKUPS) as looking:
        looking.until(lambda line: line == "begun")
        _kill_a_dns_server(faulty)
        done, failed = json.loads(looking.until(lambda line: line.startswith("["))[-1])
    assert done >= 50
    assert failed == []


def _kill_a_dns_server(faulty: Cluster) -> None:
    """Kills the DNS server process in a pod of cluster DNS; the process that holds its sockets starts another."""
    victim = faulty.get("pods", "-n", "kube-system", "-l", "k8s-app=kube-dns")["items"][0]["metadata"]["name"]

    def answering() -> int:
        result = {}
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                title, parent = file.read_bytes().split(b"\0")[0].decode(), file.with_name("stat").read_text()
            except OSError:
                continue
            if title.startswith("dns") and f"{victim}/" in title:
                result[int(file.parent.name)] = int(parent.rpartition(")")[2].split()[1])
        return next((pid for pid, parent in result.items() if parent in result), 0)

    first = eventually(answering)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: answering() not in (0, first))


def test_killed_container_restarts_while_its_service_goes_on(faulty: Cluster) -> None:
    pod = faulty.get("pods", "-l", "app=web")["items"][0]["metadata"]["name"]
    before = restarts(faulty)[pod]
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = file.read_bytes().split(b"\0")[0].decode()
        except OSError:
            continue
        if f"{pod}/" in arguments and not arguments.startswith("podwire"):
            os.kill(int(file.parent.name), signal.SIGKILL)
            break
    else:
        pytest.fail(f"no process of {pod}")
    eventually(lambda: restarts(faulty)[pod] == before + 1)
    faulty.ready(pod)


COMPONENTS = ("apiserver", "controller", "agent-node-1", "kubelet-node-1")


def test_a_killed_supervisor_is_replaced_and_adopts_everything(faulty: Cluster) -> None:
    before = [pid_of(process) for process in COMPONENTS]
    with traffic(faulty) as flow:
        killed = kill("supervisor")
        eventually(lambda: pid_of("supervisor") != killed and alive(pid_of("supervisor")))
        agent = kill("agent-node-2")
        assert eventually(lambda: pid_of("agent-node-2") != agent and alive(pid_of("agent-node-2")))
    assert [pid_of(process) for process in COMPONENTS] == before
    assert flow.problems == []
    eventually(lambda: podwire_status().returncode == 0)


def podwire_status(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("status", "--name", NAME, *arguments)


def test_next_up_replaces_supervisor_and_keeper_and_adopts_everything(faulty: Cluster) -> None:
    before = [pid_of(process) for process in COMPONENTS]
    with traffic(faulty) as flow:
        for process in ("keeper", "supervisor"):
            kill(process)
        eventually(lambda: not alive(pid_of("supervisor")))
        shown = podwire_status()
        assert shown.returncode == 1
        assert "problem: the supervisor has ended" in shown.stdout and f"`podwire up --name {NAME}`" in shown.stdout
        (problem,) = json.loads(podwire_status("-o", "json").stdout)["problems"]
        assert problem.startswith("the supervisor has ended")
        assert all(alive(pid) for pid in before)
        done("up", "--name", NAME, "--nodes", "2")
    assert [pid_of(process) for process in COMPONENTS] == before
    assert flow.problems == []
    assert podwire_status().returncode == 0
