"""The example applications start completely with the documented commands."""

from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, eventually

_EXAMPLES = Path(__file__).parents[2] / "examples"


def _unready(cluster: Cluster, namespaces: set[str]) -> list[str]:
    result = []
    for kind, want, have in (
        ("deployments", lambda o: o["spec"]["replicas"], "availableReplicas"),
        ("statefulsets", lambda o: o["spec"]["replicas"], "readyReplicas"),
        ("daemonsets", lambda o: max(1, o["status"].get("desiredNumberScheduled", 0)), "numberReady"),
        ("jobs", lambda _: 1, "succeeded"),
    ):
        for item in cluster.get(kind, "-A")["items"]:
            meta = item["metadata"]
            if meta["namespace"] in namespaces and item.get("status", {}).get(have, 0) < want(item):
                result.append(f"{kind}/{meta['namespace']}/{meta['name']}")
    return result


@pytest.mark.parametrize(
    ("name", "namespaces"),
    [("shop", {"shop", "shop-data", "shop-ops"}), ("boutique", {"boutique"}), ("vote", {"vote"})],
)
def test_an_example_comes_up(cluster: Cluster, name: str, namespaces: set[str]) -> None:
    files = [str(path) for path in sorted((_EXAMPLES / name).glob("*.yaml"))]
    arguments = [word for path in files for word in ("-f", path)]
    try:
        cluster.kubectl("apply", *arguments)
        eventually(lambda: not _unready(cluster, namespaces))
        again = cluster.kubectl("apply", *arguments).splitlines()
        # A client-side apply always sends a Secret's stringData (stored as data) and a budget's selector (replaced).
        changed = [line for line in again if not line.endswith("unchanged")]
        assert all(line.startswith(("secret/", "poddisruptionbudget.")) for line in changed), changed
        waiting = cluster.kubectl("get", "pods", "-A", "--field-selector=status.phase=Pending", "-o", "name")
        assert waiting == ""
    finally:
        cluster.kubectl("delete", "namespace", *sorted(namespaces), "--timeout=90s")
