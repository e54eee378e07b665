"""Service modes under load: switched and switched back, and flushed by another program in mode ``iptables``."""

import pytest
from tests.e2e.clusters import in_node
from tests.e2e.connection_load import Load
from tests.e2e.driver import NOTICED_S, Cluster, eventually
from tests.e2e.handwritten_endpoints import answered, in_force, load, switch


@pytest.fixture(scope="module")
def cluster(services_cluster: Cluster) -> Cluster:
    switch(services_cluster, "nftables")
    return services_cluster


def test_a_switch_refuses_no_connection_and_breaks_none(cluster: Cluster) -> None:
    spec = cluster.get("service", "web")["spec"]
    node = cluster.get("node", "node-1")["status"]["addresses"][0]["address"]
    with load(cluster, spec["clusterIP"]) as inside, Load(None, node, spec["ports"][0]["nodePort"]) as outside:
        for mode in ("iptables", "nftables") * 2:
            switch(cluster, mode)
            assert ("KUBE-SERVICES" in in_node(cluster, "node-1", "iptables-save")) == (mode == "iptables")
            for flow in (inside, outside):
                flow.go_on()
    assert (inside.problems, outside.problems) == ([], [])
    assert (inside.repeated, outside.repeated) == (0, 0)
    assert len(inside.seen) == len(outside.seen) == 3


def test_flushed_chains_are_restored_at_once(cluster: Cluster) -> None:
    switch(cluster, "iptables")
    address = cluster.get("service", "web")["spec"]["clusterIP"]
    with load(cluster, address) as flow:
        for table in ("nat", "filter") * 3:
            in_node(cluster, "node-1", "iptables", "-t", table, "-F")
            # What is refused is tried again at once, so how many are says how busy the machine is.
            eventually(lambda: answered(cluster, address), within=NOTICED_S)
            flow.go_on(within=120)
        eventually(lambda: in_force(cluster))
        flow.come_to_an_end()
        failed = len(flow.problems)
        flow.go_on(200)
        assert len(flow.problems) == failed
    assert [problem for problem in flow.problems if "established" in problem] == []
