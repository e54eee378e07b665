"""The mode ``userspace`` on a running cluster: switched to and from under load, its processes and the agent killed."""

import os
import signal

import pytest
from tests.e2e.clusters import done, in_node, topology
from tests.e2e.connection_load import Load
from tests.e2e.driver import Cluster, eventually
from tests.e2e.handwritten_endpoints import agent, in_force, load, switch

from podwire.proxy.dataplanes.userspace.client import RelayClient
from podwire.proxy.dataplanes.userspace.messages import State

POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: none}
spec: {podSelector: {matchLabels: {app: none}}}
"""


@pytest.fixture(scope="module")
def cluster(services_cluster: Cluster) -> Cluster:
    switch(services_cluster, "nftables")
    return services_cluster


def relay(cluster: Cluster) -> State | None:
    """The relay of node-1."""
    link = RelayClient(str(topology(cluster).netns("node-1")))
    try:
        return link.state()
    finally:
        link.close()


def succeeded(cluster: Cluster, before: State, which: str) -> bool:
    """Whether the relay has all its processes again: when the keeper ends, the worker takes its place."""
    now = relay(cluster)
    return now is not None and now.pid != before.pid and (which == "pid" or now.keeper != before.keeper)


def test_mode_switches_and_killed_relays_lose_no_connection(cluster: Cluster) -> None:
    spec = cluster.get("service", "web")["spec"]
    node = cluster.get("node", "node-1")["status"]["addresses"][0]["address"]
    with load(cluster, spec["clusterIP"]) as before:
        switch(cluster, "userspace")
        tables = in_node(cluster, "node-1", "nft", "list", "tables")
        assert "podwire-userspace" in tables
        assert "podwire-proxy" not in tables
        assert done("state", "--name", cluster.name, "node-1", "--part", "proxy", "--diff") == ""
        before.go_on()
        with load(cluster, spec["clusterIP"]) as inside, Load(None, node, spec["ports"][0]["nodePort"]) as outside:
            for which in ("pid", "keeper"):
                inside.go_on()
                state = relay(cluster)
                assert state is not None
                assert state.connections > 10
                os.kill(getattr(state, which), signal.SIGKILL)
                eventually(lambda state=state, which=which: succeeded(cluster, state, which))
            serving = relay(cluster)
            assert serving is not None
            killed = agent(cluster)
            os.kill(killed, signal.SIGKILL)
            eventually(lambda: agent(cluster) != killed and in_force(cluster))
            again = relay(cluster)
            assert again is not None
            assert (again.pid, again.keeper, again.ports) == (serving.pid, serving.keeper, serving.ports)
            outside.go_on()
            switch(cluster, "nftables")
            for flow in (inside, outside):
                flow.go_on()
    assert (before.problems, inside.problems, outside.problems) == ([], [], [])
    assert len(inside.seen) == len(outside.seen) == 3
    assert "podwire-userspace" not in in_node(cluster, "node-1", "nft", "list", "tables")
    eventually(lambda: relay(cluster) is None)


def test_status_warns_of_policies_that_cannot_see_clients(cluster: Cluster) -> None:
    def warned() -> bool:
        return "proxy.mode userspace: 1 policy sees the node" in done("status", "--name", cluster.name)

    switch(cluster, "userspace")
    assert not warned()
    cluster.kubectl("apply", "-f", "-", stdin=POLICY)
    eventually(warned)
    switch(cluster, "nftables")
    eventually(lambda: not warned())
