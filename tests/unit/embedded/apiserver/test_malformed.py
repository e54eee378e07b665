"""Whatever a body holds, the answer is a Status or an object, never a crash."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from podwire.embedded.apiserver.kinds import BY_KIND

VALUES: tuple[Any, ...] = (
    None, 0, -1, 2**70, 1.5, "", "None", "10.0.0.0/33", True, [], {}, [None], [[]], {"a": None}, "9" * 300, ["a", 1],
)  # fmt: skip
CONTAINERS = [{"name": "c", "image": "nginx", "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "b"}]}]
LABELS = {"app": "x"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": CONTAINERS}}
OBJECTS: tuple[dict[str, Any], ...] = (
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": LABELS}, "spec": TEMPLATE["spec"]},
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"},
     "spec": {"type": "NodePort", "selector": LABELS, "ports": [{"port": 80, "targetPort": "web"}]}},
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"},
     "spec": {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": TEMPLATE}},
    {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"},
     "spec": {"podSelector": {},
              "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 80}]}]}},
    {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "x"}, "addressType": "IPv4",
     "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"port": 80}]},
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"},
     "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
     "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}},
)  # fmt: skip
PATCHES = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/json-patch+json",
)


def paths_of(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if here:
        yield here
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths_of(item, (*here, key))


def spoiled(obj: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    out = copy.deepcopy(obj)
    *above, last = dice.choice(list(paths_of(out)))
    node: Any = out
    for key in above:
        node = node[key]
    if dice.random() < 0.8 or isinstance(node, list):
        node[last] = copy.deepcopy(dice.choice(VALUES))
    else:
        del node[last]
    return out


def test_malformed_bodies_get_an_answer(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        dice = random.Random(42)
        for _ in range(600):
            obj = dice.choice(OBJECTS)
            group, _, version = obj["apiVersion"].rpartition("/")
            kind = BY_KIND[group, version, obj["kind"]]
            root = f"{kind.path}/{'namespaces/default/' if kind.namespaced else ''}{kind.plural}"
            body = spoiled(obj, dice)
            if dice.random() < 0.4:
                status, answer = await api("POST", root, body)
            else:
                subresource = dice.choice(("", "/status")) if kind.has_status else ""
                target = f"{root}/x{subresource}?fieldManager={dice.choice('ab')}&force=true"
                status, answer = await api("PATCH", target, body, content_type=dice.choice(PATCHES))
            assert status < 500, (json.dumps(body), answer)
            assert answer["kind"] in ("Status", kind.kind)

    play(scenario)
