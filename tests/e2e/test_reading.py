"""kubectl get in its forms, describe, explain, api-resources."""

import json

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster, deployment, eventually


def test_nodes_are_ready_and_wide_shows_their_addresses(cluster: Cluster) -> None:
    lines = cluster.kubectl("get", "nodes", "-o", "wide").splitlines()
    assert lines[0].split()[:6] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION", "INTERNAL-IP"]
    assert [line.split()[:2] for line in lines[1:]] == [["node-1", "Ready"], ["node-2", "Ready"]]
    assert all(line.split()[5].startswith("10.89.") for line in lines[1:])


def test_tables_of_every_namespaced_kind(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web", replicas=2), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    wide = cluster.kubectl("get", "deployment,replicaset,pod", "-n", namespace, "-o", "wide").splitlines()
    heads = [line.split() for line in wide if line.startswith("NAME")]
    assert heads[0] == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"]
    assert heads[1] == ["NAME", "DESIRED", "CURRENT", "READY", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"]
    assert heads[2][:8] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED"]
    pods = [line.split() for line in wide if line.startswith("pod/")]
    assert len(pods) == 2
    assert {tuple(pod[1:4]) for pod in pods} == {("1/1", "Running", "0")}
    assert all(pod[5].startswith("10.244.") and pod[6].startswith("node-") for pod in pods)


def test_output_formats_agree(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "configmap", "colours", "--from-literal=sky=blue", "-n", namespace)
    where = ("configmap", "colours", "-n", namespace)
    assert cluster.get(*where)["data"] == {"sky": "blue"}
    assert "  sky: blue" in cluster.kubectl("get", *where, "-o", "yaml").splitlines()
    assert cluster.kubectl("get", *where, "-o", "jsonpath={.data.sky}") == "blue"
    assert cluster.kubectl("get", *where, "-o", "name") == "configmap/colours\n"
    columns = cluster.kubectl("get", *where, "-o", "custom-columns=N:.metadata.name,S:.data.sky")
    assert columns.split() == ["N", "S", "colours", "blue"]
    assert cluster.kubectl("get", *where, "-o", "go-template={{.metadata.namespace}}") == namespace


def test_selectors_choose(cluster: Cluster, namespace: str) -> None:
    for name, tier in (("a", "front"), ("b", "back"), ("c", "back")):
        cluster.kubectl("create", "configmap", name, "-n", namespace)
        cluster.kubectl("label", "configmap", name, f"tier={tier}", "-n", namespace)

    def names(*arguments: str) -> list[str]:
        return cluster.kubectl("get", "configmap", "-n", namespace, "-o", "name", *arguments).split()

    assert names("-l", "tier=back") == ["configmap/b", "configmap/c"]
    assert names("-l", "tier in (front),tier!=back") == ["configmap/a"]
    assert "configmap/a" not in names("-l", "!tier")
    assert names("--field-selector", "metadata.name=b") == ["configmap/b"]
    assert names("-l", "tier=back", "--field-selector", "metadata.name!=b") == ["configmap/c"]


def test_pages_give_the_same_as_one_list(cluster: Cluster, namespace: str) -> None:
    for number in range(7):
        cluster.kubectl("create", "configmap", f"c-{number}", "-n", namespace)
    whole = cluster.kubectl("get", "configmap", "-n", namespace, "-o", "name")
    assert cluster.kubectl("get", "configmap", "-n", namespace, "-o", "name", "--chunk-size=2") == whole
    first = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/configmaps?limit=3"))
    assert len(first["items"]) == 3
    assert first["metadata"]["continue"] and first["metadata"]["remainingItemCount"] == len(whole.split()) - 3


def test_list_goes_on_after_its_token_has_expired(api: Connection, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/podtemplates"
    template = {"spec": {"containers": [{"name": "c", "image": "nginx"}]}}
    for number in range(12):
        api.do("POST", path, {"metadata": {"name": f"t-{number:02}"}, "template": template})
    first = api.do("GET", f"{path}?limit=5")
    assert (len(first["items"]), first["metadata"]["remainingItemCount"]) == (5, 7)
    for _ in range(250):  # Only the snapshots of the last 200 lists are kept.
        api.do("GET", f"{path}?limit=1")
    api.do("DELETE", f"{path}/t-05")
    refused = api.ask("GET", f"{path}?limit=5&continue={first['metadata']['continue']}").body
    assert refused["reason"] == "Expired"
    second = api.do("GET", f"{path}?limit=5&continue={refused['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in second["items"]] == [f"t-{number:02}" for number in range(6, 11)]
    assert second["metadata"]["remainingItemCount"] == 1
    third = api.do("GET", f"{path}?limit=5&continue={second['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in third["items"]] == ["t-11"]
    assert third["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


def test_sorting(cluster: Cluster, namespace: str) -> None:
    for name, value in (("x", "3"), ("y", "1"), ("z", "2")):
        cluster.kubectl("create", "configmap", name, f"--from-literal=n={value}", "-n", namespace)
        cluster.kubectl("label", "configmap", name, "sorted=yes", "-n", namespace)
    result = cluster.kubectl(
        "get", "configmap", "-n", namespace, "-l", "sorted=yes", "--sort-by={.data.n}", "--no-headers"
    )
    assert [line.split()[0] for line in result.splitlines()] == ["y", "z", "x"]


def test_a_watch_shows_changes_as_they_happen(cluster: Cluster, namespace: str) -> None:
    arguments = ("get", "configmap", "-n", namespace, "-w", "--output-watch-events")
    with cluster.stream(*arguments) as watch:
        watch.until(lambda line: "kube-root-ca.crt" in line)
        cluster.kubectl("create", "configmap", "seen", "-n", namespace)
        cluster.kubectl("label", "configmap", "seen", "a=b", "-n", namespace)
        cluster.kubectl("delete", "configmap", "seen", "-n", namespace)
        lines = watch.until(lambda line: line.startswith("DELETED"))
    assert [line.split()[0] for line in lines if "seen" in line] == ["ADDED", "MODIFIED", "DELETED"]


def test_a_watched_table_has_a_row_for_each_state(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("early", replicas=0), "-n", namespace)
    with cluster.stream("get", "deployment", "-n", namespace, "-w") as watch:
        head = watch.until(lambda line: line.startswith("early"))
        cluster.apply(deployment("web"), "-n", namespace)
        rows = watch.until(lambda line: line.startswith("web") and line.split()[1] == "1/1")
    assert head[0].split()[:2] == ["NAME", "READY"]
    assert next(row for row in rows if row.startswith("web")).split()[1] == "0/1"


def test_describe_tells_events_and_conditions(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    pod = cluster.kubectl("describe", "pod", "-l", "app=web", "-n", namespace)
    assert "Node:" in pod and "Ready" in pod
    eventually(lambda: "Started" in cluster.kubectl("describe", "pod", "-l", "app=web", "-n", namespace))
    text = cluster.kubectl("describe", "deployment", "web", "-n", namespace)
    assert "1 desired | 1 updated | 1 total | 1 available | 0 unavailable" in text
    assert "Progressing" in text


def test_events_name_their_object(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)

    def reasons() -> set[str]:
        return {item["reason"] for item in cluster.get("events", "-n", namespace)["items"]}

    eventually(lambda: reasons() >= {"Scheduled", "Started", "ScalingReplicaSet", "SuccessfulCreate"})
    shown = cluster.kubectl("events", "-n", namespace, "--for", "deployment/web")
    assert "ScalingReplicaSet" in shown and "Started" not in shown


def test_explain_knows_fields(cluster: Cluster) -> None:
    text = cluster.kubectl("explain", "deployment.spec.strategy.rollingUpdate")
    assert "maxSurge" in text and "maxUnavailable" in text and "apps" in text
    assert "FIELD: clusterIP <string>" in cluster.kubectl("explain", "service.spec.clusterIP")
    assert "does not exist" in cluster.refused("explain", "pod.spec.nonsense")


@pytest.mark.parametrize(
    ("name", "short", "version", "namespaced", "kind"),
    [
        ("pods", "po", "v1", "true", "Pod"),
        ("services", "svc", "v1", "true", "Service"),
        ("nodes", "no", "v1", "false", "Node"),
        ("deployments", "deploy", "apps/v1", "true", "Deployment"),
        ("statefulsets", "sts", "apps/v1", "true", "StatefulSet"),
        ("networkpolicies", "netpol", "networking.k8s.io/v1", "true", "NetworkPolicy"),
        ("customresourcedefinitions", "crd,crds", "apiextensions.k8s.io/v1", "false", "CustomResourceDefinition"),
        ("poddisruptionbudgets", "pdb", "policy/v1", "true", "PodDisruptionBudget"),
    ],
)
def test_api_resources(cluster: Cluster, name: str, short: str, version: str, namespaced: str, kind: str) -> None:
    rows = [line.split() for line in cluster.kubectl("api-resources").splitlines()]
    assert [name, short, version, namespaced, kind] in rows


def test_api_versions_and_version(cluster: Cluster) -> None:
    assert {"v1", "apps/v1", "discovery.k8s.io/v1", "coordination.k8s.io/v1"} <= set(
        cluster.kubectl("api-versions").split()
    )
    assert json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["major"] == "1"


def test_unknown_things_are_not_found(cluster: Cluster, namespace: str) -> None:
    assert 'pods "none" not found' in cluster.refused("get", "pod", "none", "-n", namespace)
    assert "the server doesn't have a resource type" in cluster.refused("get", "nonsense")
    assert "No resources found" in cluster.run(["kubectl", "get", "pods", "-n", namespace]).stderr
