from collections.abc import Iterable
from typing import Any

import pytest

from podwire.embedded.apiserver.authorization.nodes import NodeAuthorizer, node_name, references
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import UserInfo

POD: dict[str, Any] = {
    "metadata": {"name": "web-0", "namespace": "shop"},
    "spec": {
        "nodeName": "node-1",
        "serviceAccountName": "web",
        "imagePullSecrets": [{"name": "pull"}],
        "containers": [
            {
                "name": "c",
                "envFrom": [{"configMapRef": {"name": "from-map"}}, {"secretRef": {"name": "from-secret"}}],
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "key-map", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "key-secret", "key": "k"}}},
                ],
            }
        ],
        "volumes": [
            {"name": "a", "configMap": {"name": "volume-map"}},
            {"name": "b", "secret": {"secretName": "volume-secret"}},
            {"name": "c", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}},
        ],
    },
}


class OnePod:
    """A cluster with the pod above, and a volume of its claim."""

    def pods(self, node: str, namespace: str, mentioning: str) -> Iterable[dict[str, Any]]:
        return [POD] if (node, namespace) == ("node-1", "shop") else []

    def is_on(self, node: str, namespace: str, pod: str) -> bool:
        return (node, namespace, pod) == ("node-1", "shop", "web-0")

    def claim_of(self, volume: str) -> tuple[str, str]:
        return ("shop", "claim") if volume == "volume" else ("", "")


def ask(text: str, **more: Any) -> RequestAttributes:
    """``verb resource[.group] [namespace/name]``."""
    verb, resource, place = (*text.split(), "")[:3]
    target, _, group = resource.partition(".")
    plural, _, subresource = target.partition("/")
    namespace, _, name = place.partition("/")
    return RequestAttributes(verb, group, "v1", plural, subresource, namespace, name, **more)


LEASE = "leases.coordination.k8s.io"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((f"get configmaps shop/{name}", None) for name in ("from-map", "key-map", "volume-map")),
        *((f"watch secrets shop/{name}", None) for name in ("pull", "from-secret", "key-secret", "projected")),
        ("get secrets shop/volume-secret", None),
        ("get secrets shop/other", "no relationship found between node 'node-1' and this object"),
        ("get configmaps other/from-map", "no relationship found between node 'node-1' and this object"),
        ("list secrets", "can only read namespaced object of this type"),
        ("list secrets shop/", "No Object name found"),
        ("update configmaps shop/from-map", "can only read resources of this type"),
        ("get persistentvolumeclaims shop/claim", None),
        ("get persistentvolumeclaims shop/web-0-e", None),
        ("list persistentvolumeclaims shop/", "can only get individual resources of this type"),
        ("get persistentvolumes /volume", None),
        ("get persistentvolumes /other", "no relationship found between node 'node-1' and this object"),
        ("create serviceaccounts/token shop/web", None),
        ("create serviceaccounts/token shop/admin", "no relationship found between node 'node-1' and this object"),
        ("create serviceaccounts shop/", "can only create tokens for individual service accounts"),
        ("get pods shop/web-0", None),
        ("get pods shop/web-1", "no relationship found between node 'node-1' and this object"),
        ("list pods", "can only list/watch pods with spec.nodeName field selector"),
        ("patch pods/status shop/web-0", None),
        ("create pods/eviction shop/web-0", None),
        ("create pods/exec shop/web-0", ""),
        ("update pods shop/web-0", ""),
        ("get nodes /node-1", None),
        ("get nodes /node-2", "node 'node-1' cannot read 'node-2', only its own Node object"),
        ("list nodes", "node 'node-1' cannot read all nodes, only its own Node object"),
        ("patch nodes/status /node-1", None),
        ("delete nodes /node-1", ""),
        (f"patch {LEASE} kube-node-lease/node-1", None),
        (f"create {LEASE} kube-node-lease/", None),
        (f"patch {LEASE} kube-node-lease/node-2",
         "can only access node lease with the same name as the requesting node"),
        (f"get {LEASE} kube-system/node-1", 'can only access leases in the "kube-node-lease" system namespace'),
        (f"list {LEASE} kube-node-lease/", "can only get, create, update, patch, or delete a node lease"),
        ("get csinodes.storage.k8s.io /node-2", "can only access CSINode with the same name as the requesting node"),
        ("list services", None),
        ("create events shop/", None),
        ("list endpointslices.discovery.k8s.io", ""),
    ],
)  # fmt: skip
def test_a_node_is_limited_to_its_own_objects(text: str, reason: str | None) -> None:
    decision = NodeAuthorizer(OnePod()).decide("node-1", ask(text))
    assert decision.allowed is (reason is None)
    assert decision.reason == (reason or "")


def test_a_node_watches_the_pods_bound_to_it() -> None:
    nodes = NodeAuthorizer(OnePod())
    assert nodes.decide("node-1", ask("watch pods", selected={"spec.nodeName": "node-1"})).allowed
    assert not nodes.decide("node-1", ask("watch pods", selected={"spec.nodeName": "node-2"})).allowed


def test_a_node_is_known_by_name_and_group() -> None:
    assert node_name(UserInfo("system:node:n", ("system:nodes",))) == "n"
    assert node_name(UserInfo("system:node:n", ("others",))) == ""
    assert node_name(UserInfo("n", ("system:nodes",))) == ""


def test_the_account_of_a_pod_without_one_is_default() -> None:
    assert ("serviceaccounts", "default") in references({"spec": {}})
