"""What a failed test leaves does not reach the tests after it."""

from tests.e2e import leftovers
from tests.e2e.driver import Cluster, eventually


def test_what_a_failed_test_left_is_removed(cluster: Cluster) -> None:
    before = leftovers.objects(cluster.api)
    node = "/api/v1/nodes/node-1"
    assert node in before
    for path, name in (("/api/v1/nodes", "left"), ("/api/v1/namespaces/default/configmaps", "left")):
        cluster.api.do("POST", path, {"metadata": {"name": name}})
    cluster.api.do("PATCH", node, {"metadata": {"labels": {"left": "here"}}, "spec": {"unschedulable": True}})
    leftovers.remove(cluster.api, before)
    after = leftovers.objects(cluster.api)
    assert after.keys() == before.keys()
    assert after[node]["metadata"]["labels"] == before[node]["metadata"]["labels"]
    # A controller gives a cordoned node its taint, and takes it away, a little later.
    eventually(lambda: cluster.api.do("GET", node)["spec"] == before[node]["spec"])
