"""Logs, exec, attach, port-forward and cp: data to and from a container."""

import json
import os
import pty
import re
import select
import socket
import subprocess
import time
import urllib.request

from tests.e2e.driver import Cluster, Lines, deployment, eventually, shell_pod

_COUNTER = "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.1; done"


def _ready(cluster: Cluster, namespace: str, pod: str) -> None:
    cluster.ready(pod, namespace=namespace)


def test_logs_and_their_options(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        shell_pod("talker", "for i in 1 2 3 4 5; do echo out $i; done; echo err >&2; sleep 60"), "-n", namespace
    )
    _ready(cluster, namespace, "talker")
    where = ("talker", "-n", namespace)
    eventually(lambda: "err" in cluster.kubectl("logs", *where))
    assert cluster.kubectl("logs", *where).splitlines()[:5] == [f"out {i}" for i in range(1, 6)]
    assert len(cluster.kubectl("logs", *where, "--tail=2").splitlines()) == 2
    stamped = cluster.kubectl("logs", *where, "--timestamps").splitlines()[0]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z out 1$", stamped)
    assert cluster.kubectl("logs", *where, "--limit-bytes=5") == "out 1"
    assert "container nothing is not valid" in cluster.refused("logs", *where, "-c", "nothing")


def test_logs_follow(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("counter", _COUNTER), "-n", namespace)
    _ready(cluster, namespace, "counter")
    with cluster.stream("logs", "-f", "counter", "-n", namespace) as follow:
        assert [follow.next() for _ in range(15)] == [f"line {i}" for i in range(15)]
        cluster.kubectl("delete", "pod", "counter", "-n", namespace, "--wait=false")
        follow.process.wait(60)


def test_logs_of_the_previous_container(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("again", "echo started; sleep 1; exit 1", restart="Always"), "-n", namespace)
    eventually(
        lambda: (
            cluster.get("pod", "again", "-n", namespace)["status"].get("containerStatuses", [{}])[0].get("restartCount")
        ),
    )
    assert cluster.kubectl("logs", "again", "-n", namespace, "--previous") == "started\n"


def test_exec_output_input_and_exit_code(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("box", "sleep 600"), "-n", namespace)
    _ready(cluster, namespace, "box")
    into = ("exec", "box", "-n", namespace)
    assert cluster.kubectl(*into, "--", "hostname") == "box\n"
    assert cluster.kubectl(*into, "-i", "--", "tr", "a-z", "A-Z", stdin="shout\n") == "SHOUT\n"
    both = cluster.run(["kubectl", *into, "--", "sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (both.returncode, both.stdout) == (3, "out\n")
    assert "err\n" in both.stderr
    large = "x" * 300_000
    assert cluster.kubectl(*into, "-i", "--", "cat", stdin=large) == large
    missing = cluster.refused(*into, "--", "no-such-program")
    assert "no-such-program" in missing


def test_exec_sees_the_pods_own_network_and_files(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("box", "sleep 600"), "-n", namespace)
    _ready(cluster, namespace, "box")
    address = cluster.kubectl("get", "pod", "box", "-n", namespace, "-o", "jsonpath={.status.podIP}")
    assert address in cluster.kubectl("exec", "box", "-n", namespace, "--", "cat", "/etc/hosts")
    resolv = cluster.kubectl("exec", "box", "-n", namespace, "--", "cat", "/etc/resolv.conf")
    assert "nameserver 10.96.0.10" in resolv and f"search {namespace}.svc.cluster.local" in resolv
    links = cluster.kubectl("exec", "box", "-n", namespace, "--", "cat", "/proc/net/dev")
    assert "eth0:" in links
    token = cluster.kubectl(
        "exec", "box", "-n", namespace, "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
    )
    assert token == namespace


def test_exec_with_a_terminal(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("box", "sleep 600"), "-n", namespace)
    _ready(cluster, namespace, "box")
    ours, theirs = pty.openpty()
    arguments = [
        "kubectl",
        "exec",
        "-it",
        "box",
        "-n",
        namespace,
        "--",
        "sh",
        "-c",
        "tty && echo width $(stty size) && read x && echo got $x",
    ]
    shell = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=cluster.environment())
    os.close(theirs)
    try:
        observed = b""
        deadline = time.monotonic() + 60
        sent = False
        while b"got hello" not in observed and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    observed += os.read(ours, 4096)
                except OSError:
                    break
            if b"width" in observed and not sent:
                os.write(ours, b"hello\n")
                sent = True
        assert b"/dev/" in observed and b"got hello" in observed, observed.decode(errors="replace")
        assert shell.wait(60) == 0
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def test_attach_shows_what_the_container_writes(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("counter", _COUNTER), "-n", namespace)
    _ready(cluster, namespace, "counter")
    with cluster.stream("attach", "counter", "-n", namespace) as attach:
        for _ in range(3):
            attach.until(lambda line: re.match(r"line \d+$", line))


def _forwarded(lines: Lines, port: int) -> int:
    (*_, line) = lines.until(lambda line: f"-> {port}" in line)
    result = re.search(rf"127\.0\.0\.1:(\d+) -> {port}", line)
    assert result, line
    return int(result[1])


def test_port_forward(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    with cluster.stream("port-forward", "deployment/web", ":80", "-n", namespace) as forward:
        url = f"http://127.0.0.1:{_forwarded(forward, 80)}/"
        for _ in range(5):
            with urllib.request.urlopen(url, timeout=60) as answer:
                output = json.load(answer)
            assert (output["namespace"], output["container"], output["port"]) == (namespace, "main", 80)
            assert output["pod"].startswith("web-")


def test_port_forward_to_a_closed_port_fails_that_connection_alone(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    with cluster.stream("port-forward", "deployment/web", ":81", "-n", namespace) as forward:
        port = _forwarded(forward, 81)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
            link.sendall(b"x\n")
            try:
                assert link.recv(10) == b""
            except ConnectionResetError:
                pass


def test_cp_carries_a_file_there_and_back(cluster: Cluster, namespace: str, tmp_path: object) -> None:
    text = (
        shell_pod("box", "sleep 600").replace(
            "      command:", "      volumeMounts: [{name: d, mountPath: /data}]\n      command:"
        )
        + "  volumes: [{name: d, emptyDir: {}}]\n"
    )
    cluster.apply(text, "-n", namespace)
    _ready(cluster, namespace, "box")
    with open(f"{tmp_path}/there", "wb") as file:  # noqa: PTH123
        file.write(os.urandom(100_000))
    cluster.kubectl("cp", f"{tmp_path}/there", f"{namespace}/box:/data/there")
    cluster.kubectl("cp", f"{namespace}/box:/data/there", f"{tmp_path}/back")
    with open(f"{tmp_path}/there", "rb") as there, open(f"{tmp_path}/back", "rb") as back:  # noqa: PTH123
        assert there.read() == back.read()
