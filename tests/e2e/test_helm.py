"""Helm installs, upgrades, rolls back and uninstalls a chart."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.driver import Cluster, eventually
from tests.e2e.helm import Helm

CHART = {
    "Chart.yaml": "apiVersion: v2\nname: greeting\nversion: 0.1.0\nappVersion: '1'\n",
    "values.yaml": "replicas: 1\ngreeting: hello\nport: 80\n",
    "templates/web.yaml": """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}-web
  labels: {app: {{ .Release.Name }}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata:
      labels: {app: {{ .Release.Name }}}
      annotations: {checksum: {{ .Values.greeting | sha256sum }}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: web
          image: nginx:1.27
          ports: [{name: http, containerPort: {{ .Values.port }}}]
          envFrom: [{configMapRef: {name: {{ .Release.Name }}-words}}]
          readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: {{ .Release.Name }}-web}
spec:
  selector: {app: {{ .Release.Name }}}
  ports: [{name: http, port: {{ .Values.port }}, targetPort: http}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-words}
data: {GREETING: {{ .Values.greeting | quote }}}
""",
    "templates/hooks.yaml": """
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .Release.Name }}-before
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    helm.sh/hook-delete-policy: before-hook-creation
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: busybox:1.36, command: [sh, -c, "exit 0"]}]
---
apiVersion: v1
kind: Pod
metadata:
  name: {{ .Release.Name }}-check
  annotations: {helm.sh/hook: test, helm.sh/hook-delete-policy: before-hook-creation}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: curlimages/curl
      command: [curl, -sf, "http://{{ .Release.Name }}-web:{{ .Values.port }}/"]
""",
}


@pytest.fixture
def helm(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Helm]:
    yield Helm(cluster, namespace, tmp_path)


@pytest.fixture
def chart(tmp_path: Path) -> str:
    folder = tmp_path / "greeting"
    for name, text in CHART.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def words_of(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """The greeting, the wanted and the available replicas of the release."""
    deployment = cluster.get("deployment", "hi-web", "-n", namespace)
    return {
        "greeting": cluster.get("configmap", "hi-words", "-n", namespace)["data"]["GREETING"],
        "wanted": deployment["spec"]["replicas"],
        "available": deployment["status"].get("availableReplicas", 0),
    }


def test_a_release_from_install_to_uninstall(cluster: Cluster, namespace: str, helm: Helm, chart: str) -> None:
    helm("install", "hi", chart, "--wait", "--timeout", "90s")
    assert words_of(cluster, namespace) == {"greeting": "hello", "wanted": 1, "available": 1}
    helm("test", "hi", "--timeout", "90s")
    helm("upgrade", "hi", chart, "--set", "replicas=2,greeting=hullo", "--wait", "--timeout", "90s")
    assert words_of(cluster, namespace) == {"greeting": "hullo", "wanted": 2, "available": 2}
    revisions = [(item["revision"], item["status"]) for item in json.loads(helm("history", "hi", "-o", "json"))]
    assert revisions == [(1, "superseded"), (2, "deployed")]
    helm("rollback", "hi", "1", "--wait", "--timeout", "90s")
    assert words_of(cluster, namespace) == {"greeting": "hello", "wanted": 1, "available": 1}
    helm("uninstall", "hi", "--wait", "--timeout", "90s")
    remaining = "deployments,services,configmaps,pods"
    eventually(lambda: "hi-web" not in cluster.kubectl("get", remaining, "-n", namespace, "-o", "name"))
    assert json.loads(helm("list", "-o", "json")) == []


def test_what_the_api_refuses_ends_the_install(helm: Helm, chart: str) -> None:
    output = helm.refused("install", "hi", chart, "--set", "port=70000", "--timeout", "60s")
    assert "spec.ports[0].port" in output or "containerPort" in output


RIGHTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ .Release.Name }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: {{ .Release.Name }}}
rules:
- {apiGroups: {{ .Values.groups | toJson }}, resources: {{ .Values.resources | toJson }}, verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: {{ .Release.Name }}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .Release.Name }}}
subjects: [{kind: ServiceAccount, name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}]
"""


