"""One object of every kind: applied, applied again, listed, explained, and deleted."""

import json
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, eventually

from podwire.embedded.apiserver.kinds import BY_KIND

SIMPLE = {
    "ConfigMap v1": "data: {a: b}",
    "Secret v1": "data: {a: Yg==}",
    "ServiceAccount v1": "automountServiceAccountToken: false",
    "Service v1": "spec: {ports: [{port: 80}]}",
    "Endpoints v1": "subsets: [{addresses: [{ip: 192.0.2.1}], ports: [{port: 80, protocol: TCP}]}]",
    "Event v1": "involvedObject: {kind: Pod, name: p, namespace: NAMESPACE}\nreason: Tested\nmessage: m\ntype: Normal",
    "Pod v1": "spec: {containers: [{name: c, image: nginx}]}",
    "EndpointSlice discovery.k8s.io/v1": (
        "addressType: IPv4\nendpoints: [{addresses: [192.0.2.1], conditions: {}}]\n"
        "ports: [{name: '', port: 80, protocol: TCP}]"
    ),
    "Lease coordination.k8s.io/v1": "spec: {holderIdentity: me, leaseDurationSeconds: 15}",
    "Deployment apps/v1": "spec: {replicas: 0, selector: SELECTOR, template: TEMPLATE}",
    "ReplicaSet apps/v1": "spec: {replicas: 0, selector: SELECTOR, template: TEMPLATE}",
    "DaemonSet apps/v1": "spec: {selector: SELECTOR, template: TEMPLATE}",
    "StatefulSet apps/v1": "spec: {serviceName: s, replicas: 0, selector: SELECTOR, template: TEMPLATE}",
    "Job batch/v1": "spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: CONTAINERS}}}",
    "NetworkPolicy networking.k8s.io/v1": "spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}",
    "Ingress networking.k8s.io/v1": "spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}",
    "IngressClass networking.k8s.io/v1": "spec: {controller: example.com/c}",
    "PodDisruptionBudget policy/v1": "spec: {minAvailable: 1, selector: SELECTOR}",
    "Role rbac.authorization.k8s.io/v1": "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]",
    "ClusterRole rbac.authorization.k8s.io/v1": "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]",
    "RoleBinding rbac.authorization.k8s.io/v1": "roleRef: ROLE\nsubjects: [{kind: User, name: u, apiGroup: GROUP}]",
    "ClusterRoleBinding rbac.authorization.k8s.io/v1": (
        "roleRef: CLUSTERROLE\nsubjects: [{kind: User, name: u, apiGroup: GROUP}]"
    ),
    "FlowSchema flowcontrol.apiserver.k8s.io/v1": "spec: {priorityLevelConfiguration: {name: p}}",
    "PriorityLevelConfiguration flowcontrol.apiserver.k8s.io/v1": (
        "spec: {type: Limited, limited: {limitResponse: {type: Reject}}}"
    ),
    "DeviceClass resource.k8s.io/v1": "spec: {selectors: [{cel: {expression: 'true'}}]}",
    "Namespace v1": "spec: {}",
    "Node v1": "spec: {unschedulable: true}",
    "CustomResourceDefinition apiextensions.k8s.io/v1": """spec:
  group: every.example.com
  scope: Namespaced
  names: {plural: things, kind: Thing}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}""",
}
"""The body of an object by kind and version; the words in capitals stand for what several have."""

WORDS = {
    "SELECTOR": "{matchLabels: {every: kind}}",
    "TEMPLATE": "{metadata: {labels: {every: kind}}, spec: {nodeSelector: {no: node}, containers: CONTAINERS}}",
    "CONTAINERS": "[{name: c, image: nginx}]",
    "CLUSTERROLE": "{apiGroup: GROUP, kind: ClusterRole, name: every}",
    "ROLE": "{apiGroup: GROUP, kind: Role, name: every}",
    "GROUP": "rbac.authorization.k8s.io",
}


def manifest(key: str, namespace: str) -> tuple[str, str]:
    """The manifest of the object, and its name for ``kubectl``."""
    name, _, version = key.partition(" ")
    group = version.partition("/")[0] if "/" in version else ""
    kind = BY_KIND[group, version.rpartition("/")[2], name]
    body = SIMPLE[key].replace("NAMESPACE", namespace)
    for word, text in WORDS.items():
        body = body.replace(word, text)
    own = "things.every.example.com" if name == "CustomResourceDefinition" else "every"
    place = f", namespace: {namespace}" if kind.namespaced else ""
    head = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: {own}{place}, labels: {{every: kind}}}}\n"
    return f"{head}{body}\n", f"{kind.resource}/{own}"


@pytest.mark.parametrize("key", SIMPLE)
def test_a_kind(cluster: Cluster, namespace: str, key: str, tmp_path: Path) -> None:
    text, what = manifest(key, namespace)
    (tmp_path / "it.yaml").write_text(text)
    where = ("-f", str(tmp_path / "it.yaml"))
    try:
        assert cluster.kubectl("apply", *where).splitlines()[-1].endswith(" created")
        # A budget's selector is replaced by a client-side apply, whatever it was.
        again = " configured" if "PodDisruptionBudget" in key else " unchanged"
        assert cluster.kubectl("apply", *where).splitlines()[-1].endswith(again)
        assert json.loads(cluster.kubectl("get", what, "-n", namespace, "-o", "json"))["kind"] == key.partition(" ")[0]
        for form in ("wide", "yaml", "name"):
            shown = cluster.kubectl("get", what.partition("/")[0], "-n", namespace, "-l", "every=kind", "-o", form)
            assert "every" in shown
        assert "KIND:" in cluster.kubectl("explain", what.partition("/")[0])
        assert what.partition("/")[2] in cluster.kubectl("describe", what, "-n", namespace)
    finally:
        cluster.kubectl("delete", *where, "--timeout=90s", "--grace-period=0", "--force", "--ignore-not-found")
    eventually(lambda: "NotFound" in cluster.run(["kubectl", "get", what, "-n", namespace]).stderr)
