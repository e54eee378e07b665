"""The routing backend bgp in a running cluster: objects of projectcalico.org/v3 that users write with kubectl."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.clusters import done, own_name, running, topology
from tests.e2e.clusters import run as podwire
from tests.e2e.driver import Cluster, eventually
from tests.kernel.bird_nodes import ask

from podwire.kernel.features import Features

PEERS = "bgppeers.projectcalico.org"
"""The short name stands for the kind of MetalLB."""
NO_BIRD = Features().lacks("bird")

pytestmark = pytest.mark.skipif(bool(NO_BIRD), reason=NO_BIRD)

GOOD = """
apiVersion: v1
kind: Secret
metadata: {name: bgp-secrets, namespace: kube-system}
stringData: {router: s3cret}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: router}
spec:
  node: node-1
  peerIP: 192.0.2.1
  asNumber: 64600
  password: {secretKeyRef: {name: bgp-secrets, key: router}}
  filters: [no-default]
---
apiVersion: projectcalico.org/v3
kind: BGPFilter
metadata: {name: no-default}
spec:
  importV4: [{action: Reject, cidr: 0.0.0.0/0, matchOperator: Equal}]
"""


@pytest.fixture(scope="module")
def bgp() -> Iterator[Cluster]:
    """Two nodes that route by BGP."""
    with running(own_name("bgp"), "--nodes", "2", "--backend", "bgp") as cluster:
        yield cluster


def run_dir(cluster: Cluster, node: str) -> Path:
    return Path(topology(cluster).run, "nodes", node, "routing")


def test_objects_configure_bird_and_bad_ones_change_nothing(bgp: Cluster) -> None:
    conf, where = run_dir(bgp, "node-1") / "bird.conf", run_dir(bgp, "node-1") / "bird.ctl"
    eventually(lambda: "Established" in ask(where, "show", "protocols"))
    bgp.kubectl("apply", "-f", "-", stdin=GOOD)
    eventually(lambda: "neighbor 192.0.2.1 port 179 as 64600;" in conf.read_text())
    assert "  if net = 0.0.0.0/0 then reject;\n" in conf.read_text() and 'password "s3cret";' in conf.read_text()
    eventually(lambda: "peer_192_0_2_1" in ask(where, "show", "protocols"))
    assert "192.0.2.1" not in (run_dir(bgp, "node-2") / "bird.conf").read_text()
    refusal = bgp.refused("patch", PEERS, "router", "--type", "merge", "-p", '{"spec": {"asNumber": 0}}')
    assert "spec.asNumber" in refusal
    bgp.kubectl("patch", PEERS, "router", "--type", "merge", "-p", '{"spec": {"filters": ["missing"]}}')
    eventually(lambda: "there is no valid BGPFilter missing" in bgp.kubectl("describe", PEERS, "router"))
    assert "its last good form stays in force" in bgp.kubectl("describe", PEERS, "router")
    assert "  if net = 0.0.0.0/0 then reject;\n" in conf.read_text()
    bgp.kubectl("delete", PEERS, "router")
    eventually(lambda: "192.0.2.1" not in conf.read_text() and "peer_" not in ask(where, "show", "protocols"))


def test_commands_show_sessions_their_routes_and_errors(bgp: Cluster) -> None:
    both = "bgp: 1 of 1 sessions established"
    eventually(lambda: done("status", "--name", bgp.name).count(both) == 2)
    rows = [line.split() for line in done("bgp", "--name", bgp.name).splitlines()[1:]]
    assert [row[:3] + row[5:6] for row in rows] == [
        ["node-1", "Node", "node-2", "Established"],
        ["node-2", "Node", "node-1", "Established"],
    ]
    stranger = {"node": "node-2", "peerIP": "10.0.0.1", "asNumber": 65000, "ttlSecurity": 1}
    body = {"apiVersion": "projectcalico.org/v3", "kind": "BGPPeer", "metadata": {"name": "away"}, "spec": stranger}
    bgp.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    try:
        text = "node-2: bgp: 1 of 2 sessions established; BGPPeer away 10.0.0.1 AS 65000 is not"
        eventually(lambda: text in done("status", "--name", bgp.name))
        shown = podwire("bgp", "node-2", "--name", bgp.name, "-o", "json")
        assert shown.returncode == 1, "a session is not established"
        states = {item["session"]["peer"]: item["session"] for item in json.loads(shown.stdout)}
        assert states["Node node-1"]["received"] == 1 and states["Node node-1"]["sent"] == 1
        assert states["BGPPeer away"]["asNumber"] == 65000 and states["BGPPeer away"]["state"] != "Established"
    finally:
        bgp.kubectl("delete", PEERS, "away")
    wrong = podwire("bgp", "node-9", "--name", bgp.name)
    assert wrong.returncode == 2 and "'node-9' is not a node of" in wrong.stderr