def test_a_chart_grants_no_more_than_its_installer_holds(
    cluster: Cluster, namespace: str, helm: Helm, tmp_path: Path
) -> None:
    folder = tmp_path / "rights"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: rights\nversion: 0.1.0\n")
    (folder / "values.yaml").write_text('groups: [""]\nresources: [pods]\n')
    (folder / "templates/rights.yaml").write_text(RIGHTS)
    cluster.kubectl("create", "rolebinding", "boss", "-n", namespace, "--clusterrole=admin", "--user=boss")
    boss = ("--kube-as-user", "boss")
    helm("install", "own", str(folder), *boss)
    account = f"--as=system:serviceaccount:{namespace}:own"
    assert cluster.kubectl("get", "pods", "-n", namespace, account, "-o", "name") == ""
    assert "forbidden" in cluster.refused("get", "secrets", "-n", namespace, account)
    refused = helm.refused("install", "more", str(folder), *boss, "--set", "resources={nodes}")
    assert "attempting to grant RBAC permissions not currently held" in refused


METRICS = """
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: NAMESPACE, name: metrics-server, port: 443}
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: NAMESPACE}
spec: {ports: [{port: 443}]}
"""


def metrics_service(cluster: Cluster) -> tuple[str, str]:
    """The columns SERVICE and AVAILABLE of the APIService of metrics.k8s.io; empty when it is missing."""
    rows = [line.split(None, 3) for line in cluster.kubectl("get", "apiservices", "--no-headers").splitlines()]
    return next(((row[1], row[2]) for row in rows if row[0] == "v1beta1.metrics.k8s.io"), ("", ""))


@pytest.fixture
def own_metrics(cluster: Cluster) -> Iterator[None]:
    """The cluster's own metrics, before and after."""
    assert metrics_service(cluster) == ("Local", "True")
    yield
    cluster.kubectl("delete", "apiservice", "v1beta1.metrics.k8s.io", "--ignore-not-found")
    assert eventually(lambda: metrics_service(cluster) == ("Local", "True"))


@pytest.mark.usefixtures("own_metrics")
def test_chart_with_its_own_metrics_server_can_be_installed(
    cluster: Cluster, namespace: str, helm: Helm, tmp_path: Path
) -> None:
    folder = tmp_path / "metrics-server"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: metrics-server\nversion: 3.0.0\n")
    (folder / "templates/apiservice.yaml").write_text(METRICS.replace("NAMESPACE", "{{ .Release.Namespace }}"))
    helm("install", "metrics-server", str(folder))
    expected = (f"{namespace}/metrics-server", "False")
    assert eventually(lambda: metrics_service(cluster) == expected)
    helm("upgrade", "metrics-server", str(folder))
    assert metrics_service(cluster) == expected
    helm("uninstall", "metrics-server", "--wait", "--timeout", "90s")
    assert eventually(lambda: metrics_service(cluster) == ("Local", "True"))


@pytest.mark.usefixtures("own_metrics")
@pytest.mark.parametrize("command", [("create",), ("apply",), ("apply", "--server-side")])
def test_manifest_of_another_metrics_server_can_be_written(
    cluster: Cluster, namespace: str, command: tuple[str, ...]
) -> None:
    manifest = METRICS.replace("NAMESPACE", namespace)
    cluster.kubectl(*command, "-f", "-", stdin=manifest)
    expected = (f"{namespace}/metrics-server", "False")
    assert eventually(lambda: metrics_service(cluster) == expected)
    assert "v1beta1.metrics.k8s.io" in cluster.kubectl("delete", "-f", "-", stdin=manifest)
    assert eventually(lambda: metrics_service(cluster) == ("Local", "True"))
