"""``k8s_external [ZONE...]``: the external addresses of Services as names of another zone. Pure.

``web.shop.example.org`` is what the Service ``web`` of the namespace ``shop`` has outside of the cluster: the addresses
or names that a load balancer has given it, and its ``externalIPs``; with ``headless`` also the endpoints of headless
Services. SRV, PTR, and SOA and NS of the zone are answered too. Source: CoreDNS' documentation of the plugin.
"""

from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, plain, whole, zone_names
from podwire.dns.names import decode_name, join_labels, match_zone, parse_reverse, split_labels
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps
from podwire.dns.records import Addresses, ServiceRecords
from podwire.dns.wire import Query, ResourceRecord
from podwire.dns.zone import Zone

_TRANSFERS = (wire.AXFR, wire.IXFR)
_REVERSE = (b"\x07in-addr\x04arpa\x00", b"\x03ip6\x04arpa\x00")


class ExternalOptions(msgspec.Struct, frozen=True):
    """The zones of the plugin, the label of their name servers, the TTL, and what is answered."""

    zones: tuple[bytes, ...]
    apex: str = "dns"
    ttl_s: int = 5
    headless: bool = False
    passes_on: tuple[bytes, ...] = ()


class _Target(msgspec.Struct, frozen=True):
    """One target of SRV records: a name with its addresses."""

    name: bytes
    addresses: Addresses
    ports: tuple[int, ...]


