"""The records of one Service: a pure function of the Service and its EndpointSlices.

Names are relative to the Service (a host label, a port and protocol), because answers repeat the case of the name in
the question. The rules are those of the Kubernetes DNS specification 1.1.0 and, beyond it, of CoreDNS' kubernetes
plugin: an endpoint counts unless its ready condition is false; SRV weights are 100 divided by the number of (endpoint,
port) pairs before duplicates are removed, at least 1; a headless Service publishes the ports of its slices (target
ports), any other Service its own ports; a slice of FQDNs makes the Service an alias of the first name.

Cost: a change of one slice costs the endpoints of that slice; what needs all endpoints of the Service is computed when
it is asked for, from the encoded records of each slice.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache

import msgspec

from podwire.dns import wire
from podwire.dns.names import MAX_LABEL, address_bytes, dashed_host, encode_name
from podwire.dns.wire import AddressRing
from podwire.errors import ProtocolError
from podwire.model.service import Endpoint, EndpointSlice, Service

Port = tuple[str, str, int]
"""Name, protocol (lower case) and number."""


class Addresses(msgspec.Struct, frozen=True, gc=False):
    """Addresses by family, packed, in order, without duplicates."""

    v4: tuple[bytes, ...] = ()
    v6: tuple[bytes, ...] = ()


class ServiceTarget(msgspec.Struct, frozen=True, gc=False):
    """One SRV record: ``host`` is relative to the Service, empty for the Service itself."""

    host: str
    port: int
    weight: int


class NameRecords(msgspec.Struct, frozen=True, gc=False):
    """The records of an endpoint's name, or of ``_port._protocol`` under a Service."""

    addresses: Addresses
    targets: tuple[ServiceTarget, ...]


