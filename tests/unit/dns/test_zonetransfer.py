"""The cluster's zone as a list of records."""

from tests.unit.dns.names_of_cluster import fill_cluster

from podwire.dns import wire
from podwire.dns.names import decode_name, encode_name
from podwire.dns.zone import Zone, ZoneOptions
from podwire.dns.zonetransfer import transfer_records

_NAME = encode_name("cluster.local")


def test_list_begins_and_ends_with_the_soa() -> None:
    zone = Zone(ZoneOptions(local_ips=(bytes([10, 244, 0, 53]),), namespaces=("shop",)))
    assert transfer_records(zone, _NAME) == ()
    fill_cluster(zone)
    records = transfer_records(zone, _NAME)
    assert records[0] == records[-1] and [record.type for record in records[:3]] == [wire.SOA, wire.NS, wire.A]
    assert len(records) == len(set(records)) + 1
    assert transfer_records(zone, encode_name("shop.svc.cluster.local")) == ()


def test_namespaces_that_the_zone_hides_are_left_out() -> None:
    zone = Zone(ZoneOptions(namespaces=("empty",)))
    fill_cluster(zone)
    assert not [record for record in transfer_records(zone, _NAME) if "shop" in decode_name(record.name)]
