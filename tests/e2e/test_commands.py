"""Commands around a running cluster: list, status, version, exec, kubeconfig, completion, Ctrl-C."""

import json
import os
import platform
import signal
import subprocess
from pathlib import Path

import pytest
from tests.e2e.clusters import done, own_name, run, running
from tests.e2e.driver import Cluster, Lines, eventually, podwire
from tests.e2e.shared_clusters import NAMES

NAME = NAMES["small"]
"""Of the cluster of one node."""


@pytest.fixture
def small(small_cluster: Cluster) -> Cluster:
    assert small_cluster.name == NAME
    return small_cluster


def test_the_list_has_a_line_for_each_cluster(small: Cluster) -> None:
    row = next(line.split() for line in done("list").splitlines() if line.startswith(NAME))
    assert row[1:3] == ["running", "1"] and row[4] == small.kubeconfig
    result = next(item for item in json.loads(done("list", "-o", "json")) if item["name"] == NAME)
    assert result["nodes"] == 1 and result["api"].startswith("https://127.0.0.1:")


def test_versions_are_those_of_this_machine() -> None:
    result = json.loads(done("version", "-o", "json"))
    assert result == {
        "podwire": run("--version").stdout.split()[-1],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    assert done("version").split()[:2] == ["podwire", result["podwire"]]


def test_status_as_json_tells_what_text_tells(small: Cluster) -> None:
    result = json.loads(done("status", "--name", NAME, "-o", "json"))
    assert (result["cluster"], result["problems"], result["kubeconfig"]) == (NAME, [], small.kubeconfig)
    (node,) = result["nodes"]
    assert (node["name"], node["ready"], node["routing"], node["services"]) == ("node-1", True, "vxlan", "nftables")
    processes = {item["name"]: item["pid"] for item in result["processes"] if item["running"]}
    assert {"keeper", "supervisor", "apiserver", "controller", "agent-node-1", "kubelet-node-1"} == set(processes)
    text = done("status", "--name", NAME)
    assert all(f"{pid}" in text for pid in processes.values())


def test_status_fails_while_a_process_is_dead(small: Cluster) -> None:
    record = Path("/run/podwire", NAME, "processes/kubelet-node-1.json")
    supervisor = json.loads(record.with_name("supervisor.json").read_text())["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
        eventually(lambda: run("status", "--name", NAME).returncode == 1)
        assert "problem: kubelet-node-1 has ended" in run("status", "--name", NAME).stdout
        row = next(line.split() for line in done("list").splitlines() if line.startswith(NAME))
        assert row[1] == "degraded"
    finally:
        os.kill(supervisor, signal.SIGCONT)
    eventually(lambda: run("status", "--name", NAME).returncode == 0)


@pytest.mark.parametrize("arguments", [("--",), ()])
def test_exec_takes_a_command_with_and_without_dashes(small: Cluster, arguments: tuple[str, ...]) -> None:
    output = done(
        "exec", "--name", NAME, "node-1", *arguments, "sh", "-c", "echo $0 $1; ip -br link show eth0", "a", "--b"
    )
    assert output.startswith("a --b\neth0")


def test_exec_without_a_command_after_dashes_is_refused(small: Cluster) -> None:
    refused = run("exec", "--name", NAME, "node-1", "--")
    assert (refused.returncode, refused.stderr) == (2, "podwire: COMMAND: expected a command after --\n")


def test_exec_names_options_that_stand_after_the_node(small: Cluster) -> None:
    refused = run("exec", "node-1", "--name", NAME, "--", "true")
    expected = "podwire: COMMAND: '--name' is not a command; write options before NODE\n"
    assert (refused.returncode, refused.stderr) == (2, expected)


def test_merge_lets_kubectl_find_the_cluster_until_down(tmp_path: Path) -> None:
    name = own_name("merged")
    environment = {key: text for key, text in os.environ.items() if key != "KUBECONFIG"} | {"HOME": str(tmp_path)}
    own = tmp_path / ".kube/config"
    own.parent.mkdir()
    own.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: prod\ncontexts: [{name: prod, context: {cluster: far}}]\n"
        "clusters: [{name: far, cluster: {server: 'https://api.example'}}]\n"
    )

    def output_of(*arguments: str) -> str:
        return subprocess.run(
            arguments, capture_output=True, text=True, check=True, env=environment, timeout=120
        ).stdout

    with running(name, "--nodes", "1"):
        merged = output_of(*podwire(), "kubeconfig", "--name", name, "--merge")
        assert merged == f"{own}: the current context is podwire-{name}\n"
        assert output_of("kubectl", "get", "nodes", "-o", "name") == "node/node-1\n"
        assert output_of("kubectl", "config", "get-contexts", "-o", "name").split() == [f"podwire-{name}", "prod"]
        own_status = subprocess.run(
            [*podwire(), "status"],
            capture_output=True,
            text=True,
            check=False,
            env=environment | {"KUBECONFIG": str(own)},
        )
        assert own_status.returncode == 0 and name in own_status.stdout
        assert f"removed the context of cluster {name!r} from {own}" in output_of(*podwire(), "down", "--name", name)
    assert output_of("kubectl", "config", "get-contexts", "-o", "name").split() == ["prod"]


def test_the_cluster_own_file_is_not_merged_with_itself(small: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", small.kubeconfig)
    refused = run("kubeconfig", "--name", NAME, "--merge")
    assert refused.returncode == 2 and "is the cluster's own file; unset KUBECONFIG" in refused.stderr
    refused = run("kubeconfig", "--name", NAME, "--merge", "--text")
    assert refused.returncode == 2 and "expected one of --text and --merge" in refused.stderr


def test_interrupted_up_says_what_it_leaves() -> None:
    name = own_name("stopped")
    try:
        with subprocess.Popen(
            [*podwire(), "up", "--name", name, "--nodes", "1", "-f", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stderr is not None
            process.stdin.write(b"apiVersion: v1\nkind: Pod\nmetadata: {name: never}\nspec: {nodeName: nowhere, "
                                b"containers: [{name: a, image: b}]}\n")  # fmt: skip
            process.stdin.close()
            Lines(process).until(lambda line: line.startswith("applied"))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            text = process.stderr.read().decode()
        assert "Traceback" not in text
        assert f"interrupted; cluster '{name}' may be incomplete: `podwire up --name {name}` completes it" in text
        assert f"`podwire down --name {name}` removes it" in text
        assert name in done("list")
    finally:
        run("down", "--name", name)


def test_bash_completes_commands_clusters_and_nodes(small: Cluster) -> None:
    script = f"""
        PATH={Path(podwire()[0]).parent}:$PATH
        source <(podwire completion bash)
        ask() {{ COMP_WORDS=("$@"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
                _podwire_completion "$1" "${{COMP_WORDS[-1]}}" podwire; echo "${{COMPREPLY[@]}}"; }}
        ask podwire versi
        ask podwire status --name {NAME[:9]}
        ask podwire exec --name {NAME} nod
    """
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    lines = result.stdout.splitlines()
    assert lines[0] == "version" and NAME in lines[1].split() and lines[2] == "node-1", result
