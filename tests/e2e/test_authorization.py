"""Roles as kubectl and programs in pods meet them: rights, refusals, escalation, aggregation, identities."""

import json
from pathlib import Path

import pytest
import yaml
from tests.e2e.clusters import topology
from tests.e2e.driver import Cluster, eventually

from podwire.local import credentials

CHART = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: clerk}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: clerk}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, list]}
- {apiGroups: [""], resources: [secrets], resourceNames: [own], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: clerk}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: clerk}
subjects:
- {kind: ServiceAccount, name: clerk}
---
apiVersion: v1
kind: Secret
metadata: {name: own}
---
apiVersion: v1
kind: Pod
metadata: {name: clerk}
spec:
  serviceAccountName: clerk
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: python
    command: [python3, -c, SCRIPT]
"""
SCRIPT = """
import json, ssl, urllib.error, urllib.request
place = "/var/run/secrets/kubernetes.io/serviceaccount/"
namespace = open(place + "namespace").read()
trusted = ssl.create_default_context(cafile=place + "ca.crt")
headers = {"Authorization": "Bearer " + open(place + "token").read()}
for path in ("configmaps", "secrets/own", "secrets/other", "pods"):
    url = f"https://kubernetes.default.svc/api/v1/namespaces/{namespace}/{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=trusted, timeout=30) as found:
            print(path, found.status)
    except urllib.error.HTTPError as refused:
        print(path, refused.code, json.load(refused)["message"])
