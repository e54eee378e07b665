"""One object of every kind: applied, applied again, listed, explained, and deleted.

A process of kubectl does a step for all kinds, where one can; the tests look at what it said of each kind.
"""

import os
import re
from dataclasses import dataclass

import pytest
import yaml
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
    "SELECTOR": "{matchLabels: {only: templates}}",
    "TEMPLATE": "{metadata: {labels: {only: templates}}, spec: {nodeSelector: {no: node}, containers: CONTAINERS}}",
    "CONTAINERS": "[{name: c, image: nginx}]",
    "CLUSTERROLE": "{apiGroup: GROUP, kind: ClusterRole, name: every}",
    "ROLE": "{apiGroup: GROUP, kind: Role, name: every}",
    "GROUP": "rbac.authorization.k8s.io",
}


def manifest(key: str, namespace: str) -> tuple[str, str]:
    """The manifest of the object, and the object as ``kubectl`` names it with ``-o name``."""
    name, _, version = key.partition(" ")
    group = version.partition("/")[0] if "/" in version else ""
    kind = BY_KIND[group, version.rpartition("/")[2], name]
    body = SIMPLE[key].replace("NAMESPACE", namespace)
    for word, text in WORDS.items():
        body = body.replace(word, text)
    own = "things.every.example.com" if name == "CustomResourceDefinition" else "every"
    place = f", namespace: {namespace}" if kind.namespaced else ""
    head = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: {own}{place}, labels: {{every: kind}}}}\n"
    return f"{head}{body}\n", f"{name.lower()}{'.' if group else ''}{group}/{own}"


@dataclass
class Said:
    """What kubectl printed about the objects."""

    names: dict[str, str]
    """The objects by the keys of :data:`SIMPLE`, as ``kubectl`` names them."""
    created: str
    applied_again: str
    wide: str
    listed: str
    as_yaml: str
    explained: dict[str, str]
    described: str


@pytest.fixture(scope="module")
def said(cluster: Cluster) -> Said:
    """The life of the objects, from the first apply to the deletion."""
    namespace = f"every-kind-{os.getpid()}"
    path = f"/api/v1/namespaces/{namespace}"
    built = {key: manifest(key, namespace) for key in SIMPLE}
    text = "---\n".join(manifest for manifest, _ in built.values())
    names = {key: name for key, (_, name) in built.items()}

    def kubectl(*arguments: str, stdin: str = "") -> str:
        done = cluster.run(["kubectl", *arguments, "-n", namespace], stdin=stdin)
        return done.stdout + done.stderr

    def get(form: str) -> str:
        kinds = ",".join(name.partition("/")[0] for name in names.values())
        return kubectl("get", kinds, "-l", "every=kind", "-o", form)

    cluster.api.do("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    try:
        # The objects of the cluster are in no namespace, so there is none to name.
        created, again = (cluster.run(["kubectl", "apply", "-f", "-"], stdin=text) for _ in range(2))
        result = Said(
            names=names,
            created=created.stdout + created.stderr,
            applied_again=again.stdout + again.stderr,
            wide=get("wide"),
            listed=get("name"),
            as_yaml=get("yaml"),
            explained={key: kubectl("explain", name.partition("/")[0]) for key, name in names.items()},
            described=kubectl("describe", *names.values()),
        )
    finally:
        options = ("--timeout=90s", "--grace-period=0", "--force", "--ignore-not-found")
        gone = cluster.run(["kubectl", "delete", "-f", "-", *options], stdin=text)
        cluster.api.ask("DELETE", path)
    assert gone.returncode == 0, gone.stderr

    eventually(lambda: kubectl("get", *names.values()).count("NotFound") == len(names))
    return result


@pytest.mark.parametrize("key", SIMPLE)
def test_an_object_lives_from_apply_to_deletion(said: Said, key: str) -> None:
    name, (kind, _, version) = said.names[key], key.partition(" ")
    assert f"{name} created\n" in said.created
    # A budget's selector is replaced by a client-side apply, whatever it was.
    again = "configured" if kind == "PodDisruptionBudget" else "unchanged"
    assert f"{name} {again}\n" in said.applied_again
    assert name in said.wide.split()
    assert name in said.listed.splitlines()
    items = yaml.load(said.as_yaml, Loader=yaml.CSafeLoader)["items"]
    assert (kind, version, name.partition("/")[2]) in {
        (i["kind"], i["apiVersion"], i["metadata"]["name"]) for i in items
    }
    assert "KIND:" in said.explained[key]


def test_describe_shows_every_object(said: Said) -> None:
    description = re.findall(r"^Name: +(\S+)$", said.described, re.MULTILINE)
    assert sorted(description) == sorted(name.partition("/")[2] for name in said.names.values()), said.described
