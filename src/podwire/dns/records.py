"""The records of one Service: a pure function of the Service and its EndpointSlices.

Names are relative to the Service (a host label, a port and protocol), because answers repeat the case of the name in
the question. The rules are those of the Kubernetes DNS specification 1.1.0 and, beyond it, of CoreDNS' kubernetes
plugin: an endpoint counts unless its ready condition is false; SRV weights are 100 divided by the number of (endpoint,
port) pairs before duplicates are removed, at least 1; a headless Service publishes the ports of its slices (target
ports), any other Service its own ports.

Cost: linear in the endpoints of the one Service.
"""

from collections.abc import Iterable

import msgspec

from podwire.dns.names import MAX_LABEL, address_bytes, dashed_host, encode_name
from podwire.errors import ProtocolError
from podwire.model.service import Endpoint, EndpointSlice, Service


class Addresses(msgspec.Struct, frozen=True, gc=False):
    """Addresses by family, packed, in order, without duplicates."""

    v4: tuple[bytes, ...] = ()
    v6: tuple[bytes, ...] = ()


class ServiceTarget(msgspec.Struct, frozen=True, gc=False):
    """One SRV record: ``host`` is relative to the Service, empty for the Service itself."""

    host: str
    port: int
    weight: int


class PortRecords(msgspec.Struct, frozen=True, gc=False):
    """The records of ``_port._protocol`` under a Service."""

    addresses: Addresses
    targets: tuple[ServiceTarget, ...]


class HostRecords(msgspec.Struct, frozen=True, gc=False):
    """The records of one endpoint's name."""

    addresses: Addresses
    targets: tuple[ServiceTarget, ...]


class ServiceRecords(msgspec.Struct, frozen=True, gc=False):
    """All records of one Service; ``present`` is false while only its slices are known.

    ``alias`` is the absolute target of an ExternalName Service, or empty. ``reverse`` pairs packed addresses
    with host labels (empty: the Service's own address).
    """

    present: bool = False
    addresses: Addresses = Addresses()
    alias: bytes = b""
    targets: tuple[ServiceTarget, ...] = ()
    ports: dict[tuple[str, str], PortRecords] = {}
    hosts: dict[str, HostRecords] = {}
    reverse: tuple[tuple[bytes, str], ...] = ()


class _Ready(msgspec.Struct, frozen=True, gc=False):
    host: str
    address: bytes
    ports: tuple[tuple[str, str, int], ...]


def endpoint_host(address: str, endpoint: Endpoint, *, pod_names: bool) -> str:
    """The label of an endpoint: its hostname, else (with ``pod_names``) its pod's name, else its dashed address."""
    if endpoint.hostname:
        return endpoint.hostname.lower()
    reference = endpoint.target_ref
    if pod_names and reference is not None and 0 < len(reference.name) <= MAX_LABEL:
        return reference.name
    return dashed_host(address)


def plan_service(
    service: Service | None, slices: Iterable[EndpointSlice], *, pod_names: bool = False, ignore_empty: bool = False
) -> ServiceRecords:
    """The records of a Service and its slices, in the order of the slices.

    ``ignore_empty`` hides a Service with a virtual address and no ready endpoint.
    """
    ready = [endpoint for endpoint_slice in slices for endpoint in _ready_endpoints(endpoint_slice, pod_names)]
    hosts = _plan_hosts(ready)
    reverse = tuple(dict.fromkeys((entry.address, entry.host) for entry in ready))
    if service is None:
        return ServiceRecords(reverse=reverse)
    if service.spec.type == "ExternalName":
        alias = _alias(service.spec.external_name)
        return ServiceRecords(present=bool(alias), alias=alias, reverse=reverse)
    if service.headless:
        return _plan_headless(ready, hosts, reverse)
    if ignore_empty and not ready:
        return ServiceRecords()
    return _plan_virtual(service, hosts, reverse)


def _alias(external_name: str) -> bytes:
    if address_bytes(external_name):
        return b""
    try:
        return encode_name(external_name) if external_name else b""
    except ProtocolError:
        return b""


def _ready_endpoints(endpoint_slice: EndpointSlice, pod_names: bool) -> Iterable[_Ready]:
    ports = tuple(
        ((port.name or "").lower(), port.protocol.lower(), port.port)
        for port in endpoint_slice.ports or ()
        if port.port
    )
    for endpoint in endpoint_slice.endpoints or ():
        if endpoint.conditions.ready is False:
            continue
        for text in endpoint.addresses:
            if packed := address_bytes(text):
                yield _Ready(endpoint_host(text, endpoint, pod_names=pod_names), packed, ports)


def _addresses(packed: Iterable[bytes]) -> Addresses:
    distinct = tuple(dict.fromkeys(packed))
    return Addresses(tuple(a for a in distinct if len(a) == 4), tuple(a for a in distinct if len(a) == 16))


def _targets(pairs: list[tuple[str, int]]) -> tuple[ServiceTarget, ...]:
    weight = max(1, 100 // len(pairs)) if pairs else 0
    return tuple(ServiceTarget(host, port, weight) for host, port in dict.fromkeys(pairs))


def _plan_hosts(ready: list[_Ready]) -> dict[str, HostRecords]:
    by_host: dict[str, list[_Ready]] = {}
    for entry in ready:
        by_host.setdefault(entry.host, []).append(entry)
    return {
        host: HostRecords(
            _addresses(entry.address for entry in entries),
            _targets([(host, number) for entry in entries for _, _, number in entry.ports]),
        )
        for host, entries in by_host.items()
    }


def _plan_headless(
    ready: list[_Ready], hosts: dict[str, HostRecords], reverse: tuple[tuple[bytes, str], ...]
) -> ServiceRecords:
    if not ready:
        return ServiceRecords()
    ports: dict[tuple[str, str], PortRecords] = {}
    for key in dict.fromkeys((name, protocol) for e in ready for name, protocol, _ in e.ports if name):
        chosen = [(e, number) for e in ready for name, protocol, number in e.ports if (name, protocol) == key]
        ports[key] = PortRecords(
            _addresses(e.address for e, _ in chosen), _targets([(e.host, number) for e, number in chosen])
        )
    return ServiceRecords(
        present=True,
        addresses=_addresses(entry.address for entry in ready),
        targets=_targets([(e.host, number) for e in ready for _, _, number in e.ports]),
        ports=ports,
        hosts=hosts,
        reverse=reverse,
    )


def _plan_virtual(
    service: Service, hosts: dict[str, HostRecords], reverse: tuple[tuple[bytes, str], ...]
) -> ServiceRecords:
    spec = service.spec
    listed = spec.cluster_ips or (spec.cluster_ip,)
    virtual = [packed for text in listed if (packed := address_bytes(text))]
    addresses = _addresses(virtual)
    ports = {}
    for key in dict.fromkeys((p.name.lower(), p.protocol.lower()) for p in spec.ports if p.name):
        numbers = [p.port for p in spec.ports if (p.name.lower(), p.protocol.lower()) == key]
        ports[key] = PortRecords(addresses, _targets([("", number) for _ in virtual for number in numbers]))
    return ServiceRecords(
        present=True,
        addresses=addresses,
        targets=_targets([("", port.port) for _ in virtual for port in spec.ports]),
        ports=ports,
        hosts=hosts,
        reverse=tuple((packed, "") for packed in virtual) + reverse,
    )