"""
OUTSIDE = (
    "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: %s\n  labels: %s\nrules: %s\n"
)


def can(cluster: Cluster, question: str, user: str) -> str:
    """``yes`` or ``no``."""
    arguments = ["kubectl", "--kubeconfig", cluster.kubeconfig, "auth", "can-i", *question.split(), "--as", user]
    return cluster.run(arguments).stdout.strip()


def test_a_role_decides_what_a_user_may_do(cluster: Cluster, namespace: str) -> None:
    assert can(cluster, f"list pods -n {namespace}", "ann") == "no"
    cluster.kubectl("create", "rolebinding", "ann", "-n", namespace, "--clusterrole=view", "--user=ann")
    assert can(cluster, f"list pods -n {namespace}", "ann") == "yes"
    assert can(cluster, "list pods -n default", "ann") == "no"
    assert can(cluster, f"get pods/log -n {namespace}", "ann") == "yes"
    assert can(cluster, f"list secrets -n {namespace}", "ann") == "no"
    assert can(cluster, "get /healthz", "ann") == "yes"
    cluster.kubectl("get", "pods", "-n", namespace, "--as=ann")
    assert cluster.refused("get", "secrets", "-n", namespace, "--as=ann") == (
        'Error from server (Forbidden): secrets is forbidden: User "ann" cannot list resource "secrets" in API group '
        f'"" in the namespace "{namespace}"\n'
    )
    listed = cluster.kubectl("auth", "can-i", "--list", "-n", namespace, "--as=ann")
    assert "deployments.apps" in listed and "secrets" not in listed
    cluster.kubectl("delete", "rolebinding", "ann", "-n", namespace)
    assert can(cluster, f"list pods -n {namespace}", "ann") == "no"


def test_whoami_shows_whom_kubectl_acts_as(cluster: Cluster) -> None:
    shown = cluster.kubectl("auth", "whoami", "-o", "json", "--as=ann", "--as-group=a", "--as-group=b", "--as-uid=7")
    assert json.loads(shown)["status"]["userInfo"] == {
        "username": "ann",
        "uid": "7",
        "groups": ["a", "b", "system:authenticated"],
    }


def test_a_chart_runs_with_the_rights_of_its_own_role(cluster: Cluster, namespace: str) -> None:
    manifest = CHART.replace("SCRIPT", json.dumps(SCRIPT))
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)
    eventually(
        lambda: cluster.kubectl("get", "pod", "clerk", "-n", namespace, "-o", "jsonpath={.status.phase}") == "Succeeded"
    )
    refused = f'User "system:serviceaccount:{namespace}:clerk" cannot'
    where = f'in API group "" in the namespace "{namespace}"'
    assert cluster.kubectl("logs", "clerk", "-n", namespace).splitlines() == [
        "configmaps 200",
        "secrets/own 200",
        f'secrets/other 403 secrets "other" is forbidden: {refused} get resource "secrets" {where}',
        f'pods 403 pods is forbidden: {refused} list resource "pods" {where}',
    ]


def test_a_namespace_administrator_cannot_escalate(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "rolebinding", "boss", "-n", namespace, "--clusterrole=admin", "--user=boss")
    where = ("-n", namespace, "--as=boss")
    cluster.kubectl("create", "role", "reader", "--verb=get", "--resource=pods", *where)
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", "--user=ann", *where)
    refused = cluster.refused("create", "role", "nodes", "--verb=get", "--resource=nodes", *where)
    assert "attempting to grant RBAC permissions not currently held" in refused
    assert '{APIGroups:[""], Resources:["nodes"], Verbs:["get"]}' in refused
    assert "not currently held" in cluster.refused(
        "create", "rolebinding", "all", "--clusterrole=cluster-admin", "--user=boss", *where
    )
    assert "forbidden" in cluster.refused("create", "clusterrole", "c", "--verb=get", "--resource=pods", "--as=boss")


def test_a_labelled_role_becomes_part_of_view(cluster: Cluster, namespace: str) -> None:
    label = '{rbac.authorization.k8s.io/aggregate-to-view: "true"}'
    rules = "[{apiGroups: [storage.k8s.io], resources: [csistoragecapacities], verbs: [get, list]}]"
    cluster.kubectl("create", "rolebinding", "ann", "-n", namespace, "--clusterrole=view", "--user=ann")
    question = f"list csistoragecapacities.storage.k8s.io -n {namespace}"
    assert can(cluster, question, "ann") == "no"
    cluster.apply(OUTSIDE % (f"capacities-{namespace}", label, rules))
    try:
        eventually(lambda: can(cluster, question, "ann") == "yes")
    finally:
        cluster.kubectl("delete", "clusterrole", f"capacities-{namespace}")
    eventually(lambda: can(cluster, question, "ann") == "no")


def test_auth_reconcile_adds_what_a_role_lacks(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "role", "r", "-n", namespace, "--verb=get", "--resource=pods")
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r", "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}],
    }  # fmt: skip
    cluster.kubectl("auth", "reconcile", "-f", "-", stdin=json.dumps(role))
    shown = cluster.get("role", "r", "-n", namespace)
    assert {name for rule in shown["rules"] for name in rule["resources"]} == {"pods", "services"}


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("controller-manager", "system:kube-controller-manager"),
        ("scheduler", "system:kube-scheduler"),
        ("agent-node-1", "podwire:agent:node-1"),
        ("node-1", "system:node:node-1"),
        ("admin", "kubernetes-admin"),
    ],
)
def test_each_component_has_its_own_name_and_few_rights(cluster: Cluster, file: str, user: str) -> None:
    layout = topology(cluster)
    path = credentials.kubeconfig_path(layout, file)
    server = yaml.load(Path(cluster.kubeconfig).read_text(), Loader=yaml.CSafeLoader)["clusters"][0]["cluster"][
        "server"
    ]
    arguments = ["kubectl", "--kubeconfig", str(path), "--server", server]
    owner = cluster.run([*arguments, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])
    assert owner.stdout == user, owner.stderr
    answer = cluster.run([*arguments, "auth", "can-i", "create", "clusterrolebindings"]).stdout.strip()
    assert answer == ("yes" if file == "admin" else "no")


def test_a_node_reads_no_secret_of_another_node(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "secret", "generic", "unused", "-n", namespace)
    node = ("--as=system:node:node-1", "--as-group=system:nodes")
    refused = cluster.refused("get", "secret", "unused", "-n", namespace, *node)
    assert "no relationship found between node 'node-1' and this object" in refused
    assert "cannot read 'node-2', only its own Node object" in cluster.refused("get", "node", "node-2", *node)
    cluster.kubectl("get", "node", "node-1", *node)
