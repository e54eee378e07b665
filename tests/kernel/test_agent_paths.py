"""Agents against an API server: a path that is too narrow, and a firewall, are on the Node."""

import json
from pathlib import Path
from typing import Any

from tests.kernel.agent_cluster import Machine, eventually, inside

from podwire.agent.pathchecks import CONDITION
from podwire.cni.wiring import HOST_MAC
from podwire.kube.resources import EVENTS, NODES
from podwire.routing.linkfiles import link_files
from podwire.state.iptables import Ruleset

FIREWALL = "table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy drop; }; }"


def condition(machine: Machine, node: str) -> dict[str, Any]:
    result = machine.api("get", NODES, node)["status"].get("conditions", ())
    return next((item for item in result if item["type"] == CONDITION), {})


def reasons(machine: Machine) -> set[str]:
    """The reasons of all Events."""
    return {item["reason"] for item in machine.api("list", EVENTS).items}


def test_narrow_paths_and_firewalls_are_on_the_node(machine: Machine, tmp_path: Path) -> None:
    for number in (1, 2):
        machine.add_node(number, ("routing",), start=False)
    inside(machine.fabric, "ip", "link", "set", "n2", "mtu", "1494")  # and 4 bytes for a tag
    (tmp_path / "firewall.nft").write_text(FIREWALL)
    inside(machine.root / "node-2", "nft", "-f", str(tmp_path / "firewall.nft"))
    inside(machine.root / "node-1", "iptables", "-P", "FORWARD", "DROP")
    etc = tmp_path / "etc"
    (etc / "NetworkManager").mkdir(parents=True)
    (etc / "systemd").mkdir()
    file = machine.root / "node-1.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"linkFiles": {"enabled": True, "etc": str(etc)}}))
    for number in (1, 2):
        machine.start_agent(f"node-{number}")
    for name, peer in (("node-1", "node-2"), ("node-2", "node-1")):
        result = eventually(lambda name=name: condition(machine, name), 60)
        assert (result["status"], result["reason"]) == ("True", "PathTooNarrow")
        assert f"{peer} (IPv4, " in result["message"]
        assert "packets of 1448 bytes pass, 1450 are expected" in result["message"]
        fallback = machine.api("get", NODES, name)["metadata"]["annotations"]["podwire.io/fallback"]
        assert result["message"] in fallback
        assert ("--add-source=10.244.0.0/16" in fallback) == (name == "node-2")
    eventually(lambda: {"MTUMismatch", "ForwardBlocked"} <= reasons(machine))
    rulesets = [ruleset for share in machine.state("node-1") for ruleset in share.values(Ruleset)]
    assert [list(ruleset.chains) for ruleset in rulesets] == [["PODWIRE-FORWARD"]]
    eventually(lambda: machine.drift("node-1") == [])
    written = {str(path.relative_to(etc)): path.read_text() for path in etc.rglob("*") if path.is_file()}
    assert written == {file.path: file.text for file in link_files(HOST_MAC)}
    close_input(machine, "node-1")


def close_input(machine: Machine, name: str) -> None:
    """A firewall that drops packets of tunnels is on the Node until it has a rule for them."""

    def fallback() -> str:
        annotations: dict[str, str] = machine.api("get", NODES, name)["metadata"]["annotations"]
        return annotations["podwire.io/fallback"]

    for rule in ("-A INPUT -p tcp -j ACCEPT", "-A INPUT -p icmp -j ACCEPT", "-P INPUT DROP"):
        inside(machine.root / name, "iptables", *rule.split())
    eventually(lambda: "drops packets of other nodes to udp port 8472, which routing.backend vxlan needs" in fallback())
    eventually(lambda: "InputBlocked" in reasons(machine))
    inside(machine.root / name, "iptables", "-A", "INPUT", "-p", "udp", "--dport", "8472", "-j", "ACCEPT")
    eventually(lambda: "port 8472" not in fallback())
