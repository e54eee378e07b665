"""The cluster's zone as a list of records, for zone transfers. Pure.

Order: SOA, NS with its addresses, then the Services by namespace and name, and SOA again. Services are published with
their addresses, SRV records of their ports, and endpoint names; pod names, which have no objects, are not.
"""

from collections.abc import Iterator

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.names import join_labels
from podwire.dns.records import ServiceRecords
from podwire.dns.wire import ResourceRecord
from podwire.dns.zone import Zone


def transfer_records(zone: Zone, name: bytes) -> tuple[ResourceRecord, ...]:
    """All records of the zone; empty when ``name`` is not the zone, or before everything was listed."""
    soa = zone.look_up(name, wire.SOA)
    if not soa.records or soa.records[0].type != wire.SOA or not zone.index.synced:
        return ()
    servers = zone.look_up(name, wire.NS)
    records = [*soa.records, *servers.records, *servers.additional]
    for (namespace, service), entry in sorted(zone.index.records.items(), key=lambda item: (item[0][1], item[0][0])):
        if entry.present and zone.exposed(namespace):
            records += _service(zone, join_labels((service, namespace, "svc"), name), entry)
    return (*dict.fromkeys(records), soa.records[0])


def _service(zone: Zone, own: bytes, entry: ServiceRecords) -> Iterator[ResourceRecord]:
    if entry.alias:
        yield from _owned(zone, own, (wire.CNAME,))
        return
    yield from _owned(zone, own, (wire.A, wire.AAAA) if entry.headless else (wire.A, wire.AAAA, wire.SRV))
    for host in sorted(entry.host_names()) if entry.headless else ():
        yield from _owned(zone, join_labels(zone.host_labels(host), own), (wire.A, wire.AAAA))
    for port, protocol in sorted(entry.port_names):
        yield from _owned(zone, join_labels((f"_{port}", f"_{protocol}"), own), (wire.SRV,))


def _owned(zone: Zone, name: bytes, qtypes: tuple[int, ...]) -> Iterator[ResourceRecord]:
    """The records of a name, with the name as their owner."""
    for qtype in qtypes:
        yield from _expand(name, zone.look_up(name, qtype))


def _expand(name: bytes, answer: ZoneAnswer) -> Iterator[ResourceRecord]:
    """The records of an answer, without those of an alias' target."""
    if answer.records:
        yield from (record for record in answer.records if record.name == name)
    elif answer.ring is not None:
        for start in range(0, len(answer.ring.data), answer.ring.step):
            yield wire.parse_record(name + answer.ring.data[start + 2 : start + answer.ring.step])
