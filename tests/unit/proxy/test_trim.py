"""A trimmed object has all fields that the proxy reads, and shares equal values."""

from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.model.service import SERVICE_NAME_LABEL, TRIGGER_TIME_ANNOTATION, EndpointSlice, Service
from podwire.proxy.resolve import resolve
from podwire.proxy.servicemap import NodeFacts
from podwire.proxy.trim import trim_service, trim_slice

NODE = NodeFacts(name="n1", zone="z1", addresses=("192.168.99.1",))


def decoded(document: dict[str, Any], kind: Any) -> Any:
    """As it comes from the API: every text is one of its own."""
    return msgspec.json.decode(msgspec.json.encode(document), type=kind)


def service(name: str = "web") -> Service:
    metadata = {
        "name": name, "namespace": "default", "uid": "u-1", "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"}, "annotations": {"applied": "x" * 1000},
        "ownerReferences": [{"name": "owner", "uid": "u-0"}], "finalizers": ["a/b"],
    }  # fmt: skip
    spec = {
        "type": "LoadBalancer", "selector": {"app": "web"}, "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
        "ports": [{"name": "http", "port": 80, "nodePort": 30080}], "externalIPs": ["203.0.113.7"],
        "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local", "healthCheckNodePort": 30090,
        "sessionAffinity": "ClientIP", "loadBalancerSourceRanges": ["203.0.113.0/24"], "ipFamilies": ["IPv4"],
    }  # fmt: skip
    status = {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}
    whole: Service = decoded({"metadata": metadata, "spec": spec, "status": status}, Service)
    return whole


def piece(**more: Any) -> EndpointSlice:
    labels = {SERVICE_NAME_LABEL: "web", "app": "web", **more.pop("labels", {})}
    metadata = {"name": "web-a", "namespace": "default", "uid": "u-2", "labels": labels, **more}
    endpoints = [
        {
            "addresses": [f"10.0.0.{number}", "10.0.9.9"], "nodeName": f"n{number}", "zone": f"z{number}",
            "conditions": {"ready": number < 3, "serving": True, "terminating": number == 3},
            "hints": {"forZones": [{"name": f"z{number}"}]}, "targetRef": {"kind": "Pod", "name": f"web-{number}"},
        }
        for number in (1, 2, 3)
    ]  # fmt: skip
    ports = [{"name": "http", "port": 8080}]
    whole: EndpointSlice = decoded({"metadata": metadata, "endpoints": endpoints, "ports": ports}, EndpointSlice)
    return whole


def test_trimmed_service_resolves_to_the_same_ports() -> None:
    whole = resolve(service(), (piece(),), NODE)
    assert whole and whole[0].cluster_endpoints and whole[0].source_ranges
    assert resolve(trim_service(service()), (trim_slice(piece()),), NODE) == whole


def test_unused_metadata_is_trimmed() -> None:
    remaining = trim_service(service())
    assert (remaining.metadata.name, remaining.metadata.uid, remaining.metadata.resource_version) == ("web", "u-1", "7")
    assert remaining.metadata.annotations == remaining.spec.selector == {}
    assert (remaining.metadata.owner_references, remaining.metadata.finalizers) == ((), ())
    part = trim_slice(piece(annotations={TRIGGER_TIME_ANNOTATION: "2026-01-01T00:00:00Z", "other": "x"}))
    assert part.metadata.labels == {SERVICE_NAME_LABEL: "web"}
    assert part.metadata.annotations == {TRIGGER_TIME_ANNOTATION: "2026-01-01T00:00:00Z"}
    assert part.endpoints is not None and all(endpoint.target_ref is None for endpoint in part.endpoints)


def test_equal_values_are_held_once() -> None:
    item, other = trim_service(service("one")), trim_service(service("other"))
    assert item.metadata.namespace is other.metadata.namespace
    assert item.spec.ports is other.spec.ports
    assert item.spec.cluster_ips[0] is item.spec.cluster_ip
    first, second = trim_slice(piece()), trim_slice(piece())
    assert first.endpoints and second.endpoints
    assert first.endpoints[0].conditions is second.endpoints[0].conditions
    assert first.endpoints[0].node_name is second.endpoints[0].node_name


def test_lists_that_are_null_stay_so() -> None:
    empty = msgspec.structs.replace(piece(), endpoints=None, ports=None)
    assert trim_slice(empty).endpoints is None and trim_slice(empty).ports is None


def test_load_balancers_keep_labels_and_their_own_annotations() -> None:
    whole = service()
    annotations = {"metallb.io/address-pool": "gold", "podwire.io/rate": "1", "other": "x"}
    meta = replace(whole.metadata, annotations=annotations)
    remaining = trim_service(replace(whole, metadata=meta)).metadata
    assert (remaining.labels, sorted(remaining.annotations)) == (
        {"app": "web"},
        ["metallb.io/address-pool", "podwire.io/rate"],
    )
    inside = trim_service(replace(whole, metadata=meta, spec=replace(whole.spec, type="ClusterIP"))).metadata
    assert inside.labels == inside.annotations == {}
