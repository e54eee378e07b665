"""Pods' packets behind firewalls of other programs, with the real iptables of both kinds and nftables."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, ClusterNode, Pod

from podwire.kernel import netns
from podwire.kernel.firewall_chains import FirewallChains
from podwire.kernel.iptables import Kind, find
from podwire.routing.firewalls import READ_S, FirewallPass

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

DOCKER = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
"""
REJECTS = """\
*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
COMMIT
"""
FIREWALLD = """\
table inet firewalld {
    chain filter_FORWARD {
        type filter hook forward priority filter + 10; policy accept;
        ct state { established, related } accept
        reject with icmpx admin-prohibited
    }
}
"""


class Firewalled:
    """Two nodes with a pod each, and what passes firewalls on the first node."""

    def __init__(self, root: Path) -> None:
        self.cluster = Cluster(root, 2)
        self.cluster.settle()
        self.node: ClusterNode = self.cluster.all[0]
        self.pods = [node.pod(f"p{node.number}") for node in self.cluster.all]
        self.hook = FirewallChains(self.node.place)
        self.reports: list[str] = []
        plan = self.node.router.plan
        assert plan is not None
        self.clock = FakeClock()
        self.subject = FirewallPass(self.hook, self.clock, lambda: plan.sets.pod_networks, self.reports.append)

    def run(self, *command: str, text: str = "") -> str:
        argv = ("nsenter", f"--net={self.node.place}", *command)
        return subprocess.run(argv, input=text, text=True, check=True, stdout=subprocess.PIPE).stdout

    @property
    def titles(self) -> list[str]:
        """The tables in which podwire has rules."""
        return [ruleset.title for ruleset in self.subject.held]

    def passes(self, within_s: float = 20.0) -> bool:
        """Whether a connection from each pod to the other begins within the time."""
        with self.pods[0].running(ECHO_SERVER), self.pods[1].running(ECHO_SERVER):
            return all(_connects(a, b, within_s) for a, b in (self.pods, reversed(self.pods)))

    def drops(self) -> bool:
        """Whether no connection begins, while one that passes takes a millisecond."""
        return not self.passes(0.5)

    def close(self) -> None:
        self.hook.close()
        self.cluster.close()


def _connects(a: Pod, b: Pod, within_s: float) -> bool:
    with netns.inside(a.place):
        item = socket.socket(socket.AF_INET)
    with item:
        item.settimeout(within_s)
        return item.connect_ex((b.address, 7)) == 0


@pytest.fixture
def firewalled(tmp_path: Path) -> Iterator[Firewalled]:
    created = Firewalled(tmp_path)
    yield created
    created.close()


OPENED = {
    DOCKER: "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n",
    REJECTS: "*filter\n-D FORWARD -j REJECT --reject-with icmp-host-prohibited\nCOMMIT\n",
}


def rules_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("-A")]


@pytest.mark.parametrize("kind", ["nft", "legacy"])
@pytest.mark.parametrize("rules", [DOCKER, REJECTS], ids=["docker", "rejects"])
def test_pods_pass_iptables_that_forwards_nothing(firewalled: Firewalled, kind: Kind, rules: str) -> None:
    programs = find(kind)
    assert programs is not None
    save, restore = programs.save["ip"], programs.restore["ip"]
    firewalled.subject.check()
    assert firewalled.titles == [], "nothing to do"
    firewalled.run(restore, text=rules)
    assert firewalled.drops()
    firewalled.subject.check()
    assert firewalled.passes()
    assert firewalled.titles == ["iptables filter"]
    firewalled.run(restore, "--noflush", text="*filter\n-I FORWARD 1 -d 10.244.0.0/16 -j DROP\nCOMMIT\n")
    assert firewalled.drops(), "what another rule drops stays dropped"
    firewalled.run(restore, text=rules)
    firewalled.subject.check()
    assert firewalled.passes(), "a restart of the other program deletes the rules"
    firewalled.run(restore, "--noflush", text=OPENED[rules])
    firewalled.clock.spend(READ_S)
    firewalled.subject.check()
    assert firewalled.titles == [] and firewalled.passes()
    remaining = firewalled.run(save, "-t", "filter")
    assert "PODWIRE" not in remaining
    assert sorted(rules_of(remaining)) == sorted(rule for rule in rules_of(rules) if "REJECT" not in rule)


def test_a_table_of_nftables_that_rejects_is_reported(firewalled: Firewalled) -> None:
    firewalled.run("nft", "-f", "-", text=FIREWALLD)
    assert firewalled.drops()
    firewalled.subject.check()
    assert "--add-source=10.244.0.0/16" in firewalled.reports[-1]
    firewalled.run(
        "nft", "insert", "rule", "inet", "firewalld", "filter_FORWARD", "ip", "saddr", "10.244.0.0/16", "accept"
    )
    firewalled.subject.check()
    assert firewalled.passes() and firewalled.reports[-1] == ""


def test_a_legacy_policy_that_keeps_the_size_is_followed(firewalled: Firewalled) -> None:
    programs = find("legacy")
    assert programs is not None
    firewalled.run(programs.restore["ip"], text="*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n")
    firewalled.subject.check()
    assert firewalled.titles == []
    firewalled.run(programs.restore["ip"], "--noflush", text="*filter\n:FORWARD DROP [0:0]\nCOMMIT\n")
    firewalled.subject.check()
    assert firewalled.titles == ["iptables filter"]
    assert firewalled.passes()
