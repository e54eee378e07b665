"""The records of one Service."""

from podwire.dns.names import address_bytes
from podwire.dns.records import ServiceRecords, ServiceTarget, plan_service
from podwire.model.meta import ObjectMeta, ObjectReference
from podwire.model.service import (
    Endpoint,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
    ServiceSpec,
)

_META = ObjectMeta(name="web", namespace="shop")


def test_no_service_and_no_slice_give_no_records() -> None:
    assert plan_service(None, ()) == ServiceRecords()


def test_weights_count_pairs_before_duplicates_are_removed() -> None:
    spec = ServiceSpec(
        cluster_ip="10.96.0.1",
        cluster_ips=("10.96.0.1", "fd00::1"),
        ports=(ServicePort(name="dns", protocol="UDP", port=53), ServicePort(name="dns-tcp", port=53)),
    )
    records = plan_service(Service(metadata=_META, spec=spec), ())
    assert records.targets == (ServiceTarget("", 53, 25),)
    assert records.ports["dns", "udp"].targets == (ServiceTarget("", 53, 50),)
    assert records.reverse == ((address_bytes("10.96.0.1"), ""), (address_bytes("fd00::1"), ""))


def test_weights_never_reach_zero() -> None:
    piece = EndpointSlice(
        endpoints=tuple(Endpoint(addresses=(f"10.0.{i // 250}.{i % 250}",)) for i in range(300)),
        ports=(EndpointPort(name="a", port=1),),
    )
    records = plan_service(Service(metadata=_META, spec=ServiceSpec(cluster_ip="None")), (piece,))
    assert {target.weight for target in records.targets} == {1}


def test_pods_without_hostname_may_be_called_by_their_name() -> None:
    named = Endpoint(addresses=("10.0.0.1",), target_ref=ObjectReference(kind="Pod", name="web-abc"))
    long = Endpoint(addresses=("10.0.0.2",), target_ref=ObjectReference(kind="Pod", name="x" * 64))
    piece = EndpointSlice(endpoints=(named, long))
    headless = Service(metadata=_META, spec=ServiceSpec(cluster_ip="None"))
    assert set(plan_service(headless, (piece,), pod_names=True).hosts) == {"web-abc", "10-0-0-2"}
    assert set(plan_service(headless, (piece,)).hosts) == {"10-0-0-1", "10-0-0-2"}


def test_unnamed_ports_have_srv_records_only_at_the_service() -> None:
    piece = EndpointSlice(endpoints=(Endpoint(addresses=("10.0.0.1",)),), ports=(EndpointPort(port=80),))
    records = plan_service(Service(metadata=_META, spec=ServiceSpec(cluster_ip="None")), (piece,))
    assert records.ports == {} and records.targets == (ServiceTarget("10-0-0-1", 80, 100),)


def test_slices_with_absent_lists_are_empty() -> None:
    piece = EndpointSlice(endpoints=None, ports=None)
    gone = Endpoint(addresses=("10.0.0.1",), conditions=EndpointConditions(ready=False))
    service = Service(metadata=_META, spec=ServiceSpec(cluster_ip="10.96.0.1"))
    records = plan_service(service, (piece, EndpointSlice(endpoints=(gone,))))
    assert records.present and records.hosts == {}
    assert not plan_service(service, (piece,), ignore_empty=True).present
