"""``podwire uninstall`` leaves a node as it was before podwire, and what others made alone."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.cni_node import NodeAgent, call_plugin

from podwire.agent.config import AgentConfig, CniSection
from podwire.cni import program
from podwire.errors import ClusterError
from podwire.install import uninstall as removal
from podwire.kernel import netns, sysctl
from podwire.kernel.features import Features
from podwire.kernel.sysctl_record import Recorded
from podwire.local.backendcheck import lack_of
from podwire.runtime.childrecord import read_record

PODWIRE = str(Path(sys.executable).parent / "podwire")
WITH_PROGRAMS = ("udp", "bgp", "wireguard", "ovs")
PARTS = ("cni", "routing", "policy", "proxy")
OTHERS = (
    "ip link add other0 type bridge",
    "ip route add 198.51.100.0/24 via 10.89.0.1 proto static",
    "ip rule add from 198.51.100.9 table 77",
    "nft add table inet other",
    "iptables -t filter -N OTHER",
)
COMMANDS = (
    "ip -o link show", "ip -o address show", "ip route show table all", "ip -6 route show table all", "ip rule show",
    "ip -6 rule show", "nft list ruleset", "iptables-save", "ipset list -n",
)  # fmt: skip


def kernel_state(place: Path) -> dict[str, list[str]]:
    """What ip, nft, iptables and ipset show, without counters, random addresses and times."""
    shown = {command: inside(place, *command.split()) for command in COMMANDS}
    return {command: sorted(filter(_is_stable, text.splitlines())) for command, text in shown.items()}


def differing(place: Path, before: dict[str, list[str]]) -> dict[str, set[str]]:
    """The lines that only one of two states has, by command."""
    now = kernel_state(place)
    return {command: lines for command in before if (lines := set(before[command]) ^ set(now[command]))}


def sysctls(place: Path) -> dict[str, str]:
    """The parameters of a namespace that do not change by themselves."""
    shown = inside(
        place, "sh", "-c", "grep -rs . /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/netfilter || true"
    )
    lines = [line.partition(":") for line in shown.splitlines()]
    return {path: value for path, _, value in lines if not path.endswith(("_count", "/random", "fib_notify_on_flag"))}


def _is_stable(line: str) -> bool:
    """Not a comment of iptables-save, a policy with counters, or what the kernel makes of a link-local address."""
    return not line.startswith(("#", ":")) and not any(prefix in line for prefix in ("fe80::", "ff00::/8"))


def uninstall(machine: Machine, node: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [PODWIRE, "uninstall", "--config", str(machine.root / f"{node}.yaml"), *options]
    place = f"--net={machine.root / node}"
    return subprocess.run(["nsenter", place, *command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("backend", ["vxlan", "udp", "bgp", "bridge", "wireguard", "ovs"])
def test_uninstall_leaves_the_node_as_it_was(machine: Machine, tmp_path: Path, backend: str) -> None:
    if lack := lack_of(backend, Features().lacks):
        pytest.skip(lack)
    conf, programs = tmp_path / "net.d", tmp_path / "bin"
    machine.add_node(1, PARTS, start=False)
    machine.add_node(2, PARTS, start=False)
    for name in ("node-1", "node-2"):
        file = machine.root / f"{name}.yaml"
        cni = {"confDir": str(conf), "binDir": str(programs)} if name == "node-1" else {}
        cni["link"] = "bridge" if backend == "udp" else "routed"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"routing": {"backend": backend}, "cni": cni}))
    place = machine.root / "node-1"
    for command in OTHERS:
        inside(place, *command.split())
    inside(place, "sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv4.conf.all.rp_filter=1")
    before, values = kernel_state(place), sysctls(place)
    machine.start_agent("node-1")
    machine.start_agent("node-2")
    eventually(lambda: machine.ready("node-1") and machine.ready("node-2"))
    machine.pod("node-1", "web")
    eventually(lambda: "10.244.2.0/24" in inside(place, "ip", "route"))
    assert (conf / "10-podwire.conflist").exists() and (programs / "podwire-cni").exists()

    running = uninstall(machine, "node-1")
    assert running.returncode == 1 and "agent.sock answers); stop it first" in running.stderr
    machine.kill("node-1")
    attached = uninstall(machine, "node-1")
    assert attached.returncode == 1 and "drain the node first, or give --with-pods" in attached.stderr
    installed = kernel_state(place)
    dry = uninstall(machine, "node-1", "--dry-run", "--with-pods")
    assert dry.returncode == 0, dry.stderr
    assert f"would remove {conf / '10-podwire.conflist'}" in dry.stdout and "would remove table" in dry.stdout
    assert kernel_state(place) == installed != before, "a dry run removes nothing"
    assert (
        "would remove the value of net/ipv4/ip_forward, which was 0 before" in dry.stdout and sysctls(place) != values
    )

    records = [read_record(file) for file in machine.root.glob("node-1-run/routing/children/*.json")]
    assert any(record is not None and record.running for record in records) == (backend in WITH_PROGRAMS)
    done = uninstall(machine, "node-1", "--with-pods")
    assert done.returncode == 0, done.stderr
    assert not any(record is not None and record.running for record in records)
    with suppress(AssertionError):  # The devices of a program may go a moment after its end.
        eventually(lambda: not differing(place, before), 5)
    assert not differing(place, before)
    assert sysctls(place) == values
    assert not list(conf.iterdir()) and not list(programs.iterdir())
    assert not (machine.root / "node-1-run").exists() and not (machine.root / "node-1-state").exists()
    assert uninstall(machine, "node-1").stdout == "there is nothing to remove\n"


def test_a_sysctl_that_somebody_changed_since_is_left(tmp_path: Path) -> None:
    place = tmp_path / "node"
    netns.create(place)
    try:
        inside(place, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=1")
        values = {
            "net/ipv4/ip_forward": Recorded("0", "1"),
            "net/ipv4/conf/all/rp_filter": Recorded("0", "2"),
            "net/ipv4/conf/gone/rp_filter": Recorded("0", "2"),
        }
        with netns.inside(place):
            assert [str(item) for item in sysctl.restore(values)] == ["sysctl net/ipv4/ip_forward = 0"]
        assert inside(place, "sysctl", "-n", "net.ipv4.ip_forward", "net.ipv4.conf.all.rp_filter") == "0\n1\n"
    finally:
        netns.delete(place)


def test_a_wrong_configuration_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("parts: [cnni]\n")
    done = subprocess.run([PODWIRE, "uninstall", "--config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "parts[0]: 'cnni' is not a part" in done.stderr and "Traceback" not in done.stderr


def test_rules_of_chained_plugins_go_with_their_pods(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    """Pods of another plugin, behind which podwire ran as ``firewall``: chains of others stay, as documented."""
    node = make("10.244.1.0/24")
    place = node.place
    for command in ("iptables -t nat -N CNI-1234", "iptables -t nat -A CNI-1234 -s 10.9.1.2/32 -j ACCEPT"):
        inside(place, *command.split())
    before = inside(place, "iptables-save", "-t", "nat")
    node.pod("a")
    ips = [{"address": "10.9.1.2/24"}]
    previous = {"cniVersion": "1.0.0", "interfaces": [{"name": "br1"}], "ips": ips}
    document = {"cniVersion": "1.0.0", "name": "n", "type": "firewall", "backend": "iptables", "prevResult": previous}
    assert call_plugin(node, str(program.path()), "ADD", "a", document)[0] == 0
    assert "-s 10.9.1.2/32 -j ACCEPT" in inside(place, "iptables-save", "-t", "filter")
    node.stop()
    section = CniSection(database=str(node.database))
    config = AgentConfig(run_dir=str(tmp_path / "run"), state_dir=str(tmp_path / "state"), cni=section)
    lines: list[str] = []
    with netns.inside(place):
        with pytest.raises(ClusterError, match="firewall n/c-a/eth0"):
            removal.run(config, lines.append, dry=False, with_pods=False)
        removal.run(config, lines.append, dry=False, with_pods=True)
    assert "removed what the plugin firewall wrote for n/c-a/eth0" in lines
    filters = inside(place, "iptables-save", "-t", "filter")
    assert "10.9.1.2" not in filters and "CNI-ADMIN" in filters
    assert inside(place, "iptables-save", "-t", "nat").count("CNI-1234") == before.count("CNI-1234")
    node.start()
