from typing import Any

import msgspec
import pytest

from podwire.embedded.kubelet.objects import references
from podwire.model.pod import Pod


def pod(**spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", "namespace": "n"}, "spec": spec}, Pod)


def box(**fields: Any) -> dict[str, Any]:
    return {"name": "c", "image": "i", **fields}


@pytest.mark.parametrize(
    ("spec", "objects"),
    [
        ({"containers": [box()]}, set()),
        (
            {
                "containers": [box(envFrom=[{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}])],
                "initContainers": [box(env=[{"name": "E", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}])],
            },
            {("configmaps", "a"), ("secrets", "b"), ("secrets", "c")},
        ),
        (
            {
                "volumes": [
                    {"name": "v", "configMap": {"name": "a"}},
                    {"name": "w", "secret": {"secretName": "b"}},
                    {"name": "x", "projected": {"sources": [{"secret": {"name": "c"}}, {"configMap": {"name": "d"}}]}},
                    {"name": "y", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
                ]
            },
            {("configmaps", "a"), ("secrets", "b"), ("secrets", "c"), ("configmaps", "d")},
        ),
        (
            {"containers": [box(envFrom=[{"configMapRef": {"name": "kube-root-ca.crt"}}])]},
            {("configmaps", "kube-root-ca.crt")},
        ),
    ],
)
def test_objects_of_a_pod_are_found(spec: dict[str, Any], objects: set[tuple[str, str]]) -> None:
    assert references(pod(**spec)) == objects
