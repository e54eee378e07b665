"""What the Kubernetes DNS specification asks for, as a table: facts, question, answer."""

import json
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.rdatatype
import msgspec
import pytest

from podwire.dns import wire
from podwire.dns.names import address_bytes
from podwire.dns.records import endpoint_host
from podwire.dns.respond import UpstreamQuery, merge, respond
from podwire.dns.zone import Zone, ZoneOptions
from podwire.model.meta import ObjectReference
from podwire.model.pod import Pod
from podwire.model.service import Endpoint, EndpointSlice, Service

_TABLE = json.loads((Path(__file__).parents[2] / "cases" / "dns" / "kubernetes.json").read_text())


def _key(document: dict[str, Any]) -> str:
    meta = document["metadata"]
    return f"{meta['namespace']}/{meta['name']}"


def fill(zone: Zone, fixture: dict[str, Any]) -> None:
    for document in fixture["namespaces"]:
        zone.index.set_namespace(document["metadata"]["name"], present=True)
    for document in fixture["services"]:
        zone.index.set_service(_key(document), msgspec.convert(document, Service), 7)
    for document in fixture["endpointslices"]:
        zone.index.set_slice(_key(document), msgspec.convert(document, EndpointSlice), 7)
    for document in fixture["pods"]:
        zone.index.set_pod(_key(document), msgspec.convert(document, Pod))


def make_zone(options: dict[str, Any], fixture: dict[str, Any]) -> Zone:
    first, *reverse = options["zones"]
    zone = Zone(
        ZoneOptions(
            domain=first,
            pods=options["pods"],
            namespaces=tuple(options["namespaces"]),
            reverse_zones=tuple(reverse),
            fallthrough=(),
            ignore_empty_service=options["ignore_empty_service"],
            local_ips=tuple(address_bytes(ip) for ip in options["local_ips"]),
        )
    )
    fill(zone, fixture)
    if options["synced"]:
        zone.index.mark_synced()
    return zone


def lines_of(section: list[Any]) -> list[str]:
    result = []
    for rrset in section:
        for rdata in rrset:
            text = rdata.to_text()
            if rrset.rdtype == dns.rdatatype.SOA:
                fields = text.split()
                text = " ".join([*fields[:2], "*", *fields[3:]])
            result.append(f"{rrset.name.to_text()} {rrset.ttl} {dns.rdatatype.to_text(rrset.rdtype)} {text}")
    return sorted(result)


def _upstream_message(case: dict[str, Any], ask: UpstreamQuery) -> wire.DnsMessage:
    oracle = dns.message.from_text(
        "id 1\nopcode QUERY\nrcode NOERROR\nflags QR TC\n;QUESTION\n"
        f"{case['upstream']['answer'][0].split()[0]} IN {case['type']}\n;ANSWER\n"
        + "\n".join("{} {} IN {} {}".format(*line.split(maxsplit=3)) for line in case["upstream"]["answer"])
    )
    return wire.parse_message(oracle.to_wire())


_CASES = [
    pytest.param(suite, case, id=f"{suite['suite']}-{index}-{case['name']}-{case['type']}")
    for suite in _TABLE["suites"]
    for index, case in enumerate(suite["cases"])
]


def test_no_row_of_the_table_is_missing() -> None:
    assert (len(_TABLE["suites"]), len(_CASES), len(_TABLE["endpoint_hosts"])) == (10, 85, 8)


@pytest.mark.parametrize(("suite", "case"), _CASES)
def test_answer(suite: dict[str, Any], case: dict[str, Any]) -> None:
    zone = make_zone(suite["options"], _TABLE["fixtures"][suite["fixture"]])
    query = dns.message.make_query(case["name"], case["type"], use_edns=0, payload=4096)

    outcome = respond(zone, query.to_wire(), udp_ceiling=4096)
    if isinstance(outcome, UpstreamQuery):
        outcome = merge(outcome, _upstream_message(case, outcome), 4096)

    assert outcome is not None
    reply = dns.message.from_wire(outcome.data, one_rr_per_rrset=True)
    assert query.is_response(reply)
    assert dns.rcode.to_text(reply.rcode()) == case["rcode"]
    assert lines_of(reply.answer) == sorted(case["answer"])
    assert lines_of(reply.authority) == sorted(case["authority"])
    assert lines_of(reply.additional) == sorted(case["additional"])
    assert reply.flags & dns.flags.AA
    assert bool(reply.flags & dns.flags.TC) == case.get("upstream", {}).get("truncated", False)
    if len(reply.answer) > 1 and reply.answer[0].rdtype == dns.rdatatype.CNAME:
        assert case["answer"][0].split()[2] == "CNAME"


@pytest.mark.parametrize("case", _TABLE["endpoint_hosts"], ids=lambda case: case["expect"])
def test_endpoint_host(case: dict[str, Any]) -> None:
    reference = ObjectReference(kind="Pod", name=case["pod_name"]) if case["pod_name"] else None
    endpoint = Endpoint(addresses=(case["ip"],), hostname=case["hostname"] or None, target_ref=reference)

    assert endpoint_host(case["ip"], endpoint, pod_names=case["endpoint_pod_names"]) == case["expect"]


@pytest.mark.parametrize("case", _TABLE["name_servers"])
def test_name_servers_are_the_services_in_front_of_us(case: dict[str, Any]) -> None:
    zone = Zone(ZoneOptions(domain="inter.webs.test", local_ips=(address_bytes(case["local_ip"]),)))
    fill(zone, case["fixture"])

    query = dns.message.make_query("inter.webs.test.", "NS")
    outcome = respond(zone, query.to_wire(), udp_ceiling=1232)

    assert outcome is not None and not isinstance(outcome, UpstreamQuery)
    reply = dns.message.from_wire(outcome.data, one_rr_per_rrset=True)
    glue = sorted([line.split()[0], line.split()[2], line.split()[3]] for line in lines_of(reply.additional))
    assert glue == sorted(case["expect"])
    assert sorted(rrset[0].to_text() for rrset in reply.answer) == sorted(name for name, _, _ in case["expect"])
