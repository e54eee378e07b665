"""The records of one Service."""

import msgspec

from podwire.dns.index import RecordIndex
from podwire.dns.names import address_bytes
from podwire.dns.records import ServiceRecords, ServiceTarget
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
_LABELS = {"kubernetes.io/service-name": "web"}


def plan(
    service: Service, *slices: EndpointSlice, pod_names: bool = False, ignore_empty: bool = False
) -> ServiceRecords:
    index = RecordIndex(pod_names=pod_names, ignore_empty=ignore_empty)
    index.set_service("shop/web", service, 1)
    for number, endpoint_slice in enumerate(slices):
        meta = ObjectMeta(name=f"web-{number}", namespace="shop", labels=_LABELS)
        index.set_slice(f"shop/web-{number}", msgspec.structs.replace(endpoint_slice, metadata=meta), 1)
    return index.records["shop", "web"]


def test_weights_count_pairs_before_duplicates_are_removed() -> None:
    spec = ServiceSpec(
        cluster_ip="10.96.0.1",
        cluster_ips=("10.96.0.1", "fd00::1"),
        ports=(ServicePort(name="dns", protocol="UDP", port=53), ServicePort(name="dns-tcp", port=53)),
    )
    records = plan(Service(metadata=_META, spec=spec))
    assert records.targets == (ServiceTarget("", 53, 25),)
    port = records.port("dns", "udp")
    assert port is not None and port.targets == (ServiceTarget("", 53, 50),)
    assert records.virtual == (address_bytes("10.96.0.1"), address_bytes("fd00::1"))


def test_weights_never_reach_zero() -> None:
    piece = EndpointSlice(
        endpoints=tuple(Endpoint(addresses=(f"10.0.{i // 250}.{i % 250}",)) for i in range(300)),
        ports=(EndpointPort(name="a", port=1),),
    )
    records = plan(Service(metadata=_META, spec=ServiceSpec(cluster_ip="None")), piece)
    assert {target.weight for target in records.targets} == {1}


def test_pods_without_hostname_may_be_called_by_their_name() -> None:
    named = Endpoint(addresses=("10.0.0.1",), target_ref=ObjectReference(kind="Pod", name="web-abc"))
    long = Endpoint(addresses=("10.0.0.2",), target_ref=ObjectReference(kind="Pod", name="x" * 64))
    piece = EndpointSlice(endpoints=(named, long))
    headless = Service(metadata=_META, spec=ServiceSpec(cluster_ip="None"))
    assert plan(headless, piece, pod_names=True).host_names() == {"web-abc", "10-0-0-2"}
    assert plan(headless, piece).host_names() == {"10-0-0-1", "10-0-0-2"}


def test_unnamed_ports_have_srv_records_only_at_the_service() -> None:
    piece = EndpointSlice(endpoints=(Endpoint(addresses=("10.0.0.1",)),), ports=(EndpointPort(port=80),))
    records = plan(Service(metadata=_META, spec=ServiceSpec(cluster_ip="None")), piece)
    assert not records.port_names and records.targets == (ServiceTarget("10-0-0-1", 80, 100),)


def test_slices_with_absent_lists_are_empty() -> None:
    piece = EndpointSlice(endpoints=None, ports=None)
    gone = Endpoint(addresses=("10.0.0.1",), conditions=EndpointConditions(ready=False))
    service = Service(metadata=_META, spec=ServiceSpec(cluster_ip="10.96.0.1"))
    records = plan(service, piece, EndpointSlice(endpoints=(gone,)))
    assert records.present and not records.host_names()
    assert not plan(service, piece, ignore_empty=True).present
