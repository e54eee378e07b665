import pytest
from tests.cases.upgrade_clusters import Json, changed, cluster, inventory, inventory_of, node, pod

from podwire.upgrade.inventory.components import Components, api_servers, find_components
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.inventory.layout import recognize


def components(present: Inventory) -> Components:
    return find_components(present, recognize(present))


LAYOUTS = {
    "kubeadm": ("flannel", "flannel 0.26.1, kube-apiserver 1.35.2, kube-proxy 1.35.2, coredns 1.13.1", {"cluster"}),
    "k3s": ("flannel", "coredns 1.12.1", {"distribution"}),
    "eks": (
        "aws-node",
        "aws-node 1.20.3, kube-proxy 1.34.1-eksbuild.2, coredns 1.12.3-eksbuild.1",
        {"cluster", "cloud"},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_and_components_are_recognized(layout: str) -> None:
    present = inventory(layout)
    assert recognize(present).name == layout
    result = components(present)
    network, expected, owners = LAYOUTS[layout]
    assert result.network == network
    assert ", ".join(f"{c.name} {c.version}" for c in result.components) == expected
    assert {c.owner for c in result.components} == owners
    assert result.findings == ()


@pytest.mark.parametrize(
    ("version", "labels", "layout"),
    [
        ("v1.34.2+rke2r1", {}, "rke2"),
        ("v1.34.1-gke.1234", {}, "gke"),
        ("v1.34.1", {"kubernetes.azure.com/cluster": "MC_x"}, "aks"),
        ("v1.36.0+podwire", {}, "podwire"),
        ("v1.36.0", {}, "plain"),
    ],
)
def test_further_layouts_are_recognized(version: str, labels: dict[str, str], layout: str) -> None:
    assert recognize(inventory_of([node("a", version, labels=labels)], version)).name == layout


def workload(kind: str, name: str, image: str) -> Json:
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "net"}, "spec": spec}


@pytest.mark.parametrize(
    ("kind", "name", "image", "component"),
    [
        ("DaemonSet", "calico-node", "quay.io/calico/node:v3.30.2", "calico-node"),
        ("DaemonSet", "renamed", "mirror.example:5000/hub/calico/node:v3.30.2", "calico-node"),
        ("DaemonSet", "cilium", "quay.io/cilium/cilium:v1.18.1@sha256:" + "0" * 64, "cilium"),
        ("DaemonSet", "podwire-agent", "podwire:0.1.0", "podwire-agent"),
        ("Deployment", "dns", "coredns/coredns:1.12.1", "coredns"),
        ("Deployment", "controller", "registry.k8s.io/ingress-nginx/controller:v1.12.1", "ingress-nginx"),
        ("Deployment", "web", "nginx:1.29", ""),
        ("Deployment", "web", "quay.io/example/calico-node-exporter:v1", ""),
    ],
)
def test_workload_is_known_by_name_or_image(kind: str, name: str, image: str, component: str) -> None:
    result = components(inventory_of([workload(kind, name, image)], "v1.36.0"))
    assert [c.name for c in result.components] == ([component] if component else [])


def test_wrong_image_is_reported_and_left_out() -> None:
    result = components(inventory_of([workload("DaemonSet", "kube-proxy", "No Image:!")], "v1.36.0"))
    assert result.components[0].images == ()
    assert "spec.template.spec.containers[main].image: expected an image" in str(result.findings[0])


def test_every_api_server_tells_its_version() -> None:
    items = [item for item in cluster("kubeadm") if item["metadata"]["name"] != "kube-apiserver-control-1"]
    image = "registry.k8s.io/kube-apiserver:v1.34.7"
    items.append(pod("kube-apiserver-control-1", "control-1", image, {"component": "kube-apiserver"}))
    listed = {name: str(version) for name, version in api_servers(inventory_of(items, "v1.35.2"))}
    assert listed == {
        "Pod kube-system/kube-apiserver-control-1": "1.34.7",
        "Pod kube-system/kube-apiserver-control-2": "1.35.2",
        "Pod kube-system/kube-apiserver-control-3": "1.35.2",
        "/version": "1.35.2",
    }


def test_static_pods_of_kube_proxy_are_one_component() -> None:
    labels = {"component": "kube-proxy"}
    items = [pod(f"kube-proxy-n{n}", f"n{n}", f"rancher/kube-proxy:v1.34.{n}", labels) for n in range(2)]
    result = components(inventory_of(items, "v1.34.2+rke2r1")).component("kube-proxy")
    assert result is not None
    assert (result.kind, result.version, result.replicas, result.owner) == ("StaticPod", "1.34.0", 2, "distribution")


def test_generation_and_strategy_are_read() -> None:
    patch = {"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}}
    result = components(changed("kubeadm", "DaemonSet", "kube-proxy", patch)).component("kube-proxy")
    assert result is not None
    assert (result.update_strategy, result.generation, result.max_unavailable) == ("OnDelete", 1, "")
