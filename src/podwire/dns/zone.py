"""The cluster's zone: answers from Services, EndpointSlices, Namespaces and Pods.

How it works: a look-up splits the name once and walks the dictionaries of a
:class:`~podwire.dns.index.RecordIndex`; :mod:`podwire.dns.answers` has the forms of answers.

Rules worth knowing (Kubernetes DNS specification 1.1.0; CoreDNS' kubernetes plugin where that is silent):

- a name exists when any type exists for it, so a missing type is NODATA and never NXDOMAIN (RFC 8020); this also
  holds where CoreDNS deviates: ``dns-version`` asked for A, ``_tcp`` between a port and its Service, SOA of a
  missing name;
- a headless Service without ready endpoints does not exist;
- before everything was listed once, a missing name is SERVFAIL; a present name is answered;
- a chain of aliases may have 32 steps, a longer one is SERVFAIL; a loop of aliases has no data;
- owner names keep the case of the question; targets keep the case in which the zone was asked for.

Cost: a look-up takes 3 to 6 µs; about 600 bytes a name.
"""

from collections.abc import Mapping
from ipaddress import ip_address

import msgspec

from podwire.dns import wire
from podwire.dns.answers import FOREIGN, AnswerForms, ZoneAnswer, ZoneQuestion
from podwire.dns.config import DnsConfig
from podwire.dns.index import RecordIndex, ServiceKey
from podwire.dns.names import (
    address_bytes,
    encode_name,
    join_labels,
    match_zone,
    parse_dashed,
    parse_reverse,
    split_labels,
)
from podwire.dns.records import Addresses, NameRecords, ServiceRecords, ServiceTarget
from podwire.dns.wire import TO_QUESTION, AddressRing, ResourceRecord

SPEC_VERSION = "1.1.0"
_VERSION_TTL_S = 28800
_MAX_ALIASES = 32
_MAX_TARGETS = 2000
"""More SRV records never fit into a message of 64 KiB."""
_HOST_TYPES = (wire.A, wire.AAAA)


class ZoneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The name of the zone and which names it contains.

    Zones not in ``fallthrough`` are authoritative (NXDOMAIN for an unknown name); in the others, unknown names are
    asked for upstream. ``pods`` is disabled, insecure (any address under an existing namespace) or verified (addresses
    of live pods). No ``namespaces`` means all. ``local_ips`` are this server's.
    ``zonal`` adds names for the endpoints of a topology zone. ``clusterset`` is the zone of imported Services, or
    empty; it is a zone of its own, with ``imports``.
    """

    domain: str = "cluster.local"
    ttl_s: int = 5
    pods: str = "insecure"
    namespaces: tuple[str, ...] = ()
    reverse_zones: tuple[str, ...] = ("in-addr.arpa", "ip6.arpa")
    fallthrough: tuple[str, ...] = ("in-addr.arpa", "ip6.arpa")
    endpoint_pod_names: bool = False
    ignore_empty_service: bool = False
    zonal: bool = False
    clusterset: str = ""
    imports: bool = False
    local_ips: tuple[bytes, ...] = ()
    hosts: dict[str, tuple[str, ...]] = {}
    hosts_ttl_s: int = 3600


def zone_options(config: DnsConfig, local_ips: tuple[bytes, ...] = ()) -> ZoneOptions:
    """The options of a zone by the settings of the server."""
    return ZoneOptions(
        domain=config.domain,
        ttl_s=config.ttl_seconds,
        pods=config.pods,
        endpoint_pod_names=config.endpoint_pod_names,
        namespaces=config.namespaces,
        ignore_empty_service=config.ignore_empty_service,
        zonal=config.zonal,
        clusterset=config.clusterset,
        reverse_zones=config.reverse_zones,
        fallthrough=config.fallthrough,
        hosts=config.hosts,
        hosts_ttl_s=config.hosts_ttl_seconds,
        local_ips=local_ips,
    )


class HostTable:
    """Addresses of fixed names, with their reverse names; a type that a name does not have is an empty answer."""

    def __init__(self, hosts: Mapping[str, tuple[str, ...]], ttl_s: int) -> None:
        self._ttl_s = ttl_s
        self.names = {encode_name(name.lower()): tuple(map(address_bytes, hosts[name])) for name in hosts}
        self._pointers: dict[bytes, tuple[bytes, ...]] = {}
        for name, addresses in self.names.items():
            for packed in addresses:
                reverse = encode_name(ip_address(packed).reverse_pointer)
                self._pointers[reverse] = (*self._pointers.get(reverse, ()), name)

    def look_up(self, name: bytes, qtype: int) -> ZoneAnswer | None:
        """The answer for a name in any case; None when it is not in the table."""
        if (targets := self._pointers.get(name.lower())) is not None and qtype == wire.PTR:
            records = tuple(ResourceRecord(name, wire.PTR, self._ttl_s, names=(target,)) for target in targets)
            return ZoneAnswer(records=records, zone="hosts")
        addresses = self.names.get(name.lower())
        if addresses is None:
            return None
        size = {wire.A: 4, wire.AAAA: 16}.get(qtype, 0)
        chosen = [packed for packed in addresses if len(packed) == size]
        return ZoneAnswer(ring=wire.make_ring(chosen, qtype, self._ttl_s) if chosen else None, zone="hosts")


class Zone:
    """The names of one cluster, answered from its :class:`RecordIndex`."""

    def __init__(self, options: ZoneOptions) -> None:
        self._options = options
        self.domain = options.domain.removesuffix(".").lower()
        """The name of the cluster's zone in lower case."""
        self.local_ips = options.local_ips
        """The addresses of this server, packed."""
        self.zonal = options.zonal
        """Whether the zone has names for the endpoints of a topology zone."""
        self._zones = {
            tuple(split_labels(encode_name(z.lower()))): z.removesuffix(".").lower()
            for z in (self.domain, *options.reverse_zones)
        }
        self._labels = split_labels(encode_name(self.domain))
        self.apex = (encode_name(self.domain),)
        """The name of the zone in wire form."""
        self._depth = len(self._labels)
        self._depths = sorted({len(zone) for zone in self._zones}, reverse=True)
        self._hosts = HostTable(options.hosts, options.hosts_ttl_s)
        self._fallthrough = frozenset(z.removesuffix(".").lower() for z in options.fallthrough)
        self.index = RecordIndex(pod_names=options.endpoint_pod_names, ignore_empty=options.ignore_empty_service)
        """The records for the answers."""
        self.forms = AnswerForms(self.index, self.domain, options.ttl_s, self._fallthrough)
        """The forms of answers in this zone."""
        self.imported: Zone | None = None
        """The zone of imported Services, if there is one."""
        if options.clusterset:
            self.imported = Zone(
                msgspec.structs.replace(
                    options, domain=options.clusterset, clusterset="", imports=True, reverse_zones=(), hosts={}
                )
            )

    def look_up(self, name: bytes, qtype: int, aliases: tuple[bytes, ...] = ()) -> ZoneAnswer:
        """The answer for a name in wire form, in any case, and a record type; ``aliases`` led to the name."""
        if self.imported is not None and match_zone(name, self.imported.apex) is not None:
            return self.imported.look_up(name, qtype, aliases)
        if self._hosts.names and (entry := self._hosts.look_up(name, qtype)) is not None:
            return entry
        labels = split_labels(name.lower())
        count = len(labels) - self._depth
        if count >= 0 and labels[count:] == self._labels:
            zone = self.domain
        else:
            for depth in self._depths:
                count = len(labels) - depth
                if count >= 0 and (zone := self._zones.get(tuple(labels[count:]), "")):
                    break
            else:
                return FOREIGN
        # Labels of the zone are ASCII; in Latin-1 all others stay different from them.
        relative = tuple([label.decode("latin-1") for label in labels[:count]])
        skipped = sum(map(len, labels[:count])) + count
        question = ZoneQuestion(name, qtype, relative, skipped, zone, aliases)
        if zone == self.domain:
            return self._answer_domain(question)
        return self._answer_reverse(question, labels)

    def _answer_domain(self, question: ZoneQuestion) -> ZoneAnswer:
        relative = question.relative
        if not relative:
            return self._answer_apex(question)
        if relative == ("dns-version",):
            text = SPEC_VERSION.encode()
            version = ResourceRecord(question.name, wire.TXT, _VERSION_TTL_S, tail=bytes([len(text)]) + text)
            return self.forms.records(question, (version,) if question.qtype == wire.TXT else ())
        if relative in (("svc",), ("pod",), ("dns",)):
            return self.forms.records(question, ())
        if relative == ("ns", "dns"):
            local = Addresses(
                tuple(ip for ip in self.local_ips if len(ip) == 4),
                tuple(ip for ip in self.local_ips if len(ip) == 16),
            )
            return self.forms.addresses(question, local)
        kind = relative[-1]
        if kind not in ("svc", "pod") or not self.exposed(relative[-2]):
            return self.forms.missing(question)
        if len(relative) == 2:
            return (
                self.forms.records(question, ())
                if relative[0] in self.index.namespaces
                else self.forms.missing(question)
            )
        return self._answer_pod(question) if kind == "pod" else self._answer_service(question)

    def exposed(self, namespace: str) -> bool:
        """Whether the zone has the names of a namespace."""
        return not self._options.namespaces or namespace in self._options.namespaces

    def _answer_apex(self, question: ZoneQuestion) -> ZoneAnswer:
        if question.qtype == wire.SOA:
            return self.forms.records(question, (self.forms.soa(question),))
        if question.qtype != wire.NS:
            return self.forms.records(question, ())
        servers: dict[bytes, tuple[ResourceRecord, ...]] = {}
        for packed in self.local_ips:
            for (namespace, name), host in self.index.reverse.get(packed, {}):
                entry = self.index.records.get((namespace, name))
                if entry is not None and entry.present:
                    addresses = entry.addresses
                    labels: tuple[str, ...] = (name, namespace, "svc")
                    own = entry.host(host)
                    if not entry.virtual and own is not None:
                        labels, addresses = (host, *labels), own.addresses
                    target = join_labels(labels, question.suffix)
                    servers[target] = self.forms.all_addresses(target, addresses)
        if not servers:
            target = join_labels(("ns", "dns"), question.suffix)
            servers[target] = tuple(self.forms.address_record(target, ip) for ip in self.local_ips)
        records = tuple(
            ResourceRecord(question.name, wire.NS, self._options.ttl_s, names=(target,)) for target in servers
        )
        return ZoneAnswer(
            records=records, additional=tuple(r for glue in servers.values() for r in glue), zone=question.zone
        )

    def _answer_pod(self, question: ZoneQuestion) -> ZoneAnswer:
        label, namespace = question.relative[-3], question.relative[-2]
        packed = parse_dashed(label) if len(question.relative) == 3 else b""
        match self._options.pods:
            case "insecure":
                known = bool(packed) and namespace in self.index.namespaces
            case "verified":
                known = self.index.has_pod(namespace, packed)
            case _:
                known = False
        if not known:
            return self.forms.missing(question)
        fits = question.qtype == (wire.A if len(packed) == 4 else wire.AAAA)
        return self.forms.addresses(question, Addresses((packed,), (packed,)) if fits else Addresses())

    def _answer_service(self, question: ZoneQuestion) -> ZoneAnswer:
        relative = question.relative
        service, namespace = relative[-3], relative[-2]
        entry = self.index.records.get((namespace, service))
        if entry is None or not entry.present:
            return self.forms.missing(question)
        below = relative[:-3]
        if entry.alias:
            return self.forms.missing(question) if below else self._answer_alias(question, entry.alias)
        if not below:
            return self._answer_own(question, entry)
        if below[-1] == "_zone" and self._options.zonal and entry.headless and not self._options.imports:
            return self._answer_zonal(question, entry)
        if len(below) == 2:
            port = entry.port(below[0].removeprefix("_"), below[1].removeprefix("_"))
            if port is None and self._options.imports:
                port = entry.host(".".join(below))
            return self._answer_set(question, entry, port) if port is not None else self.forms.missing(question)
        if len(below) == 1:
            host = entry.host(below[0])
            if host is not None:
                return self._answer_set(question, entry, host)
            if below[0].startswith("_") and any(protocol == below[0][1:] for _, protocol in entry.port_names):
                return self.forms.records(question, ())
        return self.forms.missing(question)

    def _answer_zonal(self, question: ZoneQuestion, entry: ServiceRecords) -> ZoneAnswer:
        """The endpoints of a topology zone: ``pin`` has those alone, ``prefer`` has all when the zone has none.

        The name of the zone may have several labels; a dot inside a label is another name.
        """
        labels = question.relative[:-4]
        if len(labels) < 2 or labels[-1] not in ("pin", "prefer") or any("." in label for label in labels):
            return self.forms.missing(question)
        *topology_zone, mode = labels
        records = entry.in_zone(".".join(topology_zone))
        if mode == "prefer" and not records.addresses.v4 and not records.addresses.v6:
            records = NameRecords(entry.addresses, entry.targets)
        return self._answer_set(question, entry, records)

    def _answer_own(self, question: ZoneQuestion, entry: ServiceRecords) -> ZoneAnswer:
        """The answer for the name of a Service."""
        if question.qtype == wire.SRV:
            return self._answer_targets(question, entry, entry.targets)
        ring = entry.ring(question.qtype, self._options.ttl_s) if question.qtype in _HOST_TYPES else None
        return ZoneAnswer(ring=ring, zone=question.zone) if ring is not None else self.forms.records(question, ())

    def _answer_set(self, question: ZoneQuestion, entry: ServiceRecords, records: NameRecords) -> ZoneAnswer:
        if question.qtype != wire.SRV:
            return self.forms.addresses(question, records.addresses)
        return self._answer_targets(question, entry, records.targets)

    def _answer_targets(
        self, question: ZoneQuestion, entry: ServiceRecords, targets: tuple[ServiceTarget, ...]
    ) -> ZoneAnswer:
        if not targets:
            return self.forms.records(question, ())
        service, namespace = question.relative[-3], question.relative[-2]
        records = []
        glue: dict[bytes, tuple[ResourceRecord, ...]] = {}
        for target in targets[:_MAX_TARGETS]:
            own = self.host_labels(target.host) if target.host else ()
            labels = (*own, service, namespace, "svc")
            name = join_labels(labels, question.suffix)
            head = b"\x00\x00" + target.weight.to_bytes(2, "big") + target.port.to_bytes(2, "big")
            records.append(ResourceRecord(question.name, wire.SRV, self._options.ttl_s, head, (name,)))
            if name in glue:
                continue
            host = entry.host(target.host) if target.host else None
            addresses = host.addresses if host is not None else Addresses() if target.host else entry.addresses
            glue[name] = self.forms.all_addresses(name, addresses)
        return ZoneAnswer(
            records=tuple(records), additional=tuple(r for g in glue.values() for r in g), zone=question.zone
        )

    def _answer_alias(self, question: ZoneQuestion, alias: bytes) -> ZoneAnswer:
        own = ResourceRecord(question.name, wire.CNAME, self._options.ttl_s, names=(alias,))
        if question.qtype == wire.CNAME:
            return ZoneAnswer(records=(own,), zone=question.zone)
        if question.qtype not in _HOST_TYPES:
            return self.forms.records(question, ())
        chain = (*question.aliases, question.name.lower())
        if alias.lower() in chain:
            return self.forms.records(question, ())
        if len(chain) > _MAX_ALIASES:
            return ZoneAnswer(rcode=wire.SERVFAIL, zone=question.zone)
        target = self.look_up(alias, question.qtype, chain)
        if target.foreign:
            return ZoneAnswer(records=(own,), follow=alias, zone=question.zone)
        if target.rcode == wire.SERVFAIL:
            return ZoneAnswer(rcode=wire.SERVFAIL, zone=question.zone)
        if target.empty:
            return self.forms.records(question, ())
        ring = target.ring
        if ring is not None and not ring.owner:
            ring = AddressRing(ring.data, ring.step, alias)
        return ZoneAnswer(records=(own, *target.records), ring=ring, follow=target.follow, zone=question.zone)

    def _answer_reverse(self, question: ZoneQuestion, labels: list[bytes]) -> ZoneAnswer:
        known = self.index.reverse.get(parse_reverse(labels))
        if known:
            return self._answer_pointers(question, known)
        if question.zone in self._fallthrough:
            return FOREIGN
        if question.relative:
            return self.forms.missing(question)
        return self.forms.records(question, (self.forms.soa(question),) if question.qtype == wire.SOA else ())

    def _answer_pointers(self, question: ZoneQuestion, known: dict[tuple[ServiceKey, str], None]) -> ZoneAnswer:
        if question.qtype != wire.PTR:
            return self.forms.records(question, ())
        for (namespace, name), host in known:
            if not host:
                target = join_labels((name, namespace, "svc"), self.apex[0])
                data = TO_QUESTION + wire.encode_fixed(wire.PTR, self._options.ttl_s, target)
                return ZoneAnswer(ring=AddressRing(data, len(data)), zone=question.zone)
        # Many programs use the first name only: chosen host names come before names made from the address.
        hosts = sorted(known, key=lambda entry: bool(parse_dashed(entry[1])))
        targets = [join_labels((host, name, namespace, "svc"), self.apex[0]) for (namespace, name), host in hosts]
        pointers = (ResourceRecord(question.name, wire.PTR, self._options.ttl_s, names=(t,)) for t in targets)
        return self.forms.records(question, tuple(pointers))

    def host_labels(self, host: str) -> tuple[str, ...]:
        """The labels of an endpoint: those of imported Services have the name of their cluster behind the host."""
        return tuple(host.split(".")) if self._options.imports else (host,)

    @property
    def host_names(self) -> Mapping[bytes, tuple[bytes, ...]]:
        """The addresses of the fixed names."""
        return self._hosts.names

    @property
    def plain(self) -> bool:
        """Whether missing names of the zone depend on its objects alone, not on fixed names or options."""
        passed_on = self.domain in self._fallthrough or "" in self._fallthrough
        below = self.imported is not None and match_zone(self.imported.apex[0], self.apex) is not None
        return not (self._hosts.names or self._options.namespaces or passed_on or below)

    @property
    def plain_reverse(self) -> bool:
        """Whether all reverse names of IPv4 addresses are in the zone ``in-addr.arpa``."""
        return [zone for zone in self._zones.values() if zone.endswith("in-addr.arpa")] == ["in-addr.arpa"]
