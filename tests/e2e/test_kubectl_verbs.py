"""The kubectl verbs that the other test files do not use, as a person types them."""

import json
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, deployment, eventually, shell_pod

COMPONENTS = ("controller-manager", "etcd-0", "scheduler")


def _web(cluster: Cluster, namespace: str, replicas: int = 1) -> None:
    cluster.apply(deployment("web", replicas=replicas), "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=90s")


def test_health_and_version(cluster: Cluster) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/api/v1/nodes/node-1/proxy/healthz"):
        assert cluster.kubectl("get", "--raw", path).strip() == "ok"
    assert "[+]journal ok" in cluster.kubectl("get", "--raw", "/readyz?verbose")
    assert json.loads(cluster.kubectl("get", "--raw", "/version"))["gitVersion"].startswith("v1.")
    assert 'apiserver_storage_objects{resource="nodes"} 2' in cluster.kubectl("get", "--raw", "/metrics")
    assert "kubelet_running_pods" in cluster.kubectl("get", "--raw", "/api/v1/nodes/node-1/proxy/metrics")
    assert "control plane" in cluster.kubectl("cluster-info")
    statuses = cluster.kubectl("get", "componentstatuses", "--no-headers").splitlines()
    assert [line.split()[:2] for line in statuses] == [[name, "Healthy"] for name in COMPONENTS]


def test_auth(cluster: Cluster, namespace: str) -> None:
    assert cluster.kubectl("auth", "can-i", "delete", "deployments", "-n", namespace) == "yes\n"
    assert "[*]" in cluster.kubectl("auth", "can-i", "--list", "-n", namespace)
    assert "kubernetes-admin" in cluster.kubectl("auth", "whoami")
    someone = cluster.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", "--as=jane")
    assert someone == "jane"
    token = cluster.kubectl("create", "token", "default", "-n", namespace, "--duration=20m")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token.strip()}}
    answered = cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
    status = json.loads(answered)["status"]
    assert status["authenticated"] and status["user"]["username"] == f"system:serviceaccount:{namespace}:default"


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ("service clusterip s --tcp=80:8080", "service/s:{.spec.ports[0].targetPort}", "8080"),
        ("service nodeport s --tcp=80", "service/s:{.spec.type}", "NodePort"),
        ("service externalname s --external-name=example.com", "service/s:{.spec.externalName}", "example.com"),
        ("service loadbalancer s --tcp=80", "service/s:{.spec.type}", "LoadBalancer"),
        ("ingress i --rule=a.example/*=s:80", "ingress/i:{.spec.rules[0].host}", "a.example"),
        ("pdb p --selector=app=x --min-available=50%", "pdb/p:{.spec.minAvailable}", "50%"),
        ("role r --verb=get --resource=pods", "role/r:{.rules[0].resources[0]}", "pods"),
        ("rolebinding r --role=r --serviceaccount=a:b", "rolebinding/r:{.subjects[0].name}", "b"),
        ("cronjob c --image=busybox --schedule=@daily -- true", "cronjob/c:{.spec.schedule}", "@daily"),
        ("secret docker-registry d --docker-username=u --docker-password=p", "secret/d:{.type}",
         "kubernetes.io/dockerconfigjson"),
    ],
    ids=lambda text: text.split(" --")[0],
)  # fmt: skip
def test_create(cluster: Cluster, namespace: str, arguments: str, field: str, value: str) -> None:
    cluster.kubectl("create", "-n", namespace, *arguments.split())
    subject, _, path = field.partition(":")
    assert cluster.kubectl("get", subject, "-n", namespace, "-o", f"jsonpath={path}") == value


