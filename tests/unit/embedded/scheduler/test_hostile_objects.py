"""Objects behind the API's validation: no Pod or Node ends the scheduling of the other pods."""

from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import NODE, POD, hostile

from podwire.embedded.scheduler.decision import choose
from podwire.embedded.scheduler.usage import SchedulerState, pod_demand
from podwire.kube.decode import decode_object
from podwire.model.node import Node
from podwire.model.pod import Pod

_TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
_EXPRESSION = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["5"]}]}
_REQUIRED, _PREFERRED = (
    f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred")
)  # fmt: skip
CONSTRAINED: dict[str, Any] = POD | {
    "spec": {
        "nodeSelector": {"a": "b"},
        "priority": 5,
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}],
        "topologySpreadConstraints": [_TERM | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
        "affinity": {
            "nodeAffinity": {
                _REQUIRED: {"nodeSelectorTerms": [_EXPRESSION]},
                _PREFERRED: [{"weight": 1, "preference": _EXPRESSION}],
            },
            "podAffinity": {_REQUIRED: [_TERM]},
            "podAntiAffinity": {_PREFERRED: [{"weight": 3, "podAffinityTerm": _TERM}]},
        },
        "containers": [
            {
                "name": "c",
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}},
                "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP", "hostIP": "10.0.0.1"}],
            }
        ],
    }
}
KINDS: dict[str, tuple[dict[str, Any], type[Any]]] = {"pod": (CONSTRAINED, Pod), "node": (NODE, Node)}


@pytest.mark.parametrize("changed", KINDS)
def test_pods_are_placed_whatever_one_object_has(changed: str) -> None:
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    other = pod_demand(decode_object(msgspec.json.encode(POD), Pod))
    for label, item in hostile(*KINDS[changed]):
        now = objects | {changed: item}
        try:
            state = SchedulerState()
            state.put_node(now["node"])
            demand = pod_demand(now["pod"])
            choose(demand, state)
            state.put_pod(demand, "n1")
            assert choose(other, state)
        except Exception as failure:
            raise AssertionError(label) from failure
