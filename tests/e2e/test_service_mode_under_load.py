"""The mode of Services is switched there and back under load: inside a pod, and by node port from outside."""

import json
from contextlib import ExitStack

from byhand import in_force, load, manifest
from clusters import in_node, own_name, running
from driver import Cluster, eventually
from load import Load


def switch(cluster: Cluster, mode: str) -> None:
    """Asks for a mode and waits until both nodes are in it."""
    patch = json.dumps({"data": {"proxy.mode": mode}})
    cluster.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "-p", patch)

    def modes() -> set[str]:
        return {node["metadata"]["annotations"].get("podwire.io/proxy", "") for node in cluster.get("nodes")["items"]}

    eventually(lambda: modes() == {mode})
    eventually(lambda: in_force(cluster))


def test_no_connection_is_refused_and_none_breaks() -> None:
    with running(own_name("modeload"), "--nodes", "2", stdin=manifest()) as cluster, ExitStack() as stack:
        spec = cluster.get("service", "web")["spec"]
        node = cluster.get("node", "node-1")["status"]["addresses"][0]["address"]
        inside = stack.enter_context(load(cluster, spec["clusterIP"]))
        outside = stack.enter_context(Load(None, node, spec["ports"][0]["nodePort"]))
        for mode in ("iptables", "nftables") * 2:
            switch(cluster, mode)
            assert ("KUBE-SERVICES" in in_node(cluster, "node-1", "iptables-save")) == (mode == "iptables")
            for flow in (inside, outside):
                flow.go_on()
        stack.close()
        assert (inside.problems, outside.problems) == ([], [])
        assert (inside.late, outside.late) == (0, 0)
        assert len(inside.seen) == len(outside.seen) == 3
