"""What the API refuses, with Kubernetes' words."""

from copy import deepcopy
from typing import Any

import pytest

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.defaults import objects as defaults
from podwire.embedded.apiserver.kinds import BY_KIND, ResourceKind
from podwire.embedded.apiserver.validate import objects


def kind_of(obj: dict[str, Any]) -> ResourceKind:
    group, _, version = obj["apiVersion"].rpartition("/")
    return BY_KIND[group, version, obj["kind"]]


def make(api_version: str, kind: str, name: str = "x", **body: Any) -> dict[str, Any]:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **deepcopy(body)}
    return defaults.apply(kind_of(obj), obj)


def texts(new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in objects.check(kind_of(new), new, old)]


def pod(**spec: Any) -> dict[str, Any]:
    spec.setdefault("containers", [{"name": "c", "image": "i"}])
    return make("v1", "Pod", spec=spec)


def box(**rest: Any) -> dict[str, Any]:
    return {"name": "c", "image": "i", **rest}


def deployment(**spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [box()]}}
    return make("apps/v1", "Deployment", spec={"selector": {"matchLabels": {"app": "w"}}, "template": template, **spec})


def service(**spec: Any) -> dict[str, Any]:
    spec.setdefault("ports", [{"port": 80}])
    return make("v1", "Service", spec=spec)


def policy(**spec: Any) -> dict[str, Any]:
    return make("networking.k8s.io/v1", "NetworkPolicy", spec=spec)


def ingress(path: dict[str, Any], host: str = "a.b") -> dict[str, Any]:
    backend = {"service": {"name": "s", "port": {"number": 80}}}
    http = {"paths": [{"backend": backend, **path}]}
    return make("networking.k8s.io/v1", "Ingress", spec={"rules": [{"host": host, "http": http}]})


RBAC = "rbac.authorization.k8s.io"


def binding(*subjects: dict[str, Any], kind: str = "RoleBinding", role: str = "ClusterRole") -> dict[str, Any]:
    return make(f"{RBAC}/v1", kind, roleRef={"kind": role, "name": "view"}, subjects=list(subjects))


