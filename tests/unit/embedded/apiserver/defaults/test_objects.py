"""What an object looks like after the API filled in its defaults."""

from base64 import b64decode
from copy import deepcopy
from typing import Any

import pytest

from podwire.embedded.apiserver.defaults import objects, pods
from podwire.embedded.apiserver.kinds import BY_KIND, KINDS

CONTAINER = {"name": "c", "image": "nginx"}


def fill(api_version: str, kind: str, **body: Any) -> dict[str, Any]:
    group, _, version = api_version.rpartition("/")
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, **deepcopy(body)}
    return objects.apply(BY_KIND[group, version, kind], obj)


def test_pod() -> None:
    pod = fill("v1", "Pod", spec={"containers": [{**CONTAINER, "ports": [{"containerPort": 80}]}]})
    spec = pod["spec"]
    assert spec["containers"] == [
        {
            **CONTAINER, "ports": [{"containerPort": 80, "protocol": "TCP"}], "imagePullPolicy": "Always",
            "resources": {}, "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }
    ]  # fmt: skip
    assert {key: value for key, value in spec.items() if key not in ("containers", "tolerations")} == {
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        "securityContext": {}, "schedulerName": "default-scheduler", "enableServiceLinks": True,
        "serviceAccountName": "default", "serviceAccount": "default",
    }  # fmt: skip
    assert [item["key"] for item in spec["tolerations"]] == [
        "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable",
    ]  # fmt: skip
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


IMAGES = {
    "nginx": "Always", "nginx:latest": "Always", "nginx:1.2": "IfNotPresent", "host:5000/nginx": "Always",
    "host:5000/nginx:1": "IfNotPresent", "nginx@sha256:abc": "IfNotPresent",
}  # fmt: skip


@pytest.mark.parametrize("image", IMAGES)
def test_pull_policy(image: str) -> None:
    pod = fill("v1", "Pod", spec={"containers": [{"name": "c", "image": image}]})
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == IMAGES[image]


QUALITIES: list[tuple[dict[str, Any], str]] = [
    ({}, "BestEffort"),
    ({"requests": {"cpu": "1"}}, "Burstable"),
    ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
    ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
]


@pytest.mark.parametrize(("resources", "want"), QUALITIES)
def test_quality(resources: dict[str, Any], want: str) -> None:
    assert pods.qos_class({"containers": [{**CONTAINER, "resources": resources}]}) == want


def test_probes_and_volumes() -> None:
    probe = {"httpGet": {"port": 80}}
    volumes = [{"name": "a"}, {"name": "b", "configMap": {"name": "m"}}, {"name": "c", "secret": {"secretName": "s"}}]
    spec = fill("v1", "Pod", spec={"containers": [{**CONTAINER, "readinessProbe": probe}], "volumes": volumes})["spec"]
    assert spec["containers"][0]["readinessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
        "successThreshold": 1, "failureThreshold": 3,
    }  # fmt: skip
    assert spec["volumes"] == [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "configMap": {"name": "m", "defaultMode": 420}},
        {"name": "c", "secret": {"secretName": "s", "defaultMode": 420}},
    ]


TEMPLATE = {"spec": {"containers": [CONTAINER]}}
SPECS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("apps/v1", "Deployment", {"template": TEMPLATE},
     {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
      "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}}),
    ("apps/v1", "Deployment", {"strategy": {"type": "Recreate"}}, {"strategy": {"type": "Recreate"}}),
    ("apps/v1", "DaemonSet", {"template": TEMPLATE},
     {"revisionHistoryLimit": 10,
      "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}}),
    ("apps/v1", "StatefulSet", {"template": TEMPLATE},
     {"replicas": 1, "podManagementPolicy": "OrderedReady",
      "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
      "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"}}),
    ("batch/v1", "Job", {"template": TEMPLATE},
     {"completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False}),
    ("batch/v1", "CronJob", {"schedule": "* * * * *"},
     {"concurrencyPolicy": "Allow", "suspend": False, "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}),
    ("v1", "Service", {"ports": [{"port": 80}]},
     {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
      "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}),
    ("v1", "Service", {"type": "LoadBalancer", "sessionAffinity": "ClientIP"},
     {"externalTrafficPolicy": "Cluster", "allocateLoadBalancerNodePorts": True,
      "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}}),
    ("networking.k8s.io/v1", "NetworkPolicy", {}, {"policyTypes": ["Ingress"], "podSelector": {}}),
    ("networking.k8s.io/v1", "NetworkPolicy", {"egress": [{"ports": [{"port": 53}]}]},
     {"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": [{"port": 53, "protocol": "TCP"}]}]}),
    ("autoscaling/v2", "HorizontalPodAutoscaler", {"maxReplicas": 2}, {"minReplicas": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("api_version", "kind", "spec", "want"), SPECS)
def test_specs(api_version: str, kind: str, spec: dict[str, Any], want: dict[str, Any]) -> None:
    result = fill(api_version, kind, spec=spec)["spec"]
    assert {key: result.get(key) for key in want} == want


def test_secret_text_becomes_data() -> None:
    secret = fill("v1", "Secret", stringData={"a": "b"}, data={"c": "ZA=="})
    assert "stringData" not in secret
    assert {key: b64decode(value) for key, value in secret["data"].items()} == {"a": b"b", "c": b"d"}
    assert secret["type"] == "Opaque"


def test_a_job_selects_its_pods_once_it_has_a_uid() -> None:
    kind = BY_KIND["batch", "v1", "Job"]
    job = objects.apply(kind, {"metadata": {"name": "j", "uid": "u"}, "spec": {"template": deepcopy(TEMPLATE)}})
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels["job-name"] == "j"
    assert job["metadata"]["labels"] == labels


def test_token_volume() -> None:
    pod = fill("v1", "Pod", spec={"containers": [CONTAINER], "initContainers": [CONTAINER]})
    pods.mount_token(pod, "kube-api-access-abcde")
    again = deepcopy(pod)
    pods.mount_token(again, "kube-api-access-fghij")
    assert again == pod
    assert [v["name"] for v in pod["spec"]["volumes"]] == ["kube-api-access-abcde"]
    for group in ("containers", "initContainers"):
        assert pod["spec"][group][0]["volumeMounts"] == [
            {
                "name": "kube-api-access-abcde", "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }
        ]  # fmt: skip


def test_a_copied_pod_keeps_the_volume_of_its_token() -> None:
    pod = fill("v1", "Pod", spec={"containers": [CONTAINER]})
    pods.mount_token(pod, "kube-api-access-abcde")
    pod["spec"]["containers"].append({"name": "d", "image": "debug"})
    pods.mount_token(pod, "kube-api-access-fghij")
    assert [v["name"] for v in pod["spec"]["volumes"]] == ["kube-api-access-abcde"]
    assert pod["spec"]["containers"][1]["volumeMounts"][0]["name"] == "kube-api-access-abcde"


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: f"{kind.resource}-{kind.version}")
def test_filling_twice_changes_nothing(kind: Any) -> None:
    once = objects.apply(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "x"}})
    assert objects.apply(kind, deepcopy(once)) == once
