"""Who reaches whom in the shop, with real packets."""

import pytest

from podwire.testing.cluster import Cluster

MONITORING = """
apiVersion: v1
kind: Namespace
metadata: {name: monitoring, labels: {team: monitoring}}
---
apiVersion: v1
kind: Pod
metadata: {name: prometheus, namespace: monitoring}
spec:
  containers: [{name: prometheus, image: prom/prometheus, ports: [{containerPort: 9090}]}]
"""


@pytest.mark.parametrize(
    ("source", "target"),
    [("shop/web", "api:http"), ("shop/api", "db:sql"), ("shop/api", "external:443")],
)
def test_each_does_what_it_is_for(shop: Cluster, source: str, target: str) -> None:
    assert shop.pod(source).reaches(target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("shop/web", "db:sql"),
        ("shop/web", "api:metrics"),
        ("shop/web", "external:443"),
        ("shop/api", "external:80"),
        ("shop/api", "10.1.2.3:443"),
        ("shop/db", "shop/api:http"),
        ("shop/db", "203.0.113.7:53/UDP"),
    ],
)
def test_and_nothing_else(shop: Cluster, source: str, target: str) -> None:
    assert shop.pod(source).reaches(target).denied


def test_customers_come_in_by_every_node(shop: Cluster) -> None:
    assert shop.outside.reaches("svc/shop/web:http")


def test_metrics_are_for_monitoring_alone(shop: Cluster, podwire_cluster: Cluster) -> None:
    podwire_cluster.apply(MONITORING)
    prometheus = podwire_cluster.pod("monitoring/prometheus")
    assert prometheus.reaches("shop/api:metrics")
    assert not prometheus.reaches("shop/api:http")
