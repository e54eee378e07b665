"""The proxy follows topology hints of the controller: zones, nodes, and zones by size."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.driver import Cluster, deployment, eventually, shell_pod

_SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {%s}}
spec: {selector: {app: web}, %s ports: [{port: 80}]}
"""
_ZONE = "topology.kubernetes.io/zone"
_ASK = "import json,urllib.request as u\nprint(json.load(u.urlopen('http://web/', timeout=3))['pod'])"


@contextmanager
def _zones(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """Puts each node into a zone of its own until the end of the block."""
    before = {n["metadata"]["name"]: n["metadata"]["labels"][_ZONE] for n in cluster.get("nodes")["items"]}
    try:
        for node in before:
            cluster.kubectl("label", "--overwrite", "node", node, f"{_ZONE}=zone-{node}")
        yield tuple(before)
    finally:
        for node, zone in before.items():
            cluster.kubectl("label", "--overwrite", "node", node, f"{_ZONE}={zone}")


def _pods(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The node of each pod."""
    result = cluster.get("pods", "-l", "app=web", "-n", namespace)["items"]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in result}


def _answering(cluster: Cluster, namespace: str, times: int = 16) -> set[str]:
    loop = f"import sys\nfor _ in range({times}):\n    exec(sys.argv[1])"
    done = cluster.run(["kubectl", "exec", "client", "-n", namespace, "--", "python3", "-c", loop, _ASK])
    return set(done.stdout.split()) if done.returncode == 0 else set()


def _hints(cluster: Cluster, namespace: str) -> dict[str, list[str]]:
    """The zones in the hints of each pod."""
    slices = cluster.get("endpointslices", "-l", "kubernetes.io/service-name=web", "-n", namespace)["items"]
    return {
        end["targetRef"]["name"]: [zone["name"] for zone in end.get("hints", {}).get("forZones", ())]
        for piece in slices
        for end in piece["endpoints"]
    }


def test_clients_stay_in_their_zone_or_on_their_node(cluster: Cluster, namespace: str) -> None:
    with _zones(cluster):
        cluster.apply(deployment("web", replicas=6), "-n", namespace)
        cluster.apply(shell_pod("client", "sleep 600"), "-n", namespace)
        cluster.rolled_out("web", namespace=namespace)
        cluster.ready("client", namespace=namespace)
        here = cluster.get("pod", "client", "-n", namespace)["spec"]["nodeName"]
        pods = _pods(cluster, namespace)
        near = {pod for pod, node in pods.items() if node == here}
        assert near
        assert near != set(pods)
        for preference in ("PreferSameZone", "PreferSameNode"):
            cluster.apply(_SERVICE % ("", f"trafficDistribution: {preference},"), "-n", namespace)
            eventually(lambda: _hints(cluster, namespace) == {pod: [f"zone-{node}"] for pod, node in pods.items()})
            eventually(lambda: _answering(cluster, namespace) and _answering(cluster, namespace) <= near)
        cluster.apply(_SERVICE % ("", ""), "-n", namespace)
        eventually(lambda: _answering(cluster, namespace) - near)


def test_zones_get_endpoints_by_their_size(cluster: Cluster, namespace: str) -> None:
    with _zones(cluster) as nodes:
        pinned = deployment("web", replicas=4).replace("    spec:\n", f"    spec:\n      nodeName: {nodes[0]}\n", 1)
        assert pinned.count("nodeName") == 1
        cluster.apply(pinned, "-n", namespace)
        cluster.rolled_out("web", namespace=namespace)
        cluster.apply(_SERVICE % ("service.kubernetes.io/topology-mode: Auto", ""), "-n", namespace)

        def shared() -> bool:
            zones = [zone for hint in _hints(cluster, namespace).values() for zone in hint]
            return sorted(zones) == sorted(f"zone-{node}" for node in nodes * 2)

        eventually(shared)
        cluster.kubectl("scale", "deployment/web", "--replicas=1", "-n", namespace)
        eventually(lambda: list(_hints(cluster, namespace).values()) == [[]])
