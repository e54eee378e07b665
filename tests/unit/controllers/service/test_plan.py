"""What a Service of type LoadBalancer needs, and what its objects say then."""

import msgspec
import pytest

from podwire.cluster.names import SERVICE_BALANCER
from podwire.controllers.service.plan import FINALIZER, Need, claim, need, release, status
from podwire.model.meta import ObjectMeta
from podwire.model.service import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServiceSpec,
    ServiceStatus,
)


def service(
    kind: str = "LoadBalancer",
    *,
    owner: str = "",
    load_balancer_class: str | None = None,
    deleted: str | None = None,
    finalizers: tuple[str, ...] = (),
    ingress: tuple[LoadBalancerIngress, ...] = (),
) -> Service:
    return Service(
        metadata=ObjectMeta(
            name="s",
            namespace="ns",
            resource_version="7",
            deletion_timestamp=deleted,
            finalizers=finalizers,
            annotations={SERVICE_BALANCER: owner} if owner else {},
        ),
        spec=ServiceSpec(type=kind, load_balancer_class=load_balancer_class),
        status=ServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress)),
    )


@pytest.mark.parametrize(
    ("item", "balancers", "expected"),
    [
        (service(), {}, Need.NOTHING),
        (service(), {"": "l2"}, Need.ADDRESS),
        (service(owner="l2"), {"": "l2"}, Need.ADDRESS),
        (service(load_balancer_class="example.com/bgp"), {"": "l2"}, Need.NOTHING),
        (service(load_balancer_class="example.com/bgp"), {"": "l2", "example.com/bgp": "bgp"}, Need.ADDRESS),
        (service("NodePort"), {"": "l2"}, Need.NOTHING),
        (service("NodePort", owner="l2"), {"": "l2"}, Need.RELEASE),
        (service(owner="l2", deleted="2026-01-01T00:00:00Z"), {"": "l2"}, Need.RELEASE),
        # A cloud's Service carries the same finalizer, and is the cloud's.
        (service(finalizers=(FINALIZER,), deleted="2026-01-01T00:00:00Z"), {"": "l2"}, Need.NOTHING),
        (service("ClusterIP", finalizers=(FINALIZER,)), {}, Need.NOTHING),
        # A balancer that is there no more.
        (service(owner="old"), {}, Need.NOTHING),
        (service(owner="old"), {"": "l2"}, Need.ADDRESS),
        (service("ClusterIP", owner="old"), {}, Need.RELEASE),
        # One that serves another class now.
        (service(owner="bgp"), {"": "l2", "example.com/bgp": "bgp"}, Need.RELEASE),
    ],
)
def test_need(item: Service, balancers: dict[str, str], expected: Need) -> None:
    assert need(item, balancers) is expected


def test_claiming_and_letting_go() -> None:
    other = service(finalizers=("example.com/mine",))
    patch = claim(other, "l2")
    assert patch == {
        "metadata": {
            "finalizers": ["example.com/mine", FINALIZER],
            "annotations": {SERVICE_BALANCER: "l2"},
            "resourceVersion": "7",
        }
    }
    held = service(finalizers=("example.com/mine", FINALIZER), owner="l2")
    assert claim(held, "l2") is None
    assert claim(held, "bgp") is not None
    assert release(held) == {
        "metadata": {
            "finalizers": ["example.com/mine"],
            "annotations": {SERVICE_BALANCER: None},
            "resourceVersion": "7",
        }
    }
    assert release(other) is None


def test_status() -> None:
    ip, name = LoadBalancerIngress(ip="192.0.2.1"), LoadBalancerIngress(hostname="lb.example.com")
    assert status(service(), ()) is None
    output = status(service(), (ip, name))
    entries = [{"ip": "192.0.2.1", "ipMode": "VIP"}, {"hostname": "lb.example.com"}]
    assert output == {"status": {"loadBalancer": {"ingress": entries}}}
    written = service(ingress=(msgspec.structs.replace(ip, ip_mode="VIP"), name))
    assert status(written, (ip, name)) is None
    assert status(written, (msgspec.structs.replace(ip, ip_mode="Proxy"), name)) is not None
    assert status(written, ()) == {"status": {"loadBalancer": {"ingress": None}}}
