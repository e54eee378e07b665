"""Objects of the chart: what a manifest may have, their order, what an apply changes, when a workload is ready."""

from typing import Any

import pytest

from podwire.errors import ConfigError
from podwire.install import objects
from podwire.install.objects import difference, parse, resource_of, title, unready


def obj(kind: str, version: str = "v1", name: str = "a", namespace: str = "kube-system", **more: Any) -> dict[str, Any]:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": meta, **more}


def test_objects_come_in_the_order_of_their_dependencies() -> None:
    documents = [
        obj("DaemonSet", "apps/v1"),
        None,
        obj("ConfigMap"),
        obj("CustomResourceDefinition", "apiextensions.k8s.io/v1", namespace=""),
    ]
    objects = parse(documents, "file")
    assert [title(item) for item in objects] == [
        "CustomResourceDefinition a",
        "ConfigMap kube-system/a",
        "DaemonSet kube-system/a",
    ]
    path = resource_of(objects[2]).path("kube-system", "a")
    assert path == "/apis/apps/v1/namespaces/kube-system/daemonsets/a"


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ([], "file: expected objects of the chart"),
        (["text"], "file: document 1: expected an object of the API"),
        ([obj("Pod")], "file: document 1: Pod of v1: expected an object of the chart"),
        ([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}], r"document 1\.metadata\.name: expected a name"),
    ],
)
def test_other_documents_are_refused(documents: list[Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(documents, "file")


def test_an_apply_creates_changes_or_leaves() -> None:
    before = obj("ConfigMap", data={"a": "1"})
    same = obj("ConfigMap", data={"a": "1"}, status={})
    same["metadata"] |= {"managedFields": [], "resourceVersion": "7", "generation": 2}
    assert difference(None, before) == "create"
    assert difference(before, same) == "leave"
    assert difference(before, obj("ConfigMap", data={"a": "2"})) == "change"


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("DaemonSet", {}, "not seen by its controller yet"),
        ("DaemonSet", {"observedGeneration": 1, "desiredNumberScheduled": 2}, "0 of 2 pods are new"),
        (
            "DaemonSet",
            {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 1},
            "1 of 2 pods are ready",
        ),
        (
            "DaemonSet",
            {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 2},
            "",
        ),
        (
            "Deployment",
            {"observedGeneration": 1, "updatedReplicas": 2, "availableReplicas": 1},
            "1 of 2 pods are ready",
        ),
        ("Deployment", {"observedGeneration": 1, "updatedReplicas": 2, "availableReplicas": 2}, ""),
    ],
)
def test_a_workload_is_ready(kind: str, status: dict[str, int], expected: str) -> None:
    workload = obj(kind, "apps/v1", spec={"replicas": 2}, status=status)
    workload["metadata"]["generation"] = 1
    assert unready(workload) == expected


def _managed(name: str, *managers: str, **labels: str) -> dict[str, Any]:
    fields = [{"manager": manager, "operation": "Apply"} for manager in managers]
    return {"metadata": {"name": name, "managedFields": fields, "labels": labels}}


@pytest.mark.parametrize(
    ("managers", "expected"),
    [(("podwire-install",), True), (("podwire-install", "kubectl"), True), (("kubectl",), False), ((), False),
     (("podwire-install", "helm"), False)],
)  # fmt: skip
def test_objects_of_an_install_are_known_by_their_manager(managers: tuple[str, ...], expected: bool) -> None:
    assert objects.is_installed(_managed("podwire-agent", *managers)) is expected


def test_objects_that_programs_wrote_are_told_from_others() -> None:
    assert objects.is_written_at_work(_managed("podwire-controller", "podwire-controller"))
    assert objects.is_written_at_work(_managed("report-1", "podwire-agent", **{"podwire.io/report": "n1"}))
    assert not objects.is_written_at_work(_managed("kube-root-ca.crt", "podwire-controller"))
    assert not objects.is_written_at_work(_managed("podwire-mine", "kubectl-create"))
    assert not objects.is_written_at_work(_managed("podwire-shared", "podwire-agent", "kubectl-edit"))
    assert not objects.is_written_at_work({"metadata": {"name": "podwire-old"}})


def test_workloads_are_removed_first_and_definitions_last() -> None:
    kinds = [resource.kind for resource in objects.resources()]
    assert kinds[:2] == ["DaemonSet", "Deployment"] and kinds[-1] == "CustomResourceDefinition"
