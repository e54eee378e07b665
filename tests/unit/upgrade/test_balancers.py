"""Which classes of load balancers and Ingresses podwire serves."""

import asyncio
from typing import cast

import pytest
from tests.fakes.upgrade_cluster import UpgradeCluster

from podwire.kube.client import Client
from podwire.upgrade.balancers import ANY_CLASS, ServedClasses, balancer_class, own_classes

SERVED = "controller: {parts: [policystatus, loadbalancer], loadBalancerClass: example.com/own}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SERVED, "example.com/own"),
        ("controller: {parts: [loadbalancer]}", ""),
        ("controller: {parts: [policystatus]}", None),
        ("", None),
        ("controller: [", None),
        ("- loadbalancer", None),
    ],
)
def test_the_class_is_that_of_the_controllers_configuration(text: str, expected: str | None) -> None:
    assert balancer_class(text) == expected


def test_a_cluster_without_podwires_controller_has_no_class() -> None:
    cluster = UpgradeCluster("a")
    assert served(cluster) == ServedClasses()
    cluster.put("ConfigMap", "kube-system", "podwire-controller", {"data": {"controller.yaml": SERVED}})
    assert served(cluster).balancer == "example.com/own"


def test_a_local_cluster_serves_its_default_classes_itself() -> None:
    cluster = UpgradeCluster("a")
    cluster.version = "v1.36.0+podwire"
    assert served(cluster, installed=False) == ANY_CLASS
    assert served(cluster, installed=True) == ServedClasses()


def served(cluster: UpgradeCluster, *, installed: bool = False) -> ServedClasses:
    return asyncio.run(own_classes(cast("Client", cluster), "kube-system", installed=installed))
