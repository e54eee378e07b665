"""`podwire state`: what a node's kernel should hold, and how it differs, on a cluster that runs."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.clusters import in_node
from tests.e2e.driver import NOTICED_S, Cluster, deployment, eventually, podwire


def state(cluster: Cluster, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return cluster.run([*podwire(), "state", *arguments, "--name", cluster.name], stdin=stdin)


def equal(cluster: Cluster, *arguments: str) -> bool:
    """Whether the state of a node shows no difference."""
    done = state(cluster, *arguments, "--diff")
    assert done.returncode in (0, 1), done.stderr
    assert (done.returncode == 0) == (done.stdout == ""), done.stdout
    return done.returncode == 0


@contextmanager
def stopped(cluster: Cluster, node: str) -> Iterator[None]:
    """Stops the agent of a node (SIGSTOP) until the end of the block."""
    record = Path("/run/podwire") / cluster.name / "processes" / f"agent-{node}.json"
    process = json.loads(record.read_text())["pid"]
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@pytest.fixture
def web(cluster: Cluster, namespace: str) -> dict[str, str]:
    """A pod behind a Service: name, address, node, Service address, and the node's end of the pod's link."""
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.kubectl("expose", "deployment", "web", "-n", namespace, "--port", "80")
    cluster.rolled_out("web", namespace=namespace)
    (pod,) = cluster.get("pods", "-n", namespace, "-l", "app=web")["items"]
    name, node, address = pod["metadata"]["name"], pod["spec"]["nodeName"], pod["status"]["podIP"]
    service = cluster.get("service", "web", "-n", namespace)["spec"]["clusterIP"]
    route = in_node(cluster, node, "ip", "route", "show", address)
    result = {"name": name, "node": node, "address": address, "service": service, "link": route.split()[2]}
    eventually(lambda: service in state(cluster, node, "--part", "proxy").stdout)
    return result


def test_a_healthy_cluster_has_no_differences(cluster: Cluster, web: dict[str, str]) -> None:
    for place in ("node-1", "node-2", "switch", "host"):
        eventually(lambda place=place: equal(cluster, place))


def test_everything_is_shown_in_the_words_of_ip_and_nft(cluster: Cluster, namespace: str, web: dict[str, str]) -> None:
    text = state(cluster, web["node"]).stdout
    pod = f"{namespace}/{web['name']}"
    for line in (
        f"part fabric protocol 114 alias podwire/fabric/{cluster.name}",
        f"route {web['address']}/32 dev {web['link']} ",
        f"part cni protocol 112 pod {pod} netns /",
        f"address {web['address']}/32 dev eth0 proto 112",
        "part routing protocol 113 alias podwire/routing",
        "sysctl net/ipv4/ip_forward = 1",
        "table inet podwire-masquerade {",
        "table ip podwire-proxy {",
    ):
        assert f"\n{line}" in f"\n{text}", line
    assert f'{web["service"]} . tcp . 80 comment "{namespace}/web' in text
    assert text.endswith("\nend\n")

    part = state(cluster, web["node"], "--part", "proxy", "--part", "fabric").stdout
    assert [line.split()[1] for line in part.splitlines() if line.startswith("part ")] == ["fabric", "proxy"]

    tables = "\n".join(re.findall(r"^table .*?^}$", text, re.MULTILINE | re.DOTALL))
    checked = cluster.run(
        ["nsenter", f"--net=/run/podwire/{cluster.name}/netns/switch", "nft", "-c", "-f", "-"], stdin=tables
    )
    assert checked.returncode == 0, checked.stderr

    rows = [json.loads(line) for line in state(cluster, web["node"], "-o", "json").stdout.splitlines()]
    texts = [row["text"] for row in rows if row["where"] == f"cni {pod}"]
    assert f"address {web['address']}/32 dev eth0 proto 112" in texts
    assert any(row["where"] == "proxy: table ip podwire-proxy" and web["service"] in row["text"] for row in rows)


def test_deleted_objects_show_and_foreign_objects_do_not(
    cluster: Cluster, namespace: str, web: dict[str, str], tmp_path: Path
) -> None:
    node, link, address = web["node"], web["link"], web["address"]
    saved = tmp_path / "saved.txt"

    def settled() -> bool:
        """Whether the node stays the same for a second; pods of earlier tests may still be ending."""
        saved.write_text(state(cluster, node).stdout)
        time.sleep(1)
        return equal(cluster, node, "--saved", str(saved))

    eventually(settled)
    foreign = (
        "ip link add alien0 type bridge",
        "ip address add 203.0.113.1/32 dev lo",
        "ip route add 198.51.100.0/24 dev lo proto static",
        "nft add table inet alien",
    )
    with stopped(cluster, node):  # at work it would put right at once what is taken
        try:
            for command in foreign:
                in_node(cluster, node, *command.split())
            assert equal(cluster, node, "--saved", str(saved))

            in_node(cluster, node, "ip", "route", "del", address)
            in_node(cluster, node, "ip", "link", "set", "podwire-vxlan", "mtu", "1400")
            in_node(cluster, node, "sysctl", "-qw", f"net/ipv4/conf/{link}/rp_filter=0")
            element = f"{{ {web['service']} . tcp . 80 }}"
            in_node(cluster, node, "nft", "delete", "element", "ip", "podwire-proxy", "services", element)
            in_node(cluster, node, "nft", "delete", "table", "inet", "podwire-masquerade")
            done = state(cluster, node, "--diff", "--saved", str(saved))
            assert done.returncode == 1, done.stderr
            lines = done.stdout.splitlines()
            assert lines[:2] == [f"--- {node}: the kernel holds", f"+++ {node}: it should hold"]
            assert any(line.startswith(f"+route {address}/32 dev {link} ") for line in lines)
            assert f"-sysctl net/ipv4/conf/{link}/rp_filter = 0" in lines
            assert any(line.startswith("-link podwire-vxlan mtu 1400") for line in lines)
            at = lines.index("@@ proxy: table ip podwire-proxy, map services @@")
            assert lines[at + 1].startswith(f"+{web['service']} . tcp . 80 ")
            assert "+table inet podwire-masquerade {" in lines
            assert not any("alien" in line or "198.51.100" in line or "203.0.113" in line for line in lines)

            arguments = ("--diff", "--saved", "-", "--part", "cni", "-o", "json")
            only = state(cluster, node, *arguments, stdin=saved.read_text())
            rows = [json.loads(line) for line in only.stdout.splitlines()]
            assert {row["where"] for row in rows} == {"cni"} and {row["sign"] for row in rows} == {"+", "-"}

            # an agent that hangs is said so, by name of its socket, and so is what can be done
            hangs = state(cluster, node, "--diff")
            assert hangs.returncode == 2 and hangs.stdout == ""
            assert f"the agent of {node} does not answer on " in hangs.stderr and "--saved FILE" in hangs.stderr
        finally:
            in_node(cluster, node, "ip", "link", "del", "alien0")
            in_node(cluster, node, "ip", "address", "del", "203.0.113.1/32", "dev", "lo")
            in_node(cluster, node, "ip", "route", "del", "198.51.100.0/24")
            in_node(cluster, node, "nft", "delete", "table", "inet", "alien")
    eventually(lambda: equal(cluster, node))


TAKING = (
    "ip route del {address}",
    "ip neigh del {address} dev {link}",
    "ip link set {link} down",
    "sysctl -qw net.ipv4.conf.{link}.forwarding=0",
    "sysctl -qw net.ipv4.ip_forward=0",
    "ip route flush proto 113",
    "ip link del podwire-vxlan",
    "nft delete element ip podwire-proxy services {{ {service} . tcp . 80 }}",
    "nft delete table ip podwire-proxy",
)


def test_busy_agent_restores_removed_rules(cluster: Cluster, web: dict[str, str]) -> None:
    node = web["node"]
    eventually(lambda: equal(cluster, node))
    for command in TAKING:
        in_node(cluster, node, "sh", "-c", command.format(**web))
        until = time.monotonic() + NOTICED_S
        while not equal(cluster, node):
            assert time.monotonic() < until, f"{command}: {state(cluster, node, '--diff').stdout}"


def test_a_pods_link_that_is_deleted(cluster: Cluster, namespace: str, web: dict[str, str]) -> None:
    node = web["node"]

    def is_shown() -> bool:
        """Deletes the link and compares, while the agent makes both ends again: false if one end is back already."""
        in_node(cluster, node, "ip", "link", "del", web["link"])
        compared = state(cluster, node, "--diff", "--part", "cni")
        assert compared.returncode in (0, 1), compared.stderr
        lines = compared.stdout.splitlines()
        if any(line.startswith(f"+link {web['link']} ") for line in lines) and pod in lines:
            return True
        eventually(lambda: equal(cluster, node, "--part", "cni"))
        return False

    pod = f"@@ cni {namespace}/{web['name']} @@"
    eventually(is_shown)
    cluster.kubectl("delete", "deployment", "web", "-n", namespace)
    eventually(lambda: equal(cluster, node, "--part", "cni"))


def test_mistakes_are_named(cluster: Cluster, tmp_path: Path) -> None:
    for arguments, status, problem in (
        (["node-9", "--diff"], 2, "'node-9' is not in cluster"),
        (["node-9"], 2, "expected one of node-1, node-2, "),
        (["node-1", "--part", "pods"], 2, "'fabric', 'cni', 'routing', 'policy', 'proxy'"),
        (["node-1", "--saved", str(tmp_path / "none")], 2, "No such file"),
    ):
        done = state(cluster, *arguments)
        assert (done.returncode, done.stdout) == (status, ""), done
        assert problem in done.stderr and "Traceback" not in done.stderr
    cut = tmp_path / "cut.txt"
    cut.write_text(state(cluster, "node-1").stdout[:-20])
    done = state(cluster, "node-1", "--diff", "--saved", str(cut))
    assert done.returncode == 2 and "breaks off" in done.stderr
    nowhere = cluster.run([*podwire(), "state", "node-1", "--name", f"{cluster.name}-not"])
    assert nowhere.returncode == 1 and "there is no local cluster" in nowhere.stderr


def test_on_a_real_node_the_agents_configuration_names_its_socket(cluster: Cluster) -> None:
    file = f"/run/podwire/{cluster.name}/nodes/node-1/agent.yaml"
    command = [*podwire(), "state", "node-1", "--config", file, "--diff"]
    place = f"/run/podwire/{cluster.name}/netns/node-1"
    eventually(lambda: cluster.run(["nsenter", f"--net={place}", *command]).returncode == 0)
    wrong = cluster.run([*podwire(), "state", "node-2", "--config", file])
    assert wrong.returncode == 2 and "which is 'node-1'" in wrong.stderr
    shown = cluster.run(
        [
            "curl",
            "-sS",
            "--unix-socket",
            f"/run/podwire/{cluster.name}/nodes/node-1/agent.sock",
            "http://agent/state?part=routing",
        ]
    )
    assert shown.stdout.startswith("part routing ") and shown.stdout.endswith("\nend\n")
