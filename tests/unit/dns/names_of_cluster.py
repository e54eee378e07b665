"""A small cluster for tests of the DNS server: two namespaces, a few Services, and a pod."""

from podwire.dns.zone import Zone
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod, PodStatus
from podwire.model.service import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)

POD = "10.244.1.7"
"""The address of the pod ``shop/client``."""


def fill_cluster(zone: Zone) -> None:
    """Puts the objects into a zone, which then counts as complete."""
    http = (ServicePort(name="http", port=80),)
    web = ServiceSpec(cluster_ip="10.96.0.1", cluster_ips=("10.96.0.1",), ports=http, external_ips=("203.0.113.1",))
    ingress = LoadBalancerStatus(ingress=(LoadBalancerIngress(hostname="lb.example.net"),))
    lists: tuple[tuple[str, ServiceSpec, ServiceStatus], ...] = (
        ("web", web, ServiceStatus()),
        ("db", ServiceSpec(cluster_ip="None"), ServiceStatus()),
        ("out", ServiceSpec(type="ExternalName", external_name="www.example.com"), ServiceStatus()),
        ("lb", ServiceSpec(cluster_ip="10.96.0.2", ports=http), ServiceStatus(load_balancer=ingress)),
    )
    for name, spec, status in lists:
        meta = ObjectMeta(name=name, namespace="shop")
        zone.index.set_service(f"shop/{name}", Service(metadata=meta, spec=spec, status=status), 7)
    labels = {"kubernetes.io/service-name": "db"}
    endpoints = EndpointSlice(
        metadata=ObjectMeta(name="db-1", namespace="shop", labels=labels),
        address_type="IPv4",
        endpoints=(Endpoint(addresses=("10.244.1.20",), hostname="db-0"), Endpoint(addresses=("10.244.1.21",))),
        ports=(EndpointPort(name="sql", port=5432),),
    )
    zone.index.set_slice("shop/db-1", endpoints, 7)
    pod = Pod(metadata=ObjectMeta(name="client", namespace="shop"), status=PodStatus(phase="Running", pod_ip=POD))
    zone.index.set_pod("shop/client", pod)
    for namespace in ("shop", "empty"):
        zone.index.set_namespace(namespace, present=True)
    zone.index.mark_synced()
