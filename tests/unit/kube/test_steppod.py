"""The pod of a step on a node."""

from podwire.kube.steppod import step_pod


def test_a_step_is_bound_to_its_node_and_runs_once() -> None:
    spec = {"containers": [{"name": "a"}], "restartPolicy": "Always"}
    pod = step_pod("step-a", "node-1", {"app": "x"}, spec)
    assert pod["spec"] == {
        "containers": [{"name": "a"}], "restartPolicy": "Never", "nodeName": "node-1",
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1,
    }  # fmt: skip
    assert pod["metadata"] == {"name": "step-a", "labels": {"app": "x"}} and spec["restartPolicy"] == "Always"
