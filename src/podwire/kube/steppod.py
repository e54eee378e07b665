"""The pod of a step that a command runs on a node. Pure."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any


def step_pod(name: str, node: str, labels: Mapping[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    """A pod on a node that is not scheduled, not restarted, and has no rights at the API."""
    fixed = {
        "restartPolicy": "Never",
        "nodeName": node,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    meta = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": deepcopy(spec) | fixed}
