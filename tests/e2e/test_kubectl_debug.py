"""Ephemeral containers by ``kubectl debug``, and throw-away pods by ``kubectl run --rm``."""

import os
import pty
import select
import subprocess
import time

from tests.e2e.driver import Cluster, deployment, eventually


def _talk(cluster: Cluster, arguments: list[str], output: bytes, until: bytes, within: float = 60) -> str:
    """The output of a kubectl on a terminal: presses enter until a prompt appears, then types ``output``."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=cluster.environment())
    os.close(theirs)
    observed, typed, deadline = b"", False, time.monotonic() + within
    try:
        while until not in observed and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.3)[0]:
                try:
                    observed += os.read(ours, 4096)
                except OSError:
                    break
            elif not typed:
                typed = observed.endswith(b"# ")
                os.write(ours, output if typed else b"\n")
        assert until in observed, observed.decode(errors="replace")
        process.wait(within)
        return observed.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_an_ephemeral_container_joins_a_running_pod(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    (pod,) = cluster.get("pod", "-n", namespace)["items"]
    name = pod["metadata"]["name"]
    script = "hostname; cat /proc/net/dev; curl -s http://127.0.0.1:80/"
    cluster.kubectl("debug", name, "-n", namespace, "--image=busybox:1.36", "-c", "look", "--", "sh", "-c", script)

    def ended() -> dict[str, object]:
        status = cluster.get("pod", name, "-n", namespace)["status"].get("ephemeralContainerStatuses") or [{}]
        result: dict[str, object] = status[0].get("state", {}).get("terminated") or {}
        return result

    assert eventually(ended)["exitCode"] == 0
    output = cluster.kubectl("logs", name, "-c", "look", "-n", namespace)
    assert output.splitlines()[0] == name and "eth0:" in output and '"container":"main"' in output.replace(" ", "")
    after = cluster.get("pod", name, "-n", namespace)["status"]
    assert [c["restartCount"] for c in after["containerStatuses"]] == [0]
    assert {c["type"]: c["status"] for c in after["conditions"]}["Ready"] == "True"
    text = cluster.kubectl("describe", "pod", name, "-n", namespace)
    assert "Ephemeral Containers:" in text and "look:" in text


def test_debug_attaches_a_terminal(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    name = cluster.kubectl("get", "pod", "-n", namespace, "-o", "jsonpath={.items[0].metadata.name}")
    arguments = ["kubectl", "debug", "-it", name, "-n", namespace, "--image=busybox", "-c", "shell", "--target=main"]
    observed = _talk(cluster, arguments, b"echo on $(hostname) is $((40 + 2)); exit 7\n", f"on {name} is 42".encode())
    assert "is 42" in observed
    where = "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}"
    eventually(lambda: cluster.kubectl("get", "pod", name, "-n", namespace, "-o", where) == "7")


def test_debug_copies_a_pod(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    name = cluster.kubectl("get", "pod", "-n", namespace, "-o", "jsonpath={.items[0].metadata.name}")
    cluster.kubectl("debug", name, "-n", namespace, "--image=busybox", "--copy-to=copy", "-c", "d", "--", "sleep", "60")
    cluster.ready("copy", namespace=namespace)
    spec = cluster.get("pod", "copy", "-n", namespace)["spec"]
    assert sorted(c["name"] for c in spec["containers"]) == ["d", "main"]
    assert sum(v["name"].startswith("kube-api-access-") for v in spec["volumes"]) == 1


def test_run_rm_on_a_terminal_leaves_nothing(cluster: Cluster, namespace: str) -> None:
    arguments = ["kubectl", "run", "box", "--rm", "-it", "--restart=Never", "--image=busybox", "-n", namespace]
    observed = _talk(cluster, arguments, b"echo sum $((40 + 2)); exit\n", b"deleted")
    assert "sum 42" in observed
    assert cluster.run(["kubectl", "get", "pod", "box", "-n", namespace]).returncode != 0


def test_run_rm_takes_input_from_a_pipe(cluster: Cluster, namespace: str) -> None:
    arguments = ("run", "pipe", "--rm", "-i", "--restart=Never", "--image=busybox", "-n", namespace, "-q")
    assert "SHOUT" in cluster.kubectl(*arguments, "--", "tr", "a-z", "A-Z", stdin="shout\n")
