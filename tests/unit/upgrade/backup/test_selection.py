"""Which objects are in a backup, and in which form."""

from typing import Any

import pytest

from podwire.errors import ConfigError
from podwire.upgrade.backup import selection
from podwire.upgrade.backup.selection import Reference


def workload(name: str, namespace: str = "kube-system", **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name, "tier": "x"}}, "spec": spec}
    return {"kind": "Deployment", "metadata": {"name": name, "namespace": namespace}, "spec": {"template": template}}


def test_network_workloads_are_known_or_named() -> None:
    items = [workload("coredns"), workload("shop", "default"), workload("controller", "shop"), workload("own")]
    items.append(workload("controller", "metallb-system"))
    chosen = [item["metadata"]["namespace"] + "/" + item["metadata"]["name"]
              for item in selection.network_workloads(items, ["kube-system/own"])]  # fmt: skip
    assert chosen == ["kube-system/coredns", "kube-system/own", "metallb-system/controller"]
    with pytest.raises(ConfigError, match="--workload: 'x/y': expected NAMESPACE/NAME"):
        selection.network_workloads(items, ["x/y"])


def test_every_way_to_read_a_configmap_counts() -> None:
    containers = [{"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "key"}}}, {"name": "B"}]}]
    start = [{"envFrom": [{"configMapRef": {"name": "all"}}, {"secretRef": {"name": "no"}}]}]
    volumes = [
        {"name": "v", "configMap": {"name": "volume"}},
        {"name": "p", "projected": {"sources": [{"configMap": {"name": "projected"}}, {"secret": {"name": "no"}}]}},
    ]
    used = selection.configmaps(workload("a", containers=containers, initContainers=start, volumes=volumes))
    assert [reference.name for reference in used] == ["all", "key", "projected", "volume"]


def test_rights_follow_the_account() -> None:
    subject = {"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}
    mine = {"metadata": {"name": "b"}, "subjects": [subject], "roleRef": {"kind": "ClusterRole", "name": "r"}}
    other = {"metadata": {"name": "c"}, "subjects": [subject | {"name": "x"}], "roleRef": {}}
    account = selection.account(workload("a", serviceAccountName="coredns"))
    assert selection.bindings_of([mine, other], [account]) == [mine]
    assert selection.role_of(mine) == Reference("ClusterRole", "", "r")
    assert selection.bindings_of([mine], [selection.account(workload("a"))]) == []


def test_services_of_dns_are_those_of_its_pods() -> None:
    dns = {"metadata": {"name": "kube-dns", "namespace": "kube-system"},
           "spec": {"ports": [{"port": 53}], "selector": {"app": "coredns"}}}  # fmt: skip
    web = {**dns, "spec": {"ports": [{"port": 80}], "selector": {"app": "coredns"}}}
    bare = {**dns, "spec": {"ports": [{"port": 53}]}}
    assert selection.dns_services([dns, web, bare], [workload("coredns")]) == [dns]


def test_definitions_of_network_programs_by_group() -> None:
    groups = ["crd.projectcalico.org", "podwire.io", "shop.example", "notpodwire.io"]
    items = [{"spec": {"group": group}} for group in groups]
    assert [item["spec"]["group"] for item in selection.network_definitions(items)] == groups[:2]
    versions = [{"name": "v1", "served": True}, {"name": "v2", "served": True, "storage": True}]
    assert selection.served_version({"spec": {"versions": versions}}) == "v2"


def test_a_portable_object_has_nothing_of_its_server() -> None:
    meta = {"name": "a", "uid": "1", "resourceVersion": "5", "annotations": {"deployment.kubernetes.io/revision": "3"}}
    obj = {"kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}, "status": {}}
    assert selection.portable(obj) == {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "b"}}


def test_differing_fields_are_named_by_path() -> None:
    old = {"spec": {"a": 1, "list": [{"x": 1}], "gone": 0}, "same": [1]}
    new = {"spec": {"a": 2, "list": [{"x": 2}]}, "same": [1]}
    assert list(selection.differing(old, new)) == ["spec.a", "spec.gone", "spec.list[0].x"]
