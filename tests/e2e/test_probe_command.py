"""``podwire probe``: its arguments, its output and its exit status."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.clusters import address_of, own_name, run, running, server
from tests.e2e.driver import Cluster, eventually, podwire

NAME = own_name("probe")
FIELDS = ["from", "to", "protocol", "port", "reached", "answered_by", "source_seen", "ms"]
PORTS = "[{containerPort: 80}, {containerPort: 81}, {containerPort: 5353, protocol: UDP}, {containerPort: 82}]"
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports:
    - {name: http, port: 8080, targetPort: 80, nodePort: 30080}
    - {name: dns, port: 53, targetPort: 5353, protocol: UDP, nodePort: 30053}
"""


@pytest.fixture(scope="module")
def nine() -> Iterator[Cluster]:
    """Nine pods of four ports on two nodes: web-1 to web-5 with one label, db-1 to db-4 with another."""
    names = [f"web-{n}" for n in range(1, 6)] + [f"db-{n}" for n in range(1, 5)]
    pods = [server(name, f"node-{1 + at % 2}", f"app: {name[:-2]}") for at, name in enumerate(names)]
    manifest = "".join(pods).replace("[{containerPort: 80}]", PORTS) + SERVICE
    with running(NAME, "--nodes", "2", stdin=manifest) as cluster:
        yield cluster


def probe(*arguments: str, status: int = 0) -> list[dict[str, Any]]:
    """The lines of a probe with ``-o json``."""
    result = run("probe", "--name", NAME, "-o", "json", "--timeout", "10", *arguments, timeout=180)
    assert result.returncode == status, result.stdout + result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines and all(list(line) == FIELDS for line in lines)
    return lines


def refused(*arguments: str) -> str:
    result = run("probe", "--name", NAME, *arguments, timeout=180)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    return result.stderr


def test_all_with_all_on_every_declared_port(nine: Cluster) -> None:
    lines = probe()
    assert len(lines) == 9 * 8 * 4
    assert all(line["reached"] for line in lines)
    assert {(line["port"], line["protocol"]) for line in lines} == {
        (80, "TCP"),
        (81, "TCP"),
        (82, "TCP"),
        (5353, "UDP"),
    }
    assert all(line["answered_by"] == line["to"] for line in lines)
    addresses = {f"default/{name}": address_of(nine, name) for name in ("web-1", "db-4")}
    for line in lines:
        assert line["source_seen"] == addresses.get(line["from"], line["source_seen"])
        assert line["ms"] > 0


def test_pods_names_selectors_and_ports(nine: Cluster) -> None:
    item = probe("--from", "web-1", "--to", "default/db-1", "--port", "80/TCP", "--port", "5353/UDP")
    assert [(line["from"], line["to"], line["port"], line["protocol"]) for line in item] == [
        ("default/web-1", "default/db-1", 80, "TCP"), ("default/web-1", "default/db-1", 5353, "UDP"),
    ]  # fmt: skip
    by_label = probe("--from", "default/app=db", "--to", "*/app=web", "--port", "80")
    assert len(by_label) == 4 * 5
    assert {line["from"] for line in by_label} == {f"default/db-{n}" for n in range(1, 5)}
    by_prefix = probe("--from", "db", "--to", "web", "--port", "80")
    assert by_prefix and {line["to"] for line in by_prefix} == {line["to"] for line in by_label}
    two_words = probe("--from", "web-1", "--to", "db-1", "--to", "db-2", "--port", "80")
    assert [line["to"] for line in two_words] == ["default/db-1", "default/db-2"]


def test_services_by_name_and_from_the_host_by_node_port(nine: Cluster) -> None:
    lines = probe("--from", "db-1", "--to", "svc/web")
    assert [(line["to"], line["port"], line["protocol"]) for line in lines] == [
        ("svc/default/web", 8080, "TCP"), ("svc/default/web", 53, "UDP"),
    ]  # fmt: skip
    assert all(line["answered_by"].startswith("default/web-") for line in lines)
    assert {line["source_seen"] for line in lines} == {address_of(nine, "db-1")}
    result = probe("--from", "host", "--to", "svc/default/web")
    assert {(line["from"], line["port"], line["protocol"]) for line in result} == {
        ("host", 30080, "TCP"), ("host", 30053, "UDP"),
    }  # fmt: skip
    assert len(result) == 4 and all(line["reached"] for line in result)
    only = probe("--from", "host", "--to", "svc/default/web", "--port", "8080/TCP")
    assert {line["port"] for line in only} == {30080}


def test_the_host_as_a_target(nine: Cluster) -> None:
    lines = probe("--from", "web-1", "--from", "db-2", "--to", "host")
    assert [(line["from"], line["to"], line["port"], line["reached"]) for line in lines] == [
        ("default/web-1", "host", 6443, True), ("default/db-2", "host", 6443, True),
    ]  # fmt: skip


def test_unexpected_connection_that_fails_is_no_failure(nine: Cluster) -> None:
    lines = probe("--from", "web-1", "--to", "db-1", "--port", "9999/TCP")
    assert [(line["reached"], line["answered_by"], line["source_seen"]) for line in lines] == [(False, "", "")]


