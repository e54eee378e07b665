"""What a copy gets of the objects of a cluster."""

from typing import Any

import msgspec
import pytest
from tests.cases.upgrade_clusters import inventory, objects

from podwire.upgrade.plan.compose import make_plan
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.versions import parse_target
from podwire.upgrade.rehearsal.objects import CopySettings, RehearsalSource, copied_objects
from podwire.upgrade.rehearsal.settings import roles_of
from podwire.upgrade.rehearsal.workloads import corefile_of, network_workload, own_workload, served_workload

Json = dict[str, Any]
INVENTORY = inventory("kubeadm")
PLAN = make_plan(INVENTORY, Targets(version=parse_target("1.36.1", "--to")))
ROLES = roles_of(PLAN, {})
API = ("10.89.0.1", 6443)


def kubeadm(kind: str, name: str) -> Json:
    return next(item for item in objects("kubeadm") if item["kind"] == kind and item["metadata"]["name"] == name)


def shop(name: str, kind: str = "Deployment", replicas: int = 5, labels: Json | None = None) -> Json:
    containers = [
        {"name": "web", "image": "own.example/web:1", "ports": [{"containerPort": 80}], "command": ["/web"],
         "envFrom": [{"secretRef": {"name": "s"}}]},
    ]  # fmt: skip
    template = {"metadata": {"labels": labels or {"app": name}}, "spec": {"containers": containers}}
    meta = {"name": name, "namespace": "shop"}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": meta,
        "spec": {"replicas": replicas, "template": template},
    }


def service(name: str, namespace: str = "shop", **spec: Any) -> Json:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": {"app": name}, **spec}}


def source(**fields: Any) -> RehearsalSource:
    network = [item for item in objects("kubeadm") if item["kind"] in ("DaemonSet", "Deployment", "ConfigMap")]
    return RehearsalSource(inventory=INVENTORY, plan=PLAN, network=tuple(network), **fields)


def copied(whole: RehearsalSource, most_pods: int = 30) -> dict[tuple[str, str], Json]:
    settings = CopySettings(roles=ROLES, service_cidrs=("10.96.0.0/16",), api=API, most_pods=most_pods)
    made = copied_objects(whole, settings).objects
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in made}


def test_workloads_that_the_plan_changes_keep_what_an_upgrade_sees() -> None:
    made = copied(source())
    proxy, dns = made["DaemonSet", "kube-proxy"]["spec"], made["Deployment", "coredns"]["spec"]
    assert ("DaemonSet", "kube-flannel-ds") not in made, "no step changes it"
    original = kubeadm("Deployment", "coredns")["spec"]
    assert (dns["selector"], dns["strategy"]) == (original["selector"], original["strategy"])
    pod, before = dns["template"]["spec"], original["template"]["spec"]
    assert (pod["tolerations"], pod["affinity"]) == (before["tolerations"], before["affinity"])
    assert pod["volumes"] == before["volumes"] and pod["serviceAccountName"] == "coredns"
    container = pod["containers"][0]
    assert container["args"] == ["dns", "--corefile", "/etc/coredns/Corefile"]
    assert container["readinessProbe"] == before["containers"][0]["readinessProbe"]
    assert not {"livenessProbe", "resources", "securityContext"} & container.keys()
    assert "hostNetwork" not in proxy["template"]["spec"]
    assert set(proxy["template"]["spec"]["containers"][0]) <= {"name", "image", "ports", "volumeMounts"}


def test_a_program_that_the_user_names_keeps_its_arguments() -> None:
    roles = roles_of(PLAN, {"registry.k8s.io/coredns/coredns": ("/usr/bin/coredns",)})
    pod = network_workload(kubeadm("Deployment", "coredns"), roles)["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["-conf", "/etc/coredns/Corefile"]


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["-conf", "/x"], "/x"),
        (["-conf=/y"], "/y"),
        (["--conf", "/z", "-dns.port=53"], "/z"),
        ([], "/etc/coredns/Corefile"),
    ],
)
def test_the_corefile_is_that_of_the_arguments(arguments: list[str], file: str) -> None:
    assert corefile_of(arguments) == file


def test_pods_behind_services_become_stand_ins_as_many_as_fit() -> None:
    workloads = (shop("a"), shop("b", "StatefulSet", 1), shop("c"), shop("lonely"))
    whole = source(workloads=workloads, services=(service("a"), service("b"), service("c")))
    made = copied(whole, most_pods=3)
    assert ("Deployment", "a-deployment") in made and ("Deployment", "b-statefulset") in made
    assert ("Deployment", "c-deployment") not in made and ("Deployment", "lonely-deployment") not in made
    stand_in = made["Deployment", "a-deployment"]["spec"]
    assert stand_in["replicas"] == 2 and stand_in["template"]["metadata"]["labels"] == {"app": "a"}
    assert stand_in["template"]["spec"]["containers"] == [
        {"name": "web", "image": "stand-in", "ports": [{"containerPort": 80}]}
    ]
    settings = CopySettings(roles=ROLES, service_cidrs=(), api=API, most_pods=3)
    assert copied_objects(whole, settings).differences == ("2 of 3 workloads behind Services have stand-ins",)
    assert served_workload(shop("one", replicas=1))["spec"]["replicas"] == 1


def test_services_keep_addresses_of_the_ranges_of_the_copy() -> None:
    services = (
        service("in", clusterIP="10.96.3.4", clusterIPs=["10.96.3.4"], loadBalancerIP="192.0.2.1"),
        service("out", clusterIP="10.120.3.4"), service("headless", clusterIP="None"),
        service("kube-dns", "kube-system", clusterIP="10.96.0.10"), service("kubernetes", "default"),
    )  # fmt: skip
    made = copied(source(services=services))
    assert made["Service", "in"]["spec"] == {"selector": {"app": "in"}, "clusterIP": "10.96.3.4"}
    assert "clusterIP" not in made["Service", "out"]["spec"]
    assert made["Service", "headless"]["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in made["Service", "kube-dns"]["spec"], "the local cluster has one"
    assert ("Service", "kubernetes") not in made
    assert ("Namespace", "shop") in made and ("Namespace", "kube-system") not in made


def test_workloads_of_podwire_get_only_another_api_server() -> None:
    environment = [{"name": "KUBERNETES_SERVICE_HOST", "value": "192.0.2.1"}, {"name": "NODE_NAME", "value": "x"}]
    agent = shop("podwire-agent", "DaemonSet")
    agent["spec"]["template"]["spec"]["containers"][0]["env"] = environment
    agent["spec"]["template"]["spec"]["hostNetwork"] = True
    pod = own_workload(agent, API)["spec"]["template"]["spec"]
    assert pod["hostNetwork"] and pod["containers"][0]["command"] == ["/web"]
    assert pod["containers"][0]["env"] == [
        {"name": "KUBERNETES_SERVICE_HOST", "value": "10.89.0.1"}, {"name": "NODE_NAME", "value": "x"},
    ]  # fmt: skip
    assert environment[0]["value"] == "192.0.2.1", "what was read stays"


def test_policies_come_without_what_the_server_sets() -> None:
    meta = {"name": "deny", "namespace": "shop", "uid": "u", "resourceVersion": "7", "ownerReferences": [{"uid": "o"}]}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": {}}
    made = copied(source(policies=(policy,)))
    assert made["NetworkPolicy", "deny"]["metadata"] == {"name": "deny", "namespace": "shop"}
    whole = msgspec.structs.replace(source(), plan=PLAN)
    assert not whole.has_own_agents
