"""Endpoints written by hand, and the slices that copy them."""

import msgspec
import pytest

from podwire.controllers.endpointslice.handwritten import LEADER, MANAGER, SKIP, copied, handwritten, of_endpoints
from podwire.controllers.endpointslice.plan import MANAGED_BY, plan
from podwire.model.meta import ObjectMeta
from podwire.model.service import (
    SERVICE_NAME_LABEL,
    TRIGGER_TIME_ANNOTATION,
    EndpointAddress,
    EndpointPort,
    Endpoints,
    EndpointSubset,
    Service,
    ServiceSpec,
)

PORT = EndpointPort(name="", port=80)
SERVICE = Service(metadata=ObjectMeta(name="svc", namespace="ns"), spec=ServiceSpec(cluster_ip="10.96.0.1"))


def endpoints(
    *subsets: EndpointSubset, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> Endpoints:
    meta = ObjectMeta(name="svc", namespace="ns", uid="E", labels=labels or {}, annotations=annotations or {})
    return Endpoints(metadata=meta, subsets=subsets)


def subset(*ips: str, away: tuple[str, ...] = ()) -> EndpointSubset:
    return EndpointSubset(
        addresses=tuple(EndpointAddress(ip=ip) for ip in ips),
        not_ready_addresses=tuple(EndpointAddress(ip=ip) for ip in away),
        ports=(PORT,),
    )


def test_endpoints_without_selector_are_mirrored() -> None:
    selecting = msgspec.structs.replace(SERVICE, spec=ServiceSpec(selector={"a": "b"}))
    going = msgspec.structs.replace(
        SERVICE, metadata=msgspec.structs.replace(SERVICE.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    assert copied(endpoints(), SERVICE)
    assert copied(endpoints(labels={SKIP: "false"}), SERVICE)
    for item, service in (
        (endpoints(), selecting),
        (endpoints(), going),
        (endpoints(), None),
        (None, SERVICE),
        (endpoints(labels={SKIP: "true"}), SERVICE),
        (endpoints(annotations={LEADER: "{}"}), SERVICE),
    ):
        assert not copied(item, service)


def test_families_and_readiness() -> None:
    result = handwritten(endpoints(subset("192.0.2.1", "2001:db8::1", "example.com", away=("192.0.2.2", "192.0.2.1"))))
    shown = {
        group.address_type: [(e.addresses[0], e.conditions.ready, e.conditions.serving) for e in ends.values()]
        for group, ends in result.items()
    }
    assert shown == {
        "IPv4": [("192.0.2.1", True, True), ("192.0.2.2", False, False)],
        "IPv6": [("2001:db8::1", True, True)],
    }


def test_a_subset_is_copied_up_to_a_thousand_addresses() -> None:
    ips = tuple(f"10.0.{n // 250}.{n % 250}" for n in range(1200))
    (ends,) = handwritten(endpoints(subset(*ips))).values()
    assert len(ends) == 1000


def test_the_slices_belong_to_the_endpoints_and_follow_them() -> None:
    item = endpoints(subset("192.0.2.1"), labels={"team": "a"})
    (piece,) = plan(of_endpoints(item), handwritten(item), (), (), "").create
    assert piece.metadata.labels == {"team": "a", SERVICE_NAME_LABEL: "svc", MANAGED_BY: MANAGER}
    (owner,) = piece.metadata.owner_references
    assert (owner.kind, owner.uid) == ("Endpoints", "E")
    have = msgspec.structs.replace(piece, metadata=msgspec.structs.replace(piece.metadata, name="svc-1"))
    assert not plan(of_endpoints(item), handwritten(item), (have,), (), "")
    more = endpoints(subset("192.0.2.1", "192.0.2.2"), labels={"team": "a"})
    (update,) = plan(of_endpoints(more), handwritten(more), (have,), (), "").update
    assert len(update.endpoints or ()) == 2
    empty = endpoints(labels={"team": "a"})
    assert plan(of_endpoints(empty), handwritten(empty), (have,), (), "").delete == ["svc-1"]


@pytest.mark.parametrize("kind", ["Service", "Endpoints"])
def test_a_label_of_meaning_is_not_taken_from_the_object(kind: str) -> None:
    item = endpoints(subset("192.0.2.1"), labels={SERVICE_NAME_LABEL: "other", MANAGED_BY: kind})
    (piece,) = plan(of_endpoints(item), handwritten(item), (), (), "").create
    assert piece.metadata.labels == {SERVICE_NAME_LABEL: "svc", MANAGED_BY: MANAGER}


def test_annotations_come_along_and_go() -> None:
    kubectl = "kubectl.kubernetes.io/last-applied-configuration"
    item = endpoints(
        subset("192.0.2.1"), annotations={"team": "a", kubectl: "{}", TRIGGER_TIME_ANNOTATION: "2026-01-01T00:00:00Z"}
    )
    (piece,) = plan(of_endpoints(item), handwritten(item), (), (), "").create
    assert piece.metadata.annotations == {"team": "a"}
    have = msgspec.structs.replace(piece, metadata=msgspec.structs.replace(piece.metadata, name="svc-1"))
    assert not plan(of_endpoints(item), handwritten(item), (have,), (), "")
    bare = endpoints(subset("192.0.2.1"))
    (update,) = plan(of_endpoints(bare), handwritten(bare), (have,), (), "").update
    assert update.metadata.annotations == {}
