"""The forms of names below a zone, and the name server of external names, as a table: facts, question, answer."""

import json
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from tests.unit.dns.test_beyond_cases import make_chain
from tests.unit.dns.test_beyond_cases import make_zone as make_full_zone
from tests.unit.dns.test_kubernetes_cases import fill

from podwire.dns.corefile.syntax import Directive
from podwire.dns.names import address_bytes, encode_name
from podwire.dns.plugins.chain import DnsClient
from podwire.dns.respond import Reply, respond
from podwire.dns.wire import A
from podwire.dns.zone import Zone, ZoneOptions

_TABLE = json.loads((Path(__file__).parents[2] / "cases" / "dns" / "forms.json").read_text())
_DOMAIN = "inter.webs.tests"


def make_zone(case: dict[str, Any]) -> Zone:
    """The zone of the fixture: the cluster's, or that of imported Services."""
    fixture = _TABLE["fixture"]
    if case["imported"]:
        return make_full_zone({"namespaces": ()}, fixture, zonal=case["zonal"], domain=_DOMAIN)
    zone = Zone(ZoneOptions(domain=_DOMAIN, pods="insecure", fallthrough=(), reverse_zones=(), zonal=case["zonal"]))
    fill(zone, fixture)
    zone.index.mark_synced()
    return zone


@pytest.mark.parametrize(
    "case", _TABLE["names"], ids=lambda c: f"{c['name']}{c['type']}-zonal={c['zonal']}-imported={c['imported']}"
)
def test_name_belongs_to_what_the_table_says(case: dict[str, Any]) -> None:
    query = dns.message.make_query(case["name"], case["type"], use_edns=0, payload=4096)

    outcome = respond(make_zone(case), query.to_wire(), udp_ceiling=4096)

    assert isinstance(outcome, Reply)
    reply = dns.message.from_wire(outcome.data)
    assert dns.rcode.to_text(reply.rcode()) == case["rcode"]
    records = [rdata for rrset in reply.answer for rdata in rrset]
    texts = [f"{r.port} {r.target}" if r.rdtype == dns.rdatatype.SRV else r.to_text() for r in records]
    assert sorted(texts) == sorted(case["answer"])


def test_name_of_a_zone_with_another_ending_is_not_ours() -> None:
    zone = make_zone({"imported": False, "zonal": False})
    assert zone.look_up(encode_name("webs.mynamespace.pood.inter.webs.test"), A).foreign


@pytest.mark.parametrize("kind", ["A", "NS"])
@pytest.mark.parametrize("case", _TABLE["name_servers"], ids=lambda c: " ".join(c["expect"]))
def test_external_name_server_has_the_addresses_of_its_services(case: dict[str, Any], kind: str) -> None:
    zone = Zone(ZoneOptions(local_ips=(address_bytes(case["local_ip"]),)))
    fill(zone, _TABLE["servers"]["external" if case["external"] else "plain"])
    zone.index.mark_synced()
    block = (Directive("headless", (), "Corefile", 2),) if case["headless"] else ()
    chain = make_chain(zone, Directive("k8s_external", ("example.com",), "Corefile", 1, block))
    name = "example.com" if kind == "NS" else "ns1.dns.example.com"

    outcome, _ = chain.respond(dns.message.make_query(name, kind).to_wire(), DnsClient("192.0.2.7", 4711))

    assert isinstance(outcome, Reply)
    reply = dns.message.from_wire(outcome.data)
    (rrset,) = reply.additional if kind == "NS" else reply.answer
    assert rrset.name.to_text() == "ns1.dns.example.com."
    assert sorted(rdata.to_text() for rdata in rrset) == sorted(case["expect"])