class ReadyEndpoint(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """One address of a ready endpoint, its host label, and its topology zone if such names are served."""

    host: str
    address: bytes
    zone: str = ""


class SliceRecords(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """What one EndpointSlice adds; ``v4`` and ``v6`` are its addresses without duplicates.

    ``alias`` is the first ready name of a slice of FQDNs.
    """

    ready: tuple[ReadyEndpoint, ...] = ()
    ports: tuple[Port, ...] = ()
    alias: bytes = b""
    v4: tuple[bytes, ...] = ()
    v6: tuple[bytes, ...] = ()


class HostAddress(msgspec.Struct, frozen=True, gc=False):
    """One address of a host name, with the slice (by key) and the ports that it comes with."""

    slice_key: str
    address: bytes
    ports: tuple[Port, ...]


class ServiceFacts(msgspec.Struct, frozen=True, gc=False):
    """What the records need of a Service; ``alias`` is the absolute target of an ExternalName, or empty.

    ``external`` are the addresses outside of the cluster, ``external_alias`` is the name of a load balancer.
    """

    kind: str = "ClusterIP"
    alias: bytes = b""
    virtual: tuple[bytes, ...] = ()
    ports: tuple[Port, ...] = ()
    external: tuple[bytes, ...] = ()
    external_alias: bytes = b""


def read_facts(service: Service) -> ServiceFacts:
    """The facts of a Service; ``kind`` is ExternalName, Headless or ClusterIP."""
    spec = service.spec
    ports = tuple((port.name.lower(), port.protocol.lower(), port.port) for port in spec.ports)
    if spec.type == "ExternalName":
        return ServiceFacts("ExternalName", _alias(spec.external_name))
    external, external_alias = _external(service)
    if service.headless:
        return ServiceFacts(
            "Headless", external=external, external_alias=external_alias, ports=ports if external else ()
        )
    listed = spec.cluster_ips or (spec.cluster_ip,)
    virtual = tuple(packed for text in listed if (packed := address_bytes(text)))
    return ServiceFacts("ClusterIP", b"", virtual, ports, external, external_alias)


def _external(service: Service) -> tuple[tuple[bytes, ...], bytes]:
    """The addresses outside of the cluster, and the first name that a load balancer has given instead."""
    ingress = service.status.load_balancer.ingress
    texts = (*service.spec.external_ips, *(item.ip for item in ingress))
    addresses = tuple(dict.fromkeys(packed for text in texts if text and (packed := address_bytes(text))))
    if addresses:
        return addresses, b""
    return (), next(filter(None, (_alias(item.hostname) for item in ingress)), b"")


def _alias(external_name: str) -> bytes:
    if address_bytes(external_name):
        return b""
    try:
        return encode_name(external_name) if external_name else b""
    except ProtocolError:
        return b""


def endpoint_host(address: str, endpoint: Endpoint, *, pod_names: bool) -> str:
    """The label of an endpoint: its hostname, else (with ``pod_names``) its pod's name, else its dashed address."""
    if endpoint.hostname:
        return endpoint.hostname.lower()
    reference = endpoint.target_ref
    if pod_names and reference is not None and 0 < len(reference.name) <= MAX_LABEL:
        return reference.name
    return dashed_host(address)


def plan_slice(endpoint_slice: EndpointSlice, *, pod_names: bool = False) -> SliceRecords:
    """The records of a slice, in its order."""
    endpoints = [e for e in endpoint_slice.endpoints or () if e.conditions.ready is not False]
    if endpoint_slice.address_type == "FQDN":
        aliases = (_alias(text) for endpoint in endpoints for text in endpoint.addresses)
        return SliceRecords(alias=next(filter(None, aliases), b""))
    ready = tuple(
        [
            entry
            for endpoint in endpoints
            for text in endpoint.addresses
            if (
                entry := _unnamed(text, endpoint.zone)
                if not (endpoint.hostname or pod_names)
                else _ready(text, endpoint_host(text, endpoint, pod_names=pod_names), endpoint.zone)
            )
        ]
    )
    ports = tuple(
        ((port.name or "").lower(), port.protocol.lower(), port.port)
        for port in endpoint_slice.ports or ()
        if port.port
    )
    addresses = _addresses(entry.address for entry in ready)
    return SliceRecords(ready, ports, b"", addresses.v4, addresses.v6)


def _ready(text: str, host: str, topology_zone: str | None) -> ReadyEndpoint | None:
    packed = address_bytes(text)
    return ReadyEndpoint(host, packed, (topology_zone or "").lower()) if packed else None


@lru_cache(1 << 14)
def _unnamed(text: str, topology_zone: str | None) -> ReadyEndpoint | None:
    """The endpoint of an address without a host name: the same object for each slice and each of its changes."""
    return _ready(text, dashed_host(text), topology_zone)


_NO_FACTS = ServiceFacts()


class ServiceRecords:
    """All records of one Service; ``facts`` is None while only its slices are known.

    ``slices`` are in the order of their keys. ``hosts`` belongs to the index, which changes it in place: a reader in
    another thread may miss a host that it has just seen in ``targets``. ``overlapping`` says whether an address is in
    two slices. ``ignore_empty`` hides a Service with a virtual address and no ready endpoint.
    """

    def __init__(
        self,
        facts: ServiceFacts | None = None,
        slices: tuple[SliceRecords, ...] = (),
        hosts: Mapping[str, tuple[HostAddress, ...]] | None = None,
        *,
        overlapping: bool = True,
        ignore_empty: bool = False,
    ) -> None:
        self._slices = slices
        self._hosts = hosts or {}
        self._overlapping = overlapping
        self._rings: dict[int, AddressRing | None] = {}
        kind = facts.kind if facts is not None else ""
        self._headless = kind == "Headless"
        self._facts = facts or _NO_FACTS
        ready = any(entry.ready for entry in slices)
        hidden = kind == "ClusterIP" and ignore_empty and not ready
        self.virtual = facts.virtual if facts is not None and not hidden else ()
        """The Service's own addresses."""
        self.alias = facts.alias if facts is not None else b""
        """The absolute target when the Service is an alias, else empty."""
        if self._headless and not ready:
            self.alias = next((entry.alias for entry in slices if entry.alias), b"")
        self.present = bool(self.alias) or (kind == "ClusterIP" and not hidden) or (self._headless and ready)
        """Whether the name of the Service exists."""

    @property
    def headless(self) -> bool:
        """Whether the Service has no address of its own."""
        return self._headless

    @property
    def own_ports(self) -> tuple[Port, ...]:
        """The ports of the Service itself."""
        return self._facts.ports

    @property
    def external(self) -> tuple[bytes, ...]:
        """The addresses outside of the cluster."""
        return self._facts.external

    @property
    def external_alias(self) -> bytes:
        """The name that a load balancer has instead of addresses, or empty."""
        return self._facts.external_alias

    @cached_property
    def addresses(self) -> Addresses:
        """The addresses of the Service's name."""
        if not self._headless:
            return _addresses(self.virtual)
        return Addresses(
            tuple(dict.fromkeys(packed for entry in self._slices for packed in entry.v4)),
            tuple(dict.fromkeys(packed for entry in self._slices for packed in entry.v6)),
        )

    def ring(self, qtype: int, ttl: int) -> AddressRing | None:
        """The encoded records of ``addresses`` of one type; None without any."""
        if qtype not in self._rings:
            self._rings[qtype] = self._make_ring(qtype, ttl)
        return self._rings[qtype]

    def _make_ring(self, qtype: int, ttl: int) -> AddressRing | None:
        if self._headless and not self._overlapping:
            rings = [_slice_ring(entry, qtype, ttl) for entry in self._slices]
            data = b"".join([ring.data for ring in rings])
            return AddressRing(data, rings[0].step) if data else None
        chosen = self.addresses.v4 if qtype == wire.A else self.addresses.v6
        return wire.make_ring(chosen, qtype, ttl) if chosen else None

    @cached_property
    def targets(self) -> tuple[ServiceTarget, ...]:
        """The SRV records of the Service's name."""
        if self._headless:
            return _targets(
                [(e.host, number) for entry in self._slices for e in entry.ready for _, _, number in entry.ports]
            )
        return _targets([("", number) for _ in self.virtual for _, _, number in self._facts.ports])

    @cached_property
    def port_names(self) -> frozenset[tuple[str, str]]:
        """Name and protocol of the named ports."""
        ports = (
            (port for entry in self._slices if entry.ready for port in entry.ports)
            if self._headless
            else self._facts.ports
        )
        return frozenset((name, protocol) for name, protocol, _ in ports if name)

    def port(self, name: str, protocol: str) -> NameRecords | None:
        """The records of a named port."""
        key = (name, protocol)
        if key not in self.port_names:
            return None
        if not self._headless:
            numbers = [number for n, p, number in self._facts.ports if (n, p) == key]
            return NameRecords(self.addresses, _targets([("", number) for _ in self.virtual for number in numbers]))
        chosen = [
            (endpoint, number)
            for entry in self._slices
            for n, p, number in entry.ports
            if (n, p) == key
            for endpoint in entry.ready
        ]
        return NameRecords(
            _addresses(e.address for e, _ in chosen), _targets([(e.host, number) for e, number in chosen])
        )

    @property
    def ready_addresses(self) -> int:
        """The number of addresses of ready endpoints, those in several slices counted repeatedly."""
        return sum(len(entry.ready) for entry in self._slices)

    def in_zone(self, topology_zone: str) -> NameRecords:
        """The records of the endpoints of a topology zone, in lower case."""
        chosen = [(e, entry.ports) for entry in self._slices for e in entry.ready if e.zone == topology_zone]
        targets = _targets([(e.host, number) for e, ports in chosen for _, _, number in ports])
        return NameRecords(_addresses(e.address for e, _ in chosen), targets)

    def host_names(self) -> frozenset[str]:
        """The host labels of the endpoints."""
        return frozenset(self._hosts)

    def host(self, label: str) -> NameRecords | None:
        """The records of an endpoint's name."""
        listed = self._hosts.get(label)
        if not listed:
            return None
        targets = _targets([(label, number) for entry in listed for _, _, number in entry.ports])
        return NameRecords(_addresses(entry.address for entry in listed), targets)


@lru_cache(1024)
def _slice_ring(entry: SliceRecords, qtype: int, ttl: int) -> AddressRing:
    return wire.make_ring(entry.v4 if qtype == wire.A else entry.v6, qtype, ttl)


def _addresses(packed: Iterable[bytes]) -> Addresses:
    distinct = dict.fromkeys(packed)
    return Addresses(tuple([a for a in distinct if len(a) == 4]), tuple([a for a in distinct if len(a) == 16]))


def _targets(pairs: list[tuple[str, int]]) -> tuple[ServiceTarget, ...]:
    weight = max(1, 100 // len(pairs)) if pairs else 0
    return tuple(ServiceTarget(host, port, weight) for host, port in dict.fromkeys(pairs))