GOOD = [
    pod(), deployment(), service(), policy(), ingress({"path": "/", "pathType": "Prefix"}),
    make("v1", "Namespace", "n"), make("v1", "ConfigMap", data={"a.b": "1"}),
    make("v1", "Secret", stringData={"k": "v"}),
    make(f"{RBAC}/v1", "ClusterRole", "system:node", rules=[]),
    binding({"kind": "User", "name": "ann"}, {"kind": "Group", "name": "team"}),
    binding({"kind": "User", "name": "ann"}, kind="ClusterRoleBinding"),
    binding({"kind": "ServiceAccount", "name": "web"}, role="Role"),
    binding({"kind": "ServiceAccount", "name": "web", "namespace": "shop"}, kind="ClusterRoleBinding"),
    make("discovery.k8s.io/v1", "EndpointSlice", addressType="IPv4", endpoints=[{"addresses": ["10.0.0.1"]}]),
    make("batch/v1", "Job", spec={"template": {"spec": {"restartPolicy": "Never", "containers": [box()]}}}),
    make("batch/v1", "CronJob", spec={"schedule": "*/5 * * * *", "jobTemplate": {"spec": {
        "template": {"spec": {"restartPolicy": "Never", "containers": [box()]}}}}}),
    make("apps/v1", "StatefulSet", spec={"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [box()]}}}),
    make("policy/v1", "PodDisruptionBudget", spec={"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}),
    service(type="ExternalName", externalName="example.org", ports=[]),
    service(clusterIP="None", ports=[]),
    policy(egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
                    "ports": [{"port": 80, "endPort": 90}]}]),
]  # fmt: skip


@pytest.mark.parametrize("obj", GOOD, ids=lambda obj: obj["kind"])
def test_good(obj: dict[str, Any]) -> None:
    assert texts(obj) == []
    assert texts(obj, deepcopy(obj)) == []


SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
BAD: list[tuple[dict[str, Any], list[str]]] = [
    (make("v1", "ConfigMap", "Bad_Name"), [f'metadata.name: Invalid value: "Bad_Name": {SUBDOMAIN}']),
    (make("v1", "ConfigMap", ""), ["metadata.name: Required value: name or generateName is required"]),
    (pod(containers=[]), ["spec.containers: Required value"]),
    (pod(containers=[{"name": "c"}]), ["spec.containers[0].image: Required value"]),
    (pod(containers=[box(), box()]), ['spec.containers[1].name: Duplicate value: "c"']),
    (pod(containers=[box(ports=[{"containerPort": 0}])]),
     ["spec.containers[0].ports[0].containerPort: Required value"]),
    (pod(containers=[box(ports=[{"containerPort": 70000}])]),
     ["spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"]),
    (pod(containers=[box(ports=[{"containerPort": 80, "protocol": "XYZ"}])]),
     ['spec.containers[0].ports[0].protocol: Unsupported value: "XYZ": supported values: "SCTP", "TCP", "UDP"']),
    (pod(containers=[box(volumeMounts=[{"name": "v", "mountPath": "/v"}])]),
     ['spec.containers[0].volumeMounts[0].name: Not found: "v"']),
    (pod(containers=[box(readinessProbe={"periodSeconds": 1})]),
     ["spec.containers[0].readinessProbe: Required value: must specify a handler type"]),
    (pod(containers=[box(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}})]),
     ['spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1']),
    (pod(volumes=[{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}, "configMap": {"name": "c"}}]}}]),
     ["spec.volumes[0].projected.sources[0]: Forbidden: may not specify more than 1 volume type per source"]),
    (pod(restartPolicy="Sometimes"),
     ['spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure"']),
    (deployment(selector={"matchLabels": {"app": "other"}}),
     ['spec.template.metadata.labels: Invalid value: {"app":"w"}: `selector` does not match template `labels`']),
    (deployment(selector=None), ["spec.selector: Required value"]),
    (deployment(replicas=-1), ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    (service(ports=[]), ["spec.ports: Required value"]),
    (service(ports=[{"port": 80}, {"port": 81}]),
     ["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"]),
    (service(ports=[{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]),
     ['spec.ports[1]: Duplicate value: {"protocol":"TCP","port":80}']),
    (service(type="NodePort", ports=[{"port": 80, "name": "a", "nodePort": 30000},
                                     {"port": 81, "name": "b", "nodePort": 30000},
                                     {"port": 81, "name": "c", "nodePort": 30000, "protocol": "UDP"}]),
     ["spec.ports[1].nodePort: Duplicate value: 30000"]),
    (service(ports=[{}]), ["spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"]),
    (service(ports=[{"port": 80, "nodePort": 30000}]),
     ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"]),
    (service(type="Nope"),
     ['spec.type: Unsupported value: "Nope": supported values: "ClusterIP", "ExternalName", '
      '"LoadBalancer", "NodePort"']),
    (service(type="NodePort", clusterIP="None"),
     ['spec.clusterIPs[0]: Invalid value: "None": may not be set to \'None\' for NodePort services']),
    (service(type="ExternalName", ports=[]), ["spec.externalName: Required value"]),
    (policy(ingress=[{"from": [{}]}]), ["spec.ingress[0].from[0]: Required value: must specify a peer"]),
    (policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/16", "except": ["10.0.0.0/8"]}}]}]),
     ['spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: "10.0.0.0/8": must be a strict subset of `cidr`']),
    (policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/16"}, "podSelector": {}}]}]),
     ["spec.ingress[0].from[0]: Forbidden: may not specify both ipBlock and another peer"]),
    (policy(ingress=[{"ports": [{"port": 80, "endPort": 79}]}]),
     ["spec.ingress[0].ports[0].endPort: Invalid value: 79: must be greater than or equal to `port`"]),
    (policy(ingress=[{"ports": [{"port": "http", "endPort": 79}]}]),
     ["spec.ingress[0].ports[0].endPort: Invalid value: 79: may not be specified when `port` is non-numeric"]),
    (ingress({"path": "/"}),
     ["spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified"]),
    (ingress({"path": "x", "pathType": "Prefix"}),
     ['spec.rules[0].http.paths[0].path: Invalid value: "x": must be an absolute path']),
    (ingress({"path": "/", "pathType": "Prefix"}, "10.0.0.1"),
     ['spec.rules[0].host: Invalid value: "10.0.0.1": must be a DNS name, not an IP address']),
    (make("networking.k8s.io/v1", "Ingress", spec={}),
     ["spec: Invalid value: []: either `defaultBackend` or `rules` must be specified"]),
    (make("discovery.k8s.io/v1", "EndpointSlice", endpoints=[]), ["addressType: Required value"]),
    (make("discovery.k8s.io/v1", "EndpointSlice", addressType="IPv4", endpoints=[{"addresses": ["::1"]}]),
     ['endpoints[0].addresses[0]: Invalid value: "::1": must be a valid IPv4 address']),
    (make("v1", "Secret", type="kubernetes.io/tls", data={"tls.crt": ""}), ["data[tls.key]: Required value"]),
    (binding({"kind": "User", "name": ""}),
     ["subjects[0].name: Required value", 'subjects[0].name: Invalid value: "": user name cannot be empty']),
    (binding({"kind": "User", "name": "ann", "apiGroup": "x"}),
     ['subjects[0].apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io"']),
    (binding({"kind": "Robot", "name": "r"}),
     ['subjects[0].kind: Unsupported value: "Robot": supported values: "Group", "ServiceAccount", "User"']),
    (binding({"kind": "ServiceAccount", "name": "web"}, kind="ClusterRoleBinding"),
     ["subjects[0].namespace: Required value"]),
    (binding(kind="ClusterRoleBinding", role="Role"),
     ['roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"']),
    (make(f"{RBAC}/v1", "ClusterRole", rules=[{"verbs": ["get"], "nonResourceURLs": ["/a"], "resources": ["pods"]}]),
     ['rules[0].nonResourceURLs: Invalid value: ["/a"]: rules cannot apply to both regular resources and '
      'non-resource URLs']),
    (make(f"{RBAC}/v1", "ClusterRole", aggregationRule={}),
     ["aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if "
      "aggregationRule is non-nil"]),
    (make(f"{RBAC}/v1", "ClusterRole", aggregationRule={"clusterRoleSelectors": [{"matchExpressions": [
        {"key": "a", "operator": "Nope"}]}]}),
     ['aggregationRule.clusterRoleSelectors[0].matchExpressions[0].operator: Invalid value: "Nope": not a valid '
      "selector operator"]),
    (make("batch/v1", "Job", spec={"template": {"spec": {"containers": [box()]}}}),
     ['spec.template.spec.restartPolicy: Unsupported value: "Always": supported values: "Never", "OnFailure"']),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "want"), BAD)
def test_bad(obj: dict[str, Any], want: list[str]) -> None:
    assert texts(obj) == want


CHANGES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (deployment(), deployment(replicas=4), []),
    (
        deployment(),
        deployment(
            selector={"matchLabels": {"b": "c"}},
            template={"metadata": {"labels": {"b": "c"}}, "spec": {"containers": [box()]}},
        ),
        ['spec.selector: Invalid value: {"matchLabels":{"b":"c"}}: field is immutable'],
    ),
    (pod(), pod(containers=[box(image="other")]), []),
    (pod(), pod(nodeName="node-1"), []),
    (make("v1", "Secret"), make("v1", "Secret", type="a/b"), ['type: Invalid value: "a/b": field is immutable']),
    (
        make("v1", "ConfigMap", data={"a": "1"}, immutable=True),
        make("v1", "ConfigMap", data={"a": "2"}, immutable=True),
        ["data: Forbidden: field is immutable when `immutable` is set"],
    ),
    (
        service(clusterIP="10.96.0.5", clusterIPs=["10.96.0.5"]),
        service(clusterIP="10.96.0.6", clusterIPs=["10.96.0.6"]),
        ['spec.clusterIPs[0]: Invalid value: ["10.96.0.6"]: may not change once set'],
    ),
]


@pytest.mark.parametrize(("old", "new", "want"), CHANGES)
def test_changes(old: dict[str, Any], new: dict[str, Any], want: list[str]) -> None:
    assert texts(new, old) == want


def test_a_pod_keeps_its_containers() -> None:
    result = texts(pod(containers=[box(command=["x"])]), pod())
    assert len(result) == 1
    assert result[0].startswith("spec: Forbidden: pod updates may not change fields other than")


def test_the_whole_message() -> None:
    bad = service(ports=[{"port": 70000, "targetPort": 80}])
    failure = failures.invalid(kind_of(bad), "x", objects.check(kind_of(bad), bad, None))
    assert failure.message == (
        'Service "x" is invalid: spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive'
    )
    assert failure.details["causes"][0]["reason"] == "FieldValueInvalid"
