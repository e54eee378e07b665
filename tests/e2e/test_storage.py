"""Persistent volumes as a user meets them: claims are bound, files stay, and what is deleted in use waits."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.driver import Cluster, eventually


def claim(name: str, **spec: Any) -> dict[str, Any]:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": asked}


def pod(name: str, volume: dict[str, Any], script: str = "sleep 600", **spec: Any) -> dict[str, Any]:
    container = {
        "name": "c", "image": "busybox", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }  # fmt: skip
    body = {
        "terminationGracePeriodSeconds": 0, "containers": [container], "volumes": [{"name": "data", **volume}], **spec,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def uses(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def put(cluster: Cluster, namespace: str, *objects: dict[str, Any]) -> None:
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}), "-n", namespace)


def is_ready(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.ready(name, namespace=namespace)


def phase(cluster: Cluster, namespace: str, name: str) -> str:
    listed = cluster.get("pvc", "-n", namespace)["items"]
    phases: list[str] = [item["status"]["phase"] for item in listed if item["metadata"]["name"] == name]
    return phases[0] if phases else ""


def folder(cluster: Cluster, namespace: str, name: str) -> Path:
    volume = cluster.get("pvc", name, "-n", namespace)["spec"]["volumeName"]
    return Path(cluster.get("pv", volume)["spec"]["hostPath"]["path"])


def test_files_of_a_claim_outlive_pods_and_nodes(cluster: Cluster, namespace: str) -> None:
    put(
        cluster,
        namespace,
        claim("data"),
        pod("first", uses("data"), "echo kept > /data/f; sleep 600", nodeName="node-1"),
    )
    is_ready(cluster, namespace, "first")
    where = folder(cluster, namespace, "data")
    eventually((where / "f").exists)
    cluster.kubectl("delete", "pod", "first", "-n", namespace)
    put(cluster, namespace, pod("second", uses("data"), nodeName="node-2"))
    is_ready(cluster, namespace, "second")
    assert cluster.kubectl("exec", "second", "-n", namespace, "--", "cat", "/data/f").strip() == "kept"
    cluster.kubectl("delete", "pvc", "data", "-n", namespace, "--wait=false")
    assert cluster.get("pvc", "data", "-n", namespace)["metadata"]["deletionTimestamp"]
    assert where.exists()
    cluster.kubectl("delete", "pod", "second", "-n", namespace)
    eventually(lambda: not where.exists())


def test_a_statefulset_has_a_claim_for_each_pod(cluster: Cluster, namespace: str) -> None:
    template = pod("unused", {})["spec"]
    del template["volumes"]
    spec = {
        "replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": template},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim("data")["spec"]}],
    }  # fmt: skip
    put(cluster, namespace, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec})
    cluster.kubectl("rollout", "status", "statefulset/db", "-n", namespace, "--timeout=60s")
    folders = {folder(cluster, namespace, f"data-db-{ordinal}") for ordinal in (0, 1)}
    assert len(folders) == 2
    cluster.kubectl("scale", "statefulset/db", "--replicas=0", "-n", namespace)
    assert phase(cluster, namespace, "data-db-1") == "Bound"


def test_a_pod_waits_for_its_claim(cluster: Cluster, namespace: str) -> None:
    put(cluster, namespace, pod("early", uses("late")))

    def says() -> str:
        conditions = cluster.get("pod", "early", "-n", namespace)["status"].get("conditions", ())
        return " ".join(item.get("message", "") for item in conditions)

    eventually(lambda: 'persistentvolumeclaim "late" not found' in says())
    put(cluster, namespace, claim("late"))
    is_ready(cluster, namespace, "early")


def test_ephemeral_volume_goes_with_its_pod(cluster: Cluster, namespace: str) -> None:
    template = {"spec": claim("unused")["spec"]}
    put(cluster, namespace, pod("p", {"ephemeral": {"volumeClaimTemplate": template}}))
    is_ready(cluster, namespace, "p")
    where = folder(cluster, namespace, "p-data")
    cluster.kubectl("delete", "pod", "p", "-n", namespace)
    eventually(lambda: not where.exists() and not phase(cluster, namespace, "p-data"))


def test_delayed_claim_follows_its_pod(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    name = namespace[-40:].strip("-")
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2"]}]}]
    storage_class = {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    }  # fmt: skip
    local = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"}, "storageClassName": name,
            "local": {"path": str(tmp_path)}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    }  # fmt: skip
    try:
        put(cluster, namespace, storage_class, local, claim("data", storageClassName=name))
        assert phase(cluster, namespace, "data") == "Pending"
        put(cluster, namespace, pod("p", uses("data"), "echo here > /data/f; sleep 600"))
        is_ready(cluster, namespace, "p")
        assert cluster.get("pod", "p", "-n", namespace)["spec"]["nodeName"] == "node-2"
        eventually((tmp_path / "f").exists)
        cluster.kubectl("delete", "pod/p", "pvc/data", "-n", namespace)
        eventually(lambda: cluster.get("pv", name)["status"]["phase"] == "Released")
        assert (tmp_path / "f").read_text() == "here\n"
    finally:
        cluster.run(["kubectl", "delete", f"pv/{name}", f"storageclass/{name}", "--ignore-not-found", "--wait=false"])


def test_claims_grow_where_their_class_allows(cluster: Cluster, namespace: str) -> None:
    put(cluster, namespace, claim("data"))
    eventually(lambda: phase(cluster, namespace, "data") == "Bound")
    larger = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
    cluster.kubectl("patch", "pvc", "data", "-n", namespace, "-p", json.dumps(larger))
    eventually(lambda: cluster.get("pvc", "data", "-n", namespace)["status"]["capacity"]["storage"] == "3Gi")
