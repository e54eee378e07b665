"""podwire as the chained plugin ``firewall``, beside the reference plugin."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from tests.kernel.cni_node import NodeAgent, call_plugin, inside, ping
from tests.kernel.reference_plugins import PLUGINS

from podwire.cni import program
from podwire.cni.chain.firewallrules import plain

needs_plugins = pytest.mark.skipif(
    not shutil.which("firewall", path=PLUGINS), reason="needs containernetworking-plugins"
)
OWN, REFERENCE = str(program.path()), f"{PLUGINS}/firewall"
DUAL = ("10.9.1.2/24", "fd00:9::2/64")
CONFS: dict[str, dict[str, Any]] = {
    "default": {},
    "iptables": {"backend": "iptables", "ingressPolicy": "open"},
    "admin chain": {"backend": "iptables", "iptablesAdminChainName": "OPERATORS"},
    "same bridge": {"backend": "iptables", "ingressPolicy": "same-bridge"},
}


def call(node: NodeAgent, plugin: str, command: str, pod: str = "a", **conf: Any) -> tuple[int, dict[str, Any]]:
    document = {"cniVersion": "1.0.0", "name": "filtered", "type": "firewall", **conf}
    return call_plugin(node, plugin, command, pod, document)


def run(node: NodeAgent, line: str) -> str:
    done = inside(node.place, *line.split())
    assert done.returncode == 0, done.stderr
    return done.stdout


def result(node: NodeAgent, pod: str = "a", addresses: tuple[str, ...] = DUAL, bridge: str = "br1") -> dict[str, Any]:
    """The result of the plugin that wired a pod to a bridge."""
    devices = [{"name": bridge}, {"name": f"veth-{pod}"}, {"name": "eth0", "sandbox": str(node.pods / pod)}]
    ips = [{"address": address, "interface": 2} for address in addresses]
    return {"cniVersion": "1.0.0", "interfaces": devices, "ips": ips}


def rules(node: NodeAgent) -> list[list[str]]:
    """The rules of both families in their order, without comments and counters."""
    shown = []
    for name in ("iptables-save", "ip6tables-save"):
        lines = run(node, f"{name} -t filter").splitlines()
        chains = sorted(line.split()[0] for line in lines if line.startswith(":"))
        shown.append(chains + [plain(line) for line in lines if line.startswith("-A")])
    return shown


def prepare(node: NodeAgent) -> None:
    """A bridge, and rules of the administrator."""
    node.pod("a")
    run(node, "ip link add br1 type bridge")
    for name in ("iptables", "ip6tables"):
        run(node, f"{name} -A FORWARD -i foreign -j DROP")


@needs_plugins
@pytest.mark.parametrize("conf", CONFS.values(), ids=CONFS)
def test_rules_are_those_of_the_reference_plugin(make: Callable[..., NodeAgent], conf: dict[str, Any]) -> None:
    node = make("10.244.1.0/24")
    prepare(node)
    outcomes = []
    for plugin in (OWN, REFERENCE):
        steps: list[Any] = []
        for command in ("ADD", "CHECK", "ADD", "DEL", "DEL"):
            steps += [call(node, plugin, command, **conf, prevResult=result(node)), rules(node)]
        outcomes.append(steps)
        for name in ("iptables", "ip6tables"):
            run(node, f"{name} -F")
            run(node, f"{name} -X")
            run(node, f"{name} -A FORWARD -i foreign -j DROP")
    assert outcomes[0] == outcomes[1]
    assert "-A CNI-FORWARD -s 10.9.1.2/32 -j ACCEPT" in outcomes[0][1][0]


@needs_plugins
@pytest.mark.parametrize(("first", "second"), [(OWN, REFERENCE), (REFERENCE, OWN)])
def test_one_program_deletes_pods_of_the_other(make: Callable[..., NodeAgent], first: str, second: str) -> None:
    node = make("10.244.1.0/24")
    prepare(node)
    conf: dict[str, Any] = {"ingressPolicy": "same-bridge", "prevResult": result(node)}
    assert call(node, first, "ADD", **conf)[0] == 0
    added = rules(node)
    assert call(node, second, "CHECK", **conf)[0] == 0
    assert call(node, OWN, "ADD", **conf)[0] == 0
    assert rules(node) == added, "rules with other comments are not repeated"
    assert call(node, second, "DEL", **conf)[0] == 0
    assert not any("10.9.1.2" in rule for rule in rules(node)[0])


def test_backend_nftables_writes_to_nf_tables(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    node.pod("a")
    run(node, "iptables-legacy -A FORWARD -i foreign -j DROP")
    legacy = run(node, "iptables-legacy-save -t filter").splitlines()
    conf: dict[str, Any] = {"backend": "nftables", "prevResult": result(node)}
    assert call(node, OWN, "ADD", **conf)[0] == 0
    assert "ip saddr 10.9.1.2" in run(node, "nft list chain ip filter CNI-FORWARD")
    assert "ip6 saddr fd00:9::2" in run(node, "nft list chain ip6 filter CNI-FORWARD")
    assert call(node, OWN, "CHECK", **conf) == (0, {})
    now = run(node, "iptables-legacy-save -t filter").splitlines()
    assert [line for line in now if line.startswith("-A")] == [line for line in legacy if line.startswith("-A")]
    assert call(node, OWN, "DEL", backend="nftables") == (0, {})
    assert "10.9.1.2" not in run(node, "nft list chain ip filter CNI-FORWARD")


def test_legacy_iptables_is_used_where_it_holds_rules(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    node.pod("a")
    run(node, "iptables-legacy -A FORWARD -i foreign -j DROP")
    assert call(node, OWN, "ADD", prevResult=result(node))[0] == 0
    assert "-A CNI-FORWARD -s 10.9.1.2/32 -j ACCEPT" in run(node, "iptables-legacy-save -t filter")
    assert call(node, OWN, "DEL") == (0, {})
    assert "10.9.1.2" not in run(node, "iptables-legacy-save -t filter")


def test_check_names_rules_that_are_gone(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    prepare(node)
    conf: dict[str, Any] = {"ingressPolicy": "isolated", "prevResult": result(node)}
    assert call(node, OWN, "ADD", **conf)[0] == 0
    assert call(node, OWN, "CHECK", **conf) == (0, {})
    for rule in ("CNI-FORWARD -s 10.9.1.2/32 -j ACCEPT", "CNI-ISOLATION-STAGE-2 1", "FORWARD 1"):
        run(node, f"iptables -D {rule}")
        status, answer = call(node, OWN, "CHECK", **conf)
        assert (status, answer["code"]) == (1, 100)
    assert "-s 10.9.1.2/32 -j ACCEPT" in answer["details"]


def test_late_del_and_gc_leave_the_later_pod(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    prepare(node)
    node.pod("b")
    for pod in ("a", "b"):
        assert call(node, OWN, "ADD", pod, prevResult=result(node, pod))[0] == 0
    held = rules(node)
    assert call(node, OWN, "DEL", "a", prevResult=result(node)) == (0, {})
    assert call(node, OWN, "DEL", "a", prevResult=result(node)) == (0, {})
    node.stop()
    node.start()
    listed: dict[str, Any] = {
        "cniVersion": "1.1.0",
        "cni.dev/valid-attachments": [{"containerID": "c-b", "ifname": "eth0"}],
    }
    assert call(node, OWN, "GC", **listed) == (0, {})
    assert rules(node) == held
    assert call(node, OWN, "GC", **listed | {"cni.dev/valid-attachments": []}) == (0, {})
    assert not any("10.9.1.2" in rule for rule in rules(node)[0])


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"backend": "ufw"}, "backend: ufw"),
        ({"ingressPolicy": "closed"}, "ingressPolicy: 'closed'"),
        ({"iptablesAdminChainName": "a b"}, "iptablesAdminChainName: 'a b'"),
        ({"ingressPolicy": "same-bridge", "prevResult": {"interfaces": [{"name": "lo"}]}}, "ingressPolicy same-bridge"),
        ({"prevResult": None}, "prevResult"),
    ],
)
def test_wrong_settings_are_named(make: Callable[..., NodeAgent], conf: dict[str, Any], expected: str) -> None:
    node = make("10.244.1.0/24")
    prepare(node)
    untouched = rules(node)
    status, answer = call(node, OWN, "ADD", **{"prevResult": result(node)} | conf)
    assert status == 1
    assert expected in answer["msg"]
    assert rules(node) == untouched


def bridged(node: NodeAgent, pod: str, bridge: str, address: str) -> dict[str, Any]:
    """Wires a pod to a bridge that is there; returns the result."""
    place, gateway = node.pod(pod), f"{address.rpartition('.')[0]}.1"
    run(node, f"ip link add veth-{pod} master {bridge} type veth peer name eth0 netns {place}")
    run(node, f"ip link set veth-{pod} up")
    for line in (f"address add {address}/24 dev eth0", "link set eth0 up", f"route add default via {gateway}"):
        assert inside(place, "ip", *line.split()).returncode == 0
    assert any(ping(node.place, address) for _ in range(100)), "the devices forward"
    return result(node, pod, (f"{address}/24",), bridge)


@pytest.fixture
def bridges(make: Callable[..., NodeAgent]) -> NodeAgent:
    """A node with two bridges that forwards nothing."""
    node = make("10.244.1.0/24")
    for line in ("net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1"):
        run(node, f"sysctl -qw {line}")
    for number in (1, 2):
        run(node, f"ip link add br{number} type bridge")
        run(node, f"ip address add 10.9.{number}.1/24 dev br{number}")
        run(node, f"ip link set br{number} up")
    run(node, "iptables -P FORWARD DROP")
    return node


def test_pods_reach_others_although_the_node_drops(bridges: NodeAgent) -> None:
    node = bridges
    previous = bridged(node, "a", "br1", "10.9.1.2")
    bridged(node, "c", "br2", "10.9.2.2")
    assert not ping(node.pods / "a", "10.9.2.2")
    assert call(node, OWN, "ADD", "a", prevResult=previous)[0] == 0
    assert ping(node.pods / "a", "10.9.2.2", patience_s=10)
    assert not ping(node.pods / "c", "10.9.1.2"), "only answers reach the pod"
    run(node, "iptables -A CNI-ADMIN -d 10.9.2.2 -j DROP")
    assert not ping(node.pods / "a", "10.9.2.2"), "the administrator's rules come first"
    run(node, "iptables -F CNI-ADMIN")
    assert ping(node.pods / "a", "10.9.2.2", patience_s=10)
    assert call(node, OWN, "DEL", "a") == (0, {})
    assert not ping(node.pods / "a", "10.9.2.2")


@pytest.mark.parametrize("policy", ["same-bridge", "isolated"])
def test_ingress_policies_keep_pods_apart(bridges: NodeAgent, policy: str) -> None:
    node = bridges
    pods = {"a": ("br1", "10.9.1.2"), "b": ("br1", "10.9.1.3"), "c": ("br2", "10.9.2.2")}
    previous = {pod: bridged(node, pod, *where) for pod, where in pods.items()}
    for pod in pods:
        assert call(node, OWN, "ADD", pod, prevResult=previous[pod])[0] == 0
    assert ping(node.pods / "a", "10.9.2.2", patience_s=10)
    assert ping(node.pods / "a", "10.9.1.3", patience_s=10)
    for pod in pods:
        assert call(node, OWN, "ADD", pod, ingressPolicy=policy, prevResult=previous[pod])[0] == 0
    assert not ping(node.pods / "a", "10.9.2.2"), "another bridge"
    assert ping(node.pods / "a", "10.9.1.3", patience_s=0.5 if policy == "isolated" else 10) == (policy != "isolated")
    assert ping(node.place, "10.9.1.2", patience_s=10), "the node reaches its pods"
