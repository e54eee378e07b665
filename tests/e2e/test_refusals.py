"""Refused input gets one line without traceback; the exit status is 2 for wrong input and 1 otherwise."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, Lines, podwire, run_podwire

NAME = f"refusals-{os.getpid()}"


def run(*arguments: str, stdin: str = "", timeout: float = 180) -> subprocess.CompletedProcess[str]:
    return run_podwire(*arguments, stdin=stdin, timeout=timeout)


def refused(done: subprocess.CompletedProcess[str], status: int, *output: str) -> None:
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    for text in output:
        assert text in done.stderr, done.stderr


@pytest.fixture
def cleaned() -> Iterator[None]:
    yield
    run("down", "--name", NAME)


@pytest.fixture
def small(small_cluster: Cluster) -> str:
    """The name of a cluster of one node, for refusals by the API."""
    return small_cluster.name


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("up", "--name", "No_Good"), "--name: 'No_Good': expected lower-case letters"),
        (("up", "--nodes", "0", "--name", NAME), "nodes: 0: expected 1 to 240"),
        (("up", "--segments", "99", "--name", NAME), "segments: 99: expected 1 to 8"),
        (("up", "--config", "/nonexistent.yaml", "--name", NAME), "/nonexistent.yaml: cannot be read"),
        (("up", "-f", "/nonexistent", "--name", NAME), "/nonexistent: no such file or folder"),
        (("up", "--nodes", "three"), "'three' is not a valid integer"),
        (("frobnicate",), "No such command 'frobnicate'"),
        (("probe", "--port", "http"), "--port: 'http': expected a port from 1 to 65535"),
        (("agent", "--config", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (("apiserver", "--config", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (("kubelet", "--config", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (("controller", "--config", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (("dns", "--config", "/nonexistent.yaml"), "/nonexistent.yaml"),
    ],
)
def test_wrong_words_are_refused_before_anything_happens(arguments: tuple[str, ...], output: str) -> None:
    refused(run(*arguments), 2, output)
    assert not Path("/run/podwire", NAME).exists()


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("a: [", "stdin:2: not YAML"),
        ("- 1", "stdin:1: expected an object with apiVersion and kind"),
        ("apiVersion: v1\nkind: Pod\n", "stdin:1: metadata.name: expected a name"),
    ],
)
def test_a_malformed_manifest_is_refused_before_a_cluster_is_made(text: str, output: str) -> None:
    refused(run("up", "--name", NAME, "-f", "-", stdin=text), 2, output)
    assert not Path("/run/podwire", NAME).exists()


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("apiVersion: v1\nkind: Gizmo\nmetadata: {name: x}\n", "stdin:1: kind: the API server knows no Gizmo in v1"),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: 70000}]}\n",
            "stdin:4: spec.ports[0].port: Service x: Invalid value: 70000",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replica: 3}\n",
            "stdin:4: spec.replica: Deployment x: there is no such field",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: x, namespace: nowhere}\n"
            "spec: {containers: [{name: a, image: b}]}\n",
            'stdin:1: Pod nowhere/x: namespaces "nowhere" not found',
        ),
    ],
)
def test_what_the_api_refuses_is_named_with_file_and_line(small: str, text: str, output: str) -> None:
    refused(run("up", "--name", small, "--nodes", "1", "-f", "-", stdin=text), 2, output)


def test_a_cluster_that_is_not_there_is_named() -> None:
    for command in (("status",), ("kubeconfig",), ("exec", "node-1", "true"), ("probe",)):
        refused(run(command[0], "--name", "nowhere", *command[1:]), 1, "there is no local cluster 'nowhere'")


def test_a_node_that_is_not_there_is_named(small: str) -> None:
    refused(run("exec", "--name", small, "node-7", "true"), 2, "'node-7' is not in cluster", "node-1, switch")


def test_a_port_in_use_is_named(cleaned: None, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        config = tmp_path / "c.yaml"
        config.write_text(f"nodes: 1\napiPort: {port}\n")
        refused(run("up", "--name", NAME, "--config", str(config)), 2, f"apiPort: port {port} on 127.0.0.1 is in use")


def test_two_at_once_do_not_mix(cleaned: None) -> None:
    arguments = ("up", "--name", NAME, "--nodes", "1")
    with subprocess.Popen([*podwire(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as first:
        Lines(first).next()
        first.send_signal(signal.SIGSTOP)
        try:
            refused(run(*arguments), 1, "is being changed by another podwire process")
        finally:
            first.send_signal(signal.SIGCONT)
        output = first.communicate(timeout=180)[0]
        assert first.returncode == 0, output
    assert run(*arguments).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("--segments", "2"), "segments: cannot change while the cluster exists (1 now, not 2)"),
        (("--state-dir", "/var/tmp"), "--state-dir: cannot change while the cluster exists, whose state is in "),
    ],
)
def test_what_a_cluster_cannot_change_is_refused(small: str, arguments: tuple[str, ...], output: str) -> None:
    refused(run("up", "--name", small, *arguments), 2, output, "podwire down")


@pytest.mark.parametrize(
    "setting",
    ["images: [{name: a, command: [b]}]", "logLevel: debug", "apiPort: 1", "podCIDRs: [10.1.0.0/16]"],
)
def test_fixed_settings_in_a_file_are_refused(small: str, tmp_path: Path, setting: str) -> None:
    (tmp_path / "c.yaml").write_text(setting)
    output = f"{setting.partition(':')[0]}: cannot change while the cluster exists"
    refused(run("up", "--name", small, "--config", str(tmp_path / "c.yaml")), 2, output, "podwire down")


@pytest.mark.parametrize("command", [("status",), ("probe",), ("state", "node-1"), ("exec", "node-1", "true")])
def test_a_kubeconfig_of_no_local_cluster_is_refused(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    refused(run(*command), 2, "KUBECONFIG: /nowhere/config: cannot be read", "give --name (clusters here: ", small)
    (tmp_path / "config").write_text(
        "current-context: prod\ncontexts: [{name: prod, context: {cluster: far}}]\n"
        "clusters: [{name: far, cluster: {server: 'https://api.example'}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    refused(run(*command), 2, f"KUBECONFIG: {tmp_path}/config: context 'prod' leads to https://api.example", "--name")


def test_an_image_that_never_gets_ready_is_named(small_cluster: Cluster) -> None:
    manifest = """
apiVersion: v1
kind: Pod
metadata: {name: never}
spec:
  containers:
    - {name: web, image: busybox, command: [sleep, "600"], readinessProbe: {exec: {command: ["false"]}}}
"""
    name = small_cluster.name
    try:
        done = run("up", "--name", name, "--nodes", "1", "--timeout", "3", "-f", "-", stdin=manifest)
    finally:
        small_cluster.kubectl("delete", "pod", "never", "--now")
    refused(done, 1, "not ready in time", "Pod default/never")
