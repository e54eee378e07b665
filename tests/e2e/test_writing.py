"""kubectl apply, diff, edit, patch, label, annotate, replace, create, delete."""

import json
import stat
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, deployment, eventually

_CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {made-by: test}}
data: {a: "1", b: "2"}
"""


def test_apply_twice_changes_nothing(cluster: Cluster, namespace: str) -> None:
    assert cluster.kubectl_apply(_CONFIG, "-n", namespace) == "configmap/settings created\n"
    first = cluster.get("configmap", "settings", "-n", namespace)
    assert cluster.kubectl_apply(_CONFIG, "-n", namespace) == "configmap/settings unchanged\n"
    assert cluster.get("configmap", "settings", "-n", namespace)["metadata"] == first["metadata"]


def test_apply_removes_fields_that_left_the_manifest(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl_apply(_CONFIG, "-n", namespace)
    cluster.kubectl("patch", "configmap", "settings", "-n", namespace, "--type=merge", "-p", '{"data":{"c":"3"}}')
    assert cluster.kubectl_apply(_CONFIG.replace(', b: "2"', ""), "-n", namespace) == "configmap/settings configured\n"
    assert cluster.get("configmap", "settings", "-n", namespace)["data"] == {"a": "1", "c": "3"}


def test_apply_merges_containers_by_name(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl_apply(deployment("web"), "-n", namespace)
    sidecar = '{"spec":{"template":{"spec":{"containers":[{"name":"extra","image":"redis:7"}]}}}}'
    cluster.kubectl("patch", "deployment", "web", "-n", namespace, "-p", sidecar)
    cluster.kubectl_apply(deployment("web", image="nginx:1.28"), "-n", namespace)
    spec = cluster.get("deployment", "web", "-n", namespace)["spec"]["template"]["spec"]
    assert {c["name"]: c["image"] for c in spec["containers"]} == {"main": "nginx:1.28", "extra": "redis:7"}


def test_server_side_apply_owns_fields_and_conflicts_by_name(cluster: Cluster, namespace: str) -> None:
    def apply(text: str, manager: str, *arguments: str) -> list[str]:
        return ["apply", "--server-side", f"--field-manager={manager}", "-n", namespace, "-f", "-", *arguments]

    cluster.kubectl(*apply(_CONFIG, "one"), stdin=_CONFIG)
    other = _CONFIG.replace('a: "1"', 'a: "9"').replace(', b: "2"', "")
    problem = cluster.refused(*apply(other, "two"), stdin=other)
    assert 'conflict with "one"' in problem and ".data.a" in problem and ".data.b" not in problem
    assert cluster.get("configmap", "settings", "-n", namespace)["data"]["a"] == "1"
    cluster.kubectl(*apply(other, "two", "--force-conflicts"), "--force-conflicts", stdin=other)
    result = json.loads(
        cluster.kubectl("get", "configmap", "settings", "-n", namespace, "-o", "json", "--show-managed-fields")
    )
    assert result["data"] == {"a": "9", "b": "2"}
    owners = {
        entry["manager"]: set(entry["fieldsV1"].get("f:data", {}))
        for entry in result["metadata"]["managedFields"]
        if entry["operation"] == "Apply"
    }
    assert owners == {"one": {"f:b"}, "two": {"f:a"}}
    without = _CONFIG.replace('a: "1", b: "2"', "")
    cluster.kubectl(*apply(without, "one"), stdin=without)
    assert cluster.get("configmap", "settings", "-n", namespace)["data"] == {"a": "9"}


def test_diff_shows_what_apply_would_do_and_does_nothing(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl_apply(_CONFIG, "-n", namespace)
    same = cluster.run(["kubectl", "diff", "-n", namespace, "-f", "-"], stdin=_CONFIG)
    assert (same.returncode, same.stdout) == (0, "")
    changed = cluster.run(["kubectl", "diff", "-n", namespace, "-f", "-"], stdin=_CONFIG.replace('b: "2"', 'b: "5"'))
    assert changed.returncode == 1
    lines = [line for line in changed.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert lines == ['-  b: "2"', '+  b: "5"']
    assert cluster.get("configmap", "settings", "-n", namespace)["data"]["b"] == "2"


def test_dry_run_checks_and_stores_nothing(cluster: Cluster, namespace: str) -> None:
    text = cluster.kubectl_apply(_CONFIG, "-n", namespace, "--dry-run=server")
    assert text == "configmap/settings created (server dry run)\n"
    assert "not found" in cluster.refused("get", "configmap", "settings", "-n", namespace)


def test_edit_goes_through_the_editor(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.kubectl_apply(_CONFIG, "-n", namespace)
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/b: "2"/b: "7"/\' "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    text = cluster.kubectl("edit", "configmap", "settings", "-n", namespace, KUBE_EDITOR=str(editor))
    assert text == "configmap/settings edited\n"
    assert cluster.get("configmap", "settings", "-n", namespace)["data"] == {"a": "1", "b": "7"}


@pytest.mark.parametrize(
    ("kind", "patch", "expected"),
    [
        ("json", '[{"op":"replace","path":"/data/a","value":"x"},{"op":"remove","path":"/data/b"}]', {"a": "x"}),
        ("merge", '{"data":{"a":null,"c":"3"}}', {"b": "2", "c": "3"}),
        ("strategic", '{"data":{"b":null}}', {"a": "1"}),
    ],
)
def test_patches(cluster: Cluster, namespace: str, kind: str, patch: str, expected: dict[str, str]) -> None:
    cluster.kubectl_apply(_CONFIG, "-n", namespace)
    cluster.kubectl("patch", "configmap", "settings", "-n", namespace, f"--type={kind}", "-p", patch)
    assert cluster.get("configmap", "settings", "-n", namespace)["data"] == expected


def test_a_json_patch_whose_test_fails_changes_nothing(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl_apply(_CONFIG, "-n", namespace)
    patch = '[{"op":"test","path":"/data/a","value":"0"},{"op":"remove","path":"/data/b"}]'
    cluster.refused("patch", "configmap", "settings", "-n", namespace, "--type=json", "-p", patch)
    assert cluster.get("configmap", "settings", "-n", namespace)["data"] == {"a": "1", "b": "2"}


def test_label_and_annotate(cluster: Cluster, namespace: str) -> None:
    where = ("configmap", "settings", "-n", namespace)
    cluster.kubectl_apply(_CONFIG, "-n", namespace)
    cluster.kubectl("label", *where, "tier=front")
    assert "--overwrite is false" in cluster.refused("label", *where, "tier=back")
    cluster.kubectl("label", *where, "tier=back", "--overwrite")
    cluster.kubectl("label", *where, "made-by-")
    cluster.kubectl("annotate", *where, "note=hello world")
    meta = cluster.get(*where)["metadata"]
    assert meta["labels"] == {"tier": "back"}
    assert meta["annotations"]["note"] == "hello world"


def test_replace_needs_the_version_that_is_there(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl_apply(_CONFIG, "-n", namespace)
    result = cluster.get("configmap", "settings", "-n", namespace)
    result["data"] = {"only": "this"}
    cluster.kubectl("replace", "-f", "-", stdin=json.dumps(result))
    assert cluster.get("configmap", "settings", "-n", namespace)["data"] == {"only": "this"}
    problem = cluster.refused("replace", "-f", "-", stdin=json.dumps(result))
    assert "the object has been modified" in problem


@pytest.mark.parametrize(
    ("arguments", "kind", "path", "value"),
    [
        (("secret", "generic", "made", "--from-literal=k=v"), "secret", "{.data.k}", "dg=="),
        (("service", "clusterip", "made", "--tcp=80:8080"), "service", "{.spec.ports[0].targetPort}", "8080"),
        (("service", "nodeport", "made", "--tcp=80"), "service", "{.spec.type}", "NodePort"),
        (("deployment", "made", "--image=nginx"), "deployment", "{.spec.replicas}", "1"),
        (("job", "made", "--image=busybox", "--", "true"), "job", "{.spec.completions}", "1"),
        (("serviceaccount", "made"), "serviceaccount", "{.metadata.name}", "made"),
        (("role", "made", "--verb=get", "--resource=pods"), "role", "{.rules[0].verbs[0]}", "get"),
        (("ingress", "made", "--rule=a.example/*=web:80"), "ingress", "{.spec.rules[0].host}", "a.example"),
        (("poddisruptionbudget", "made", "--selector=a=b", "--min-available=1"), "pdb", "{.spec.minAvailable}", "1"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_create_makes_each_kind(
    cluster: Cluster, namespace: str, arguments: tuple[str, ...], kind: str, path: str, value: str
) -> None:
    before = list(arguments)
    at = before.index("--") if "--" in before else len(before)
    cluster.kubectl("create", *before[:at], "-n", namespace, *before[at:])
    assert cluster.kubectl("get", kind, "made", "-n", namespace, "-o", f"jsonpath={path}") == value


def test_wrong_manifests_are_refused_by_field(cluster: Cluster, namespace: str) -> None:
    unknown = deployment("web").replace("replicas: 1", "replicaz: 1")
    assert 'unknown field "spec.replicaz"' in cluster.refused("apply", "-n", namespace, "-f", "-", stdin=unknown)
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: Web_1}\nspec: {ports: [{port: 99999}]}\n"
    problem = cluster.refused("apply", "-n", namespace, "-f", "-", stdin=service)
    assert "metadata.name" in problem and "spec.ports[0].port" in problem and "Invalid value" in problem
    other = deployment("web").replace("matchLabels: {app: web}", "matchLabels: {app: other}")
    assert "`selector` does not match template `labels`" in cluster.refused(
        "apply", "-n", namespace, "-f", "-", stdin=other
    )
    kind = "apiVersion: example.com/v1\nkind: Nothing\nmetadata: {name: a}\n"
    assert "no matches for kind" in cluster.refused("apply", "-n", namespace, "-f", "-", stdin=kind)
    assert "error parsing" in cluster.refused("apply", "-n", namespace, "-f", "-", stdin="a: [1\nb: {")
    assert cluster.kubectl("get", "deployment,service", "-n", namespace, "-o", "name") == ""


def test_immutable_fields_are_kept(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl_apply(deployment("web"), "-n", namespace)
    patch = '{"spec":{"selector":{"matchLabels":{"app":"x"}}}}'
    assert "field is immutable" in cluster.refused("patch", "deployment", "web", "-n", namespace, "-p", patch)


def _owned(cluster: Cluster, namespace: str) -> set[str]:
    return {
        line.split("/")[0] for line in cluster.kubectl("get", "replicaset,pod", "-n", namespace, "-o", "name").split()
    }


@pytest.mark.parametrize(
    ("cascade", "left"),
    [("background", set()), ("foreground", set()), ("orphan", {"replicaset.apps", "pod"})],
)
def test_delete_cascades_by_its_option(cluster: Cluster, namespace: str, cascade: str, left: set[str]) -> None:
    cluster.kubectl_apply(deployment("web"), "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=90s")
    cluster.kubectl("delete", "deployment", "web", "-n", namespace, f"--cascade={cascade}", "--timeout=90s")
    assert "not found" in cluster.refused("get", "deployment", "web", "-n", namespace)
    if cascade == "foreground":
        assert "replicaset.apps" not in _owned(cluster, namespace)
    eventually(lambda: _owned(cluster, namespace) == left)
    if left:
        result = cluster.get("replicaset", "-n", namespace)["items"][0]
        assert "ownerReferences" not in result["metadata"]


def test_a_namespace_takes_everything_with_it(cluster: Cluster) -> None:
    name = "doomed"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl_apply(deployment("web"), "-n", name)
    cluster.kubectl_apply(_CONFIG, "-n", name)
    cluster.kubectl("delete", "namespace", name, "--timeout=90s")
    assert "not found" in cluster.refused("get", "namespace", name)
    cluster.kubectl("create", "namespace", name)
    assert cluster.kubectl("get", "deployment,pod", "-n", name, "-o", "name") == ""
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def test_a_finalizer_holds_an_object_until_it_is_gone(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl_apply(_CONFIG.replace("labels:", "finalizers: [example.com/hold], labels:"), "-n", namespace)
    cluster.kubectl("delete", "configmap", "settings", "-n", namespace, "--wait=false")
    assert cluster.get("configmap", "settings", "-n", namespace)["metadata"]["deletionTimestamp"]
    patch = '{"metadata":{"finalizers":null}}'
    cluster.kubectl("patch", "configmap", "settings", "-n", namespace, "--type=merge", "-p", patch)
    assert "not found" in cluster.refused("get", "configmap", "settings", "-n", namespace)


def test_generated_names_differ(cluster: Cluster, namespace: str) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: some-}\n"
    names = {cluster.kubectl("create", "-n", namespace, "-f", "-", "-o", "name", stdin=text) for _ in range(3)}
    assert len(names) == 3 and all(name.startswith("configmap/some-") for name in names)


def test_service_addresses_are_given_and_guarded(cluster: Cluster, namespace: str) -> None:
    text = "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ports: [{port: 80}], clusterIP: %s}\n"
    cluster.kubectl_apply(text % ("one", '""'), "-n", namespace)
    value = cluster.get("service", "one", "-n", namespace)["spec"]["clusterIP"]
    assert value.startswith("10.96.")
    assert "already allocated" in cluster.refused("apply", "-n", namespace, "-f", "-", stdin=text % ("two", value))
    assert "not in the valid range" in cluster.refused(
        "apply", "-n", namespace, "-f", "-", stdin=text % ("two", "192.0.2.1")
    )
    cluster.kubectl("delete", "service", "one", "-n", namespace)
    cluster.kubectl_apply(text % ("two", value), "-n", namespace)
    assert cluster.get("service", "two", "-n", namespace)["spec"]["clusterIP"] == value


_CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kites.e2e.example.com}
spec:
  group: e2e.example.com
  scope: Namespaced
  names: {plural: kites, singular: kite, kind: Kite, shortNames: [kt]}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      additionalPrinterColumns:
        - {name: Length, type: integer, jsonPath: .spec.length}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              required: [length]
              properties:
                length: {type: integer, minimum: 1}
                colour: {type: string, default: red}
            status:
              type: object
              properties: {height: {type: integer}}
"""