class ExternalZone:
    """Answers from the records of Services."""

    per_client = False

    def __init__(self, options: ExternalOptions, cluster: Zone) -> None:
        self._options = options
        self._cluster = cluster
        self._forward = tuple(zone for zone in options.zones if not zone.endswith(_REVERSE))

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin."""
        directive = directives[-1]
        expect(len(directives) == 1, directive, "expected this plugin once in a server block")
        options = ExternalOptions(zone_names(directive, directive.arguments, scope.zones))
        for option in directive.block:
            match option.name, option.arguments:
                case "apex", (label,):
                    options = msgspec.structs.replace(options, apex=plain(label))
                case "ttl", (number,):
                    options = msgspec.structs.replace(options, ttl_s=whole(option, number))
                case "headless", ():
                    options = msgspec.structs.replace(options, headless=True)
                case "fallthrough", names:
                    options = msgspec.structs.replace(options, passes_on=zone_names(option, names, options.zones))
                case _:
                    raise option.wrong("podwire does not have this option of k8s_external")
        return cls(options, scope.cluster)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The answer, or that of the following plugins for other names."""
        query = request.query
        zone = match_zone(query.name, self._options.zones)
        if zone is None or query.qclass not in (wire.IN, wire.CLASS_ANY):
            return (yield from following(request))
        if query.qtype in _TRANSFERS:
            whole_zone = self._transfer(query) if query.name.lower() == zone else ()
            return PluginReply(query, ZoneAnswer(), stream=whole_zone, plugin="k8s_external")
        answer = self._answer_pointer(query) if zone.endswith(_REVERSE) else self._answer(query, zone)
        if answer is None or (answer.rcode == wire.NXDOMAIN and match_zone(query.name, self._options.passes_on)):
            return (yield from following(request))
        return PluginReply(query, answer, plugin="k8s_external")

    def _answer_pointer(self, query: Query) -> ZoneAnswer | None:
        """The names of an external address, or None when the cluster does not have the address."""
        packed = parse_reverse(split_labels(query.name.lower()))
        labels: list[tuple[str, ...]] = []
        owner = self._cluster.index.external.get(packed)
        if owner is not None:
            labels = [(owner[1], owner[0])]
        elif self._options.headless and packed:
            for (namespace, name), host in self._cluster.index.reverse.get(packed, {}):
                entry = self._cluster.index.records.get((namespace, name))
                if host and entry is not None and entry.headless:
                    labels.append((host, name, namespace))
        if not labels or query.qtype != wire.PTR:
            return None
        records = tuple(
            ResourceRecord(query.name, wire.PTR, self._options.ttl_s, names=(join_labels(label, zone),))
            for label in labels
            for zone in self._forward[:1]
        )
        return ZoneAnswer(records=records, zone=self._label(query.name))

    def _answer(self, query: Query, zone: bytes) -> ZoneAnswer:
        suffix = query.name[len(query.name) - len(zone) :]
        below = tuple(
            label.decode("latin-1") for label in split_labels(query.name[: len(query.name) - len(zone)].lower() + b"\0")
        )
        if not below:
            return self._answer_apex(query, suffix)
        if below[-1] == self._options.apex:
            return self._answer_server(query, suffix, below[:-1])
        namespace = below[-1]
        if len(below) == 1 or namespace not in self._cluster.index.namespaces or not self._cluster.exposed(namespace):
            exists = len(below) == 1 and namespace in self._cluster.index.namespaces
            return self._negative(suffix, wire.NOERROR if exists else wire.NXDOMAIN)
        entry = self._cluster.index.records.get((namespace, below[-2]))
        if entry is None or not self._published(entry):
            return self._negative(suffix, wire.NXDOMAIN)
        return self._answer_service(query, suffix, entry, below)

    def _published(self, entry: ServiceRecords) -> bool:
        if entry.external or entry.external_alias:
            return True
        return self._options.headless and entry.headless and bool(entry.host_names())

    def _has_host(self, entry: ServiceRecords, label: str) -> bool:
        return self._options.headless and entry.headless and entry.host(label) is not None

    def _answer_service(self, query: Query, suffix: bytes, entry: ServiceRecords, below: tuple[str, ...]) -> ZoneAnswer:
        own, rest = join_labels(below[-2:], suffix), below[:-2]
        port: tuple[str, str] | None = None
        if len(rest) == 2:
            port = (rest[0].removeprefix("_"), rest[1].removeprefix("_"))
        elif len(rest) > 2 or (rest and not self._has_host(entry, rest[0])):
            return self._negative(suffix, wire.NXDOMAIN)
        host = rest[0] if len(rest) == 1 else ""
        targets = self._targets(entry, own, host, port)
        if not targets:
            return self._negative(suffix, wire.NXDOMAIN)
        if query.qtype == wire.SRV:
            return self._services(query, suffix, targets)
        if entry.external_alias and query.qtype in (wire.A, wire.AAAA, wire.CNAME) and not host:
            alias = ResourceRecord(query.name, wire.CNAME, self._options.ttl_s, names=(entry.external_alias,))
            return ZoneAnswer(records=(alias,), zone=self._label(suffix))
        packed = dict.fromkeys(a for target in targets for a in target.addresses.v4 + target.addresses.v6)
        size = {wire.A: 4, wire.AAAA: 16}.get(query.qtype, 0)
        chosen = [address for address in packed if len(address) == size]
        if not chosen:
            return self._negative(suffix, wire.NOERROR)
        return ZoneAnswer(ring=wire.make_ring(chosen, query.qtype, self._options.ttl_s), zone=self._label(suffix))

    def _targets(
        self, entry: ServiceRecords, own: bytes, host: str, port: tuple[str, str] | None
    ) -> tuple[_Target, ...]:
        """The targets of a Service, of one of its endpoints (``host``), or of one port."""
        if entry.external or entry.external_alias:
            ports = tuple(number for name, protocol, number in entry.own_ports if port in (None, (name, protocol)))
            if port is not None and not ports:
                return ()
            name = entry.external_alias or own
            v4 = tuple(packed for packed in entry.external if len(packed) == 4)
            v6 = tuple(packed for packed in entry.external if len(packed) == 16)
            return (_Target(name, Addresses(v4, v6), ports),)
        records = entry.host(host) if host else entry.port(*port) if port else None
        listed = records.targets if records is not None else entry.targets if not host and port is None else ()
        hosts: dict[str, list[int]] = {label: [] for label in (entry.host_names() if port is None and not host else ())}
        for target in listed:
            hosts.setdefault(target.host, []).append(target.port)
        result = []
        for label, ports_of in hosts.items():
            own_records = entry.host(label)
            if own_records is not None:
                result.append(_Target(join_labels((label,), own), own_records.addresses, tuple(ports_of)))
        return tuple(result)

    def _services(self, query: Query, suffix: bytes, targets: tuple[_Target, ...]) -> ZoneAnswer:
        pairs = [(target, number) for target in targets for number in target.ports]
        if not pairs:
            return self._negative(suffix, wire.NOERROR)
        weight = max(1, 100 // len(pairs))
        records = tuple(
            ResourceRecord(
                query.name,
                wire.SRV,
                self._options.ttl_s,
                b"\x00\x00" + weight.to_bytes(2, "big") + number.to_bytes(2, "big"),
                (target.name,),
            )
            for target, number in pairs
        )
        glue = tuple(
            self._address(target.name, packed)
            for target in targets
            for packed in target.addresses.v4 + target.addresses.v6
        )
        return ZoneAnswer(records=records, additional=glue, zone=self._label(suffix))

    def _address(self, name: bytes, packed: bytes) -> ResourceRecord:
        return ResourceRecord(name, wire.A if len(packed) == 4 else wire.AAAA, self._options.ttl_s, tail=packed)

    def _label(self, suffix: bytes) -> str:
        return decode_name(match_zone(suffix, self._options.zones) or b"\0").removesuffix(".")

    def _server(self, suffix: bytes) -> bytes:
        return join_labels(("ns1", self._options.apex), suffix)

    def _soa(self, suffix: bytes) -> ResourceRecord:
        ttl_s = self._options.ttl_s
        numbers = (self._cluster.index.serial & 0xFFFFFFFF, 7200, 1800, 86400, ttl_s)
        names = (self._server(suffix), join_labels(("hostmaster", self._options.apex), suffix))
        tail = b"".join(number.to_bytes(4, "big") for number in numbers)
        return ResourceRecord(suffix, wire.SOA, ttl_s, names=names, tail=tail)

    def _negative(self, suffix: bytes, rcode: int) -> ZoneAnswer:
        if rcode == wire.NXDOMAIN and not self._cluster.index.synced:
            rcode = wire.SERVFAIL
        return ZoneAnswer(rcode=rcode, authority=(self._soa(suffix),), zone=self._label(suffix))

    def _server_addresses(self, name: bytes) -> tuple[ResourceRecord, ...]:
        """The addresses of the name server: those that the Services in front of this server have outside."""
        index, local = self._cluster.index, self._cluster.local_ips
        outside: dict[bytes, None] = {}
        for owner, _ in (known for packed in local for known in index.reverse.get(packed, {})):
            entry = index.records.get(owner)
            if entry is not None and entry.headless and self._options.headless:
                outside |= dict.fromkeys(entry.addresses.v4 + entry.addresses.v6)
            elif entry is not None:
                outside |= dict.fromkeys(entry.external)
        return tuple(self._address(name, packed) for packed in outside or local)

    def _answer_apex(self, query: Query, suffix: bytes) -> ZoneAnswer:
        if query.qtype == wire.SOA:
            return ZoneAnswer(records=(self._soa(suffix),), zone=self._label(suffix))
        if query.qtype != wire.NS:
            return self._negative(suffix, wire.NOERROR)
        server = self._server(suffix)
        record = ResourceRecord(query.name, wire.NS, self._options.ttl_s, names=(server,))
        return ZoneAnswer(records=(record,), additional=self._server_addresses(server), zone=self._label(suffix))

    def _answer_server(self, query: Query, suffix: bytes, below: tuple[str, ...]) -> ZoneAnswer:
        if below not in ((), ("ns1",)):
            return self._negative(suffix, wire.NXDOMAIN)
        records = tuple(r for r in self._server_addresses(query.name) if below and r.type == query.qtype)
        return (
            ZoneAnswer(records=records, zone=self._label(suffix)) if records else self._negative(suffix, wire.NOERROR)
        )

    def _transfer(self, query: Query) -> tuple[ResourceRecord, ...]:
        """All records of the zone, the SOA record first and last."""
        suffix, soa = query.name, self._soa(query.name)
        server = self._server(suffix)
        records = [soa, ResourceRecord(suffix, wire.NS, self._options.ttl_s, names=(server,))]
        records += self._server_addresses(server)
        for (namespace, name), entry in sorted(self._cluster.index.records.items()):
            if not self._published(entry) or not self._cluster.exposed(namespace):
                continue
            own = join_labels((name, namespace), suffix)
            for qtype in (wire.A, wire.AAAA, wire.SRV):
                asked = Query(0, 0, own, qtype, wire.IN)
                reply = PluginReply(asked, self._answer_service(asked, suffix, entry, (name, namespace))).expanded()
                records += reply.answer.records if reply.answer.rcode == wire.NOERROR else ()
                records += reply.answer.additional
        return (*dict.fromkeys(records), soa)