def test_expected_connection_that_fails_is_exit_status_1(nine: Cluster) -> None:
    broken = server("broken").replace("image: nginx:1.27", "image: busybox\n      command: [sleep, '600']")
    nine.apply("\n".join(line for line in broken.splitlines() if "readinessProbe" not in line))
    try:
        nine.ready("broken")
        lines = probe("--from", "web-1", "--to", "broken", "--to", "db-1", "--port", "80", status=1)
        assert [line["reached"] for line in lines] == [False, True]
        table = run("probe", "--name", NAME, "--from", "web-1", "--to", "broken")
        assert table.returncode == 1
        row = next(line for line in table.stdout.splitlines() if "default/broken" in line)
        assert row.split()[:5] == ["default/web-1", "default/broken", "80/TCP", "no", "(refused)"]
        assert row.endswith("<- expected to be reached")
        assert table.stdout.splitlines()[-1] == "0 of 1 as expected; 1 NOT as expected"
    finally:
        nine.kubectl("delete", "pod", "broken", "--grace-period=0", "--force")
    eventually(lambda: run("probe", "--name", NAME, "--to", "web-1").returncode == 0)


def test_more_connections_than_open_files(nine: Cluster) -> None:
    """All 288 connections with 128 open files, which is less than one for each."""
    arguments = ["prlimit", "--nofile=128:128", *podwire(), "probe", "--name", NAME, "-o", "json", "--timeout", "10"]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == 9 * 8 * 4 and all(line["reached"] for line in lines)


def test_many_results_are_summed_up_and_can_be_filtered(nine: Cluster) -> None:
    every = run("probe", "--name", NAME, "--timeout", "10")
    assert every.returncode == 0, every.stderr
    assert every.stdout.splitlines()[0].split() == ["FROM", "TO", "PORT", "TRIED", "REACHED", "DENIED", "UNEXPECTED"]
    assert every.stdout.splitlines()[-1].startswith("288 of 288 as expected")
    rows = run("probe", "--name", NAME, "--timeout", "10", "--show", "all").stdout.splitlines()
    assert len([row for row in rows if row.startswith("default/")]) == 288
    assert run("probe", "--name", NAME, "--timeout", "10", "--show", "unexpected").stdout.startswith("288 of 288 as")
    assert "--show" in refused("--show", "nothing")


def test_a_terminal_gets_lines_that_fit(nine: Cluster) -> None:
    arguments = [*podwire(), "probe", "--name", NAME, "--to", "db-1", "--show", "all"]
    shown = subprocess.run(
        ["script", "-qec", f"stty cols 60; env -u COLUMNS {' '.join(arguments)}", "/dev/null"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 60
    assert "default/db-1" in shown.stdout and "SOURCE SEEN" not in shown.stdout


_GUARD = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guard}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: mute}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Egress]
"""


def test_denied_connections_are_expected_and_reported(nine: Cluster) -> None:
    nine.apply(_GUARD)
    try:
        arguments = ("--from", "web-1", "--to", "db-1", "--port", "80", "--port", "81")
        eventually(lambda: [line["reached"] for line in probe(*arguments)] == [True, False])
        table = run("probe", "--name", NAME, *arguments).stdout.splitlines()
        assert table[-1].startswith("2 of 2 as expected, 1 denied by policies")
        assert "dropped at ingress: isolated by default/guard" in table[2]
        named = run("probe", "--name", NAME, "--from", "db-1", "--to", "svc/web", "--port", "8080/TCP")
        assert named.returncode == 0, named.stdout
        assert "cluster DNS: dropped at egress: isolated by default/mute" in named.stdout
        shown = run("up", "--name", NAME, "--probe")
        assert shown.returncode == 0, shown.stdout
        assert "o reached, . denied by policies, X not as expected" in shown.stdout
    finally:
        nine.kubectl("delete", "networkpolicy", "guard", "mute")
    eventually(lambda: run("probe", "--name", NAME, "--from", "web-1", "--to", "db-1").returncode == 0)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("--from", "nobody"), "--from: 'nobody' names no running pod"),
        (("--to", "app=nothing"), "--to: 'app=nothing' names no running pod"),
        (("--to", "svc/nothing"), "--to: 'svc/nothing': there is no Service nothing in namespace default"),
        (("--from", "svc/web"), "--from: 'svc/web': expected a pod or `host`"),
        (
            ("--port", "80/ICMP"),
            "--port: '80/ICMP': expected a port from 1 to 65535",
        ),
        (("--port", "0"), "--port: '0': expected a port"),
        (("--from", "web-1", "--to", "web-1"), "these sources and targets have no port to try"),
        (("--from", "host", "--to", "svc/kubernetes"), "these sources and targets have no port to try"),
        (("--from", "default/app in ("), "--from"),
    ],
)
def test_words_that_say_nothing_are_refused(nine: Cluster, arguments: tuple[str, ...], output: str) -> None:
    assert output in refused(*arguments)


def test_the_reader_may_go_away(nine: Cluster) -> None:
    arguments = " ".join([*podwire(), "probe", "--name", NAME, "-o", "json"])
    result = subprocess.run(
        ["bash", "-c", f"{arguments} | head -1"], capture_output=True, text=True, timeout=180, check=False
    )
    assert list(json.loads(result.stdout)) == FIELDS
    assert "Traceback" not in result.stderr


def test_routes_between_the_nodes_follow_the_results(nine: Cluster) -> None:
    arguments = (
        "probe",
        "--name",
        NAME,
        "--from",
        "default/web-1",
        "--to",
        "default/web-2",
        "--port",
        "80",
        "--routes",
    )
    text = run(*arguments, "--timeout", "10").stdout
    assert "route     node-1 to node-2 by vxlan\n" in text, text
    document = run(*arguments, "--timeout", "10", "-o", "json").stdout.splitlines()[-1]
    route = json.loads(document)["nodeRoute"]
    assert (route["state"], route["backend"], route["tunnel"]["port"]) == ("held", "vxlan", 8472)
    assert route["mtu"] and not route.get("missing")