def test_custom_resources(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl_apply(_CRD)
    try:
        cluster.kubectl("wait", "--for=condition=Established", "crd/kites.e2e.example.com", "--timeout=90s")
        kite = "apiVersion: e2e.example.com/v1\nkind: Kite\nmetadata: {name: k}\nspec: {length: %s}\n"
        eventually(lambda: "kites" in cluster.kubectl("api-resources", "--api-group=e2e.example.com"))
        assert "spec.length" in cluster.refused("apply", "-n", namespace, "-f", "-", stdin=kite % "0")
        cluster.kubectl_apply(kite % "5", "-n", namespace)
        rows = [line.split() for line in cluster.kubectl("get", "kt", "-n", namespace).splitlines()]
        assert rows[0] == ["NAME", "LENGTH"] and rows[1] == ["k", "5"]
        assert cluster.kubectl("get", "kite", "k", "-n", namespace, "-o", "jsonpath={.spec.colour}") == "red"
        patch = ("--type=merge", "-p", '{"status":{"height":9}}')
        cluster.kubectl("patch", "kite", "k", "-n", namespace, *patch)
        assert cluster.kubectl("get", "kite", "k", "-n", namespace, "-o", "jsonpath={.status.height}") == ""
        cluster.kubectl("patch", "kite", "k", "-n", namespace, "--subresource=status", *patch)
        assert cluster.kubectl("get", "kite", "k", "-n", namespace, "-o", "jsonpath={.status.height}") == "9"
        assert "length" in cluster.kubectl("explain", "kite.spec")
    finally:
        cluster.kubectl("delete", "crd", "kites.e2e.example.com", "--timeout=90s")
    eventually(lambda: cluster.run(["kubectl", "get", "kites", "-n", namespace]).returncode != 0)


def test_empty_slice_shows_its_lists_as_null(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "service", "clusterip", "lonely", "--tcp=80", "-n", namespace)
    arguments = ("get", "endpointslice", "-l", "kubernetes.io/service-name=lonely", "-n", namespace, "-o", "json")
    result = eventually(lambda: json.loads(cluster.kubectl(*arguments))["items"])
    assert [(item["endpoints"], item["ports"]) for item in result] == [(None, None)] * len(result)