def test_create_from_files_and_from_a_cronjob(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/a.txt").write_text("one\n")
    (tmp_path / "conf/b.bin").write_bytes(b"\xff\x00")
    (tmp_path / "env").write_text("X=1\nY=2\n")
    cluster.kubectl("create", "configmap", "files", f"--from-file={tmp_path}/conf", "-n", namespace)
    cluster.kubectl("create", "configmap", "env", f"--from-env-file={tmp_path}/env", "-n", namespace)
    created = cluster.get("configmap", "files", "-n", namespace)
    assert (created["data"], created["binaryData"]) == ({"a.txt": "one\n"}, {"b.bin": "/wA="})
    assert cluster.get("configmap", "env", "-n", namespace)["data"] == {"X": "1", "Y": "2"}
    arguments = ("--image=busybox", "--schedule=0 0 1 1 *", "-n", namespace, "--", "sh", "-c", "echo from cron")
    cluster.kubectl("create", "cronjob", "yearly", *arguments)
    cluster.kubectl("create", "job", "now", "--from=cronjob/yearly", "-n", namespace)
    cluster.kubectl("wait", "--for=condition=Complete", "job/now", "-n", namespace, "--timeout=90s")
    assert cluster.kubectl("logs", "job/now", "-n", namespace) == "from cron\n"


def test_expose_set_and_wait_for_a_field(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace)
    cluster.kubectl("expose", "deployment", "web", "--type=NodePort", "--port=80", "--name=out", "-n", namespace)
    assert cluster.get("service", "out", "-n", namespace)["spec"]["selector"] == {"app": "web"}
    cluster.kubectl("set", "image", "deployment/web", "main=nginx:1.28", "-n", namespace)
    cluster.kubectl("set", "env", "deployment/web", "A=b", "-n", namespace)
    cluster.kubectl("set", "resources", "deployment/web", "--limits=cpu=1", "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=90s")
    container = cluster.get("deployment", "web", "-n", namespace)["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["env"], container["resources"]) == (
        "nginx:1.28", [{"name": "A", "value": "b"}], {"limits": {"cpu": "1"}},
    )  # fmt: skip
    where = ("deployment/web", "-n", namespace, "--timeout=90s")
    cluster.kubectl("wait", "--for=jsonpath={.status.readyReplicas}=1", *where)
    assert "timed out" in cluster.refused(
        "wait", "--for=jsonpath={.status.readyReplicas}=9", *where[:3], "--timeout=1s"
    )
    assert "nginx:1.28" in cluster.kubectl("rollout", "history", "deployment/web", "-n", namespace, "--revision=4")


def test_replace_by_force_makes_the_object_anew(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("box", "sleep 600"), "-n", namespace)
    before = cluster.get("pod", "box", "-n", namespace)["metadata"]["uid"]
    cluster.kubectl("replace", "--force", "-f", "-", "-n", namespace, stdin=shell_pod("box", "sleep 601"))
    after = cluster.get("pod", "box", "-n", namespace)
    assert after["metadata"]["uid"] != before
    assert after["spec"]["containers"][0]["command"][-1] == "sleep 601"


def test_kustomize(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: base}\ndata: {a: b}\n")
    (tmp_path / "kustomization.yaml").write_text(
        f"namespace: {namespace}\nnamePrefix: k-\nresources: [map.yaml]\n"
        "configMapGenerator: [{name: made, literals: [c=d]}]\n"
    )
    assert "name: k-base" in cluster.kubectl("kustomize", str(tmp_path))
    lines = cluster.kubectl("apply", "-k", str(tmp_path)).splitlines()
    assert [line.split()[-1] for line in lines] == ["created", "created"]
    again = cluster.kubectl("apply", "-k", str(tmp_path)).splitlines()
    assert [line.split()[-1] for line in again] == ["unchanged", "unchanged"]
    cluster.kubectl("delete", "-k", str(tmp_path))
    assert "not found" in cluster.refused("get", "configmap", "k-base", "-n", namespace)


def test_describe_tells_of_services_and_nodes(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace)
    cluster.kubectl("expose", "deployment", "web", "--port=80", "-n", namespace)
    address = cluster.kubectl("get", "pod", "-l", "app=web", "-n", namespace, "-o", "jsonpath={.items[0].status.podIP}")
    eventually(lambda: f"{address}:80" in cluster.kubectl("describe", "service", "web", "-n", namespace))
    node = cluster.kubectl("describe", "node", "node-1")
    for text in ("PodCIDR:", "KubeletReady", "Allocatable:", "Non-terminated Pods:", "InternalIP:  10.89."):
        assert text in node
    pod = cluster.kubectl("describe", "pod", "-l", "app=web", "-n", namespace)
    assert "TokenExpirationSeconds:  3607" in pod and "Controlled By:  ReplicaSet/web-" in pod


def test_drain_respects_the_budget_and_uncordon_brings_pods_back(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace, replicas=2)
    cluster.kubectl("create", "pdb", "web", "--selector=app=web", "--min-available=2", "-n", namespace)
    eventually(lambda: cluster.get("pdb", "web", "-n", namespace)["status"].get("currentHealthy") == 2)
    pod = cluster.get("pod", "-l", "app=web", "-n", namespace)["items"][0]
    node = pod["spec"]["nodeName"]
    only = ("--pod-selector=app=web", "--ignore-daemonsets", "--delete-emptydir-data")
    try:
        held = cluster.refused("drain", node, *only, "--timeout=1s")
        assert "Cannot evict pod as it would violate the pod's disruption budget." in held
        assert "SchedulingDisabled" in cluster.kubectl("get", "node", node)
        cluster.kubectl("patch", "pdb", "web", "-n", namespace, "--type=merge", "-p", '{"spec": {"minAvailable": 1}}')
        eventually(lambda: cluster.get("pdb", "web", "-n", namespace)["status"].get("disruptionsAllowed") == 1)
        assert "drained" in cluster.kubectl("drain", node, *only, "--timeout=90s")
        cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=90s")
        assert node not in {p["spec"]["nodeName"] for p in cluster.get("pod", "-n", namespace)["items"]}
    finally:
        cluster.kubectl("uncordon", node)
    assert "SchedulingDisabled" not in cluster.kubectl("get", "node", node)
