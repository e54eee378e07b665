"""Streams of many megabytes through exec, cp, port-forward and logs arrive complete and do not hang."""

import hashlib
import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, shell_pod

SIZE = 24 << 20
# Sends back the size and digest of what it is sent up to the end, then as many bytes.
COUNT = f"""
import hashlib, socket
with socket.create_server(("", 9000)) as server:
    print("up", flush=True)
    while True:
        one, _ = server.accept()
        with one:
            digest, size = hashlib.sha256(), 0
            while size < {SIZE}:
                piece = one.recv(1 << 16)
                if not piece:
                    break
                digest.update(piece)
                size += len(piece)
            one.sendall(digest.hexdigest().encode() + b"\\n" + bytes(size))
"""


@pytest.fixture
def box(cluster: Cluster, namespace: str) -> str:
    server = shell_pod("box", "").replace('command: [sh, -c, ""]', f"command: [python3, -c, {json.dumps(COUNT)}]")
    cluster.apply(server, "-n", namespace)
    cluster.ready("box", namespace=namespace)
    return namespace


def test_exec_carries_input_and_output(cluster: Cluster, box: str) -> None:
    data = os.urandom(SIZE)
    into = ["kubectl", "exec", "-i", "box", "-n", box, "--"]

    def run(*arguments: str) -> bytes:
        done = subprocess.run(
            [*into, *arguments], input=data, capture_output=True, timeout=180, check=True, env=cluster.environment()
        )
        return done.stdout

    digest = hashlib.sha256(data).hexdigest()
    assert run("sha256sum").split()[0].decode() == digest, "taken while nothing is said"
    assert hashlib.sha256(run("cat")).hexdigest() == digest, "taken and given at once"
    assert run("head", "-c", str(SIZE), "/dev/zero") == bytes(SIZE)


def test_cp_carries_a_large_file(cluster: Cluster, box: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(os.urandom(SIZE))
    cluster.kubectl("cp", str(tmp_path / "there"), f"{box}/box:/tmp/large")
    cluster.kubectl("cp", f"{box}/box:/tmp/large", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()


def test_port_forward_carries_much_both_ways(cluster: Cluster, box: str) -> None:
    data = os.urandom(SIZE)
    with cluster.stream("port-forward", "pod/box", ":9000", "-n", box) as forward:
        (*_, line) = forward.until(lambda line: "-> 9000" in line)
        result = re.search(r"127\.0\.0\.1:(\d+) -> 9000", line)
        assert result, line
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", int(result[1])), timeout=120) as link:
                link.sendall(data)
                with link.makefile("rb") as answer:
                    assert answer.readline().decode().strip() == hashlib.sha256(data).hexdigest()
                    assert answer.read(SIZE) == bytes(SIZE)


def test_a_fast_log_is_followed_whole(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("fast", "sleep 1; seq 1 100000; sleep 60"), "-n", namespace)
    cluster.ready("fast", namespace=namespace)
    with cluster.stream("logs", "-f", "fast", "-n", namespace) as follow:
        lines = follow.until(lambda line: line == "100000")
    assert lines == [str(number) for number in range(1, 100001)]
