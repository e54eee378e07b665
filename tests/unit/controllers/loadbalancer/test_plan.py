"""The next step for a Service's addresses: what is recorded, what is cleared first, and the patches."""

from ipaddress import ip_address

import pytest
from msgspec.structs import replace

from podwire.controllers.loadbalancer.plan import (
    decide,
    metadata_patch,
    rebuild,
    shown_addresses,
    status_patch,
    touch_patch,
)
from podwire.loadbalancer.allocation import Allocator
from podwire.loadbalancer.pools import BalancerPool, BalancerPools
from podwire.loadbalancer.ranges import parse_range
from podwire.model.meta import ObjectMeta
from podwire.model.service import LoadBalancerIngress, LoadBalancerStatus, Service, ServiceSpec, ServiceStatus

KEY = "shop/web"
ONE, TWO, OUTSIDE = (ip_address(text) for text in ("192.0.2.1", "192.0.2.2", "203.0.113.1"))
ANNOTATION = "metallb.io/ip-allocated-from-pool"


def service(*shown: str, annotations: dict[str, str] | None = None, **spec: object) -> Service:
    return Service(
        metadata=ObjectMeta(name="web", namespace="shop", uid="u", annotations=annotations or {}, resource_version="7"),
        spec=ServiceSpec(**({"type": "LoadBalancer", "ip_families": ("IPv4",)} | spec)),  # type: ignore[arg-type]
        status=ServiceStatus(load_balancer=LoadBalancerStatus(tuple(LoadBalancerIngress(ip=ip) for ip in shown))),
    )


@pytest.fixture
def allocator() -> Allocator:
    result = Allocator()
    pool = BalancerPool(name="p", ranges=(parse_range("p", "", "192.0.2.1-192.0.2.2"),))
    result.configure(BalancerPools({"p": pool}), {})
    return result


@pytest.mark.parametrize(
    ("held", "seen", "addresses", "clear"),
    [
        ((), service(), (ONE,), False),
        ((TWO,), service("192.0.2.2"), (TWO,), False),
        ((), service("192.0.2.2"), (TWO,), False),
        ((), service("203.0.113.1"), (), False),
        ((), service("203.0.113.1", annotations={ANNOTATION: "gone"}), (ONE,), True),
        ((TWO,), service("192.0.2.2", load_balancer_ip="192.0.2.1"), (ONE,), True),
        ((TWO,), service(load_balancer_ip="192.0.2.1"), (ONE,), True),
        ((TWO,), service("192.0.2.2", type="ClusterIP"), (), True),
        ((TWO,), service("192.0.2.2", load_balancer_class="other"), (), True),
        ((), service(annotations={ANNOTATION: "p"}, type="ClusterIP"), (), True),
        ((), service(type="ClusterIP"), (), False),
        ((TWO,), None, (), False),
    ],
)
def test_decisions(
    allocator: Allocator, held: tuple[object, ...], seen: Service | None, addresses: tuple[object, ...], clear: bool
) -> None:
    allocator.hold(KEY, held)  # type: ignore[arg-type]
    decision = decide(KEY, seen, allocator, "")
    assert (decision.before, decision.addresses, decision.clear) == (held, addresses, clear)
    assert allocator.addresses_of(KEY) == addresses


def test_a_service_without_an_address_has_the_reason(allocator: Allocator) -> None:
    allocator.hold("a/a", (ONE,))
    allocator.hold("a/b", (TWO,))
    decision = decide(KEY, service("192.0.2.2"), allocator, "")
    assert (decision.addresses, decision.clear) == ((), True)
    assert decision.problem == 'Failed to allocate IP for "shop/web": no available IPs'


def test_wrong_annotations_keep_the_present_addresses(allocator: Allocator) -> None:
    allocator.hold(KEY, (TWO,))
    wrong = {ANNOTATION: "p", "metallb.io/loadBalancerIPs": "x"}
    decision = decide(KEY, service("192.0.2.2", annotations=wrong), allocator, "")
    assert (decision.addresses, decision.clear) == ((TWO,), False)
    assert "annotations[metallb.io/loadBalancerIPs]: 'x': expected an address" in decision.problem


def test_records_are_taken_over_with_the_requests(allocator: Allocator) -> None:
    shared = service(annotations={"metallb.io/allow-shared-ip": "k"})
    rebuild(allocator, [(ONE, KEY, "u"), (TWO, "shop/old", "gone")], {KEY: shared})
    assert (allocator.addresses_of(KEY), allocator.addresses_of("shop/old")) == ((ONE,), (TWO,))
    other = replace(shared, metadata=replace(shared.metadata, name="other"))
    assert decide("shop/other", other, allocator, "").addresses == (ONE,)
    rebuild(allocator, [], {})
    assert not allocator.in_use()


def test_patches_name_the_version_that_was_read() -> None:
    seen = service("192.0.2.1", annotations={ANNOTATION: "p"})
    assert shown_addresses(seen) == (ONE,)
    assert metadata_patch(seen, "p", "7") is None
    assert metadata_patch(seen, None, "7") == {"metadata": {"resourceVersion": "7", "annotations": {ANNOTATION: None}}}
    assert status_patch(seen, (ONE,), "7") is None
    assert status_patch(seen, (TWO,), "8") == {
        "metadata": {"resourceVersion": "8"},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2", "ipMode": "VIP"}]}},
    }
    assert status_patch(seen, (), "8") == {
        "metadata": {"resourceVersion": "8"},
        "status": {"loadBalancer": {"ingress": None}},
    }
    touched = {"metadata": {"resourceVersion": "7", "annotations": {"podwire.io/load-balancer-released": "192.0.2.1"}}}
    assert touch_patch((ONE,), "7") == touched
