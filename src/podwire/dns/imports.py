"""Services of a set of clusters (KEP 1645) in the form that the index of records has. Pure.

A ServiceImport becomes a Service, and its EndpointSlices become slices of that Service, in which an endpoint is named
by its host and its cluster: ``db-0.east.db.shop.svc.clusterset.local``.
"""

import msgspec

from podwire.dns.names import dashed_host
from podwire.model.service import SERVICE_NAME_LABEL, Endpoint, EndpointSlice, Service, ServiceSpec
from podwire.model.serviceimport import IMPORT_NAME_LABEL, SOURCE_CLUSTER_LABEL, ServiceImport


def service_of(imported: ServiceImport) -> Service:
    """The Service with the addresses and ports of an import."""
    spec = imported.spec
    if spec.type == "Headless":
        return Service(metadata=imported.metadata, spec=ServiceSpec(cluster_ip="None", ports=spec.ports))
    first = spec.ips[0] if spec.ips else ""
    return Service(
        metadata=imported.metadata, spec=ServiceSpec(cluster_ip=first, cluster_ips=spec.ips, ports=spec.ports)
    )


def slice_of(endpoint_slice: EndpointSlice) -> EndpointSlice | None:
    """The slice as one of its import; None when it belongs to none."""
    labels = endpoint_slice.metadata.labels
    name, cluster = labels.get(IMPORT_NAME_LABEL), labels.get(SOURCE_CLUSTER_LABEL, "")
    if not name:
        return None
    endpoints = tuple(
        Endpoint(
            addresses=(address,),
            conditions=endpoint.conditions,
            hostname=".".join(filter(None, (endpoint.hostname or dashed_host(address), cluster))),
        )
        for endpoint in endpoint_slice.endpoints or ()
        for address in endpoint.addresses
    )
    meta = msgspec.structs.replace(endpoint_slice.metadata, labels={SERVICE_NAME_LABEL: name})
    return msgspec.structs.replace(endpoint_slice, metadata=meta, endpoints=endpoints)
