"""Imported Services, topology zones, external addresses and zone transfers, as a table: facts, question, answer."""

import json
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import msgspec
import pytest
from tests.unit.dns.test_kubernetes_cases import fill, lines_of

from podwire.dns.config import DnsConfig, PluginBlock
from podwire.dns.corefile.syntax import Directive
from podwire.dns.imports import service_of, slice_of
from podwire.dns.plugins.chain import ChainQuery, DnsClient, PluginChain, ReplyStream
from podwire.dns.plugins.plugin import PluginScope
from podwire.dns.respond import Reply
from podwire.dns.zone import Zone, ZoneOptions
from podwire.model.service import EndpointSlice
from podwire.model.serviceimport import ServiceImport

_TABLE = json.loads((Path(__file__).parents[2] / "cases" / "dns" / "beyond.json").read_text())
_LOCAL = bytes([127, 0, 0, 1])


def make_zone(options: dict[str, Any], fixture: dict[str, Any], *, zonal: bool, domain: str = "") -> Zone:
    clusterset = domain or ("cluster.local" if "serviceimports" in fixture else "")
    zone = Zone(
        ZoneOptions(
            domain="home.local" if clusterset == "cluster.local" else "cluster.local",
            pods="disabled",
            namespaces=tuple(options["namespaces"]),
            fallthrough=(),
            reverse_zones=(),
            zonal=zonal,
            clusterset=clusterset,
            local_ips=(_LOCAL,),
        )
    )
    fill(zone, fixture)
    zone.index.mark_synced()
    if zone.imported is not None:
        index = zone.imported.index
        for item in fixture["namespaces"]:
            index.set_namespace(item["metadata"]["name"], present=True)
        for item in fixture["serviceimports"]:
            imported = msgspec.convert(item, ServiceImport)
            index.set_service(f"{imported.metadata.namespace}/{imported.metadata.name}", service_of(imported), 7)
        for item in fixture["imported_slices"]:
            piece = msgspec.convert(item, EndpointSlice)
            index.set_slice(f"{piece.metadata.namespace}/{piece.metadata.name}", slice_of(piece), 7)
        index.mark_synced()
    return zone


def make_chain(zone: Zone, *directives: Directive) -> PluginChain:
    block = PluginBlock(zones=("",), directives=directives, cluster=True)
    scope = PluginScope(zones=(), cluster=zone, domain="cluster.local")
    return PluginChain(DnsConfig(blocks=(block,), udp_size=4096), scope, lambda _ask, _view, _tcp: None)


_CASES = [
    pytest.param(suite, case, id=f"{suite['suite']}-{index}-{case['name']}-{case['type']}")
    for suite in _TABLE["suites"]
    for index, case in enumerate(suite["cases"])
]


def test_no_row_of_the_table_is_missing() -> None:
    assert (len(_TABLE["suites"]), len(_CASES), len(_TABLE["transfers"])) == (4, 94, 2)


@pytest.mark.parametrize(("suite", "case"), _CASES)
def test_answer_is_that_of_the_table(suite: dict[str, Any], case: dict[str, Any]) -> None:
    options = suite["options"]
    zone = make_zone(options, _TABLE["fixtures"][suite["fixture"]], zonal=case.get("zonal", options["zonal"]))
    directives: tuple[Directive, ...] = ()
    if options["external_zones"]:
        headless = Directive("headless", (), "Corefile", 2)
        directives = (Directive("k8s_external", tuple(options["external_zones"]), "Corefile", 1, (headless,)),)
    query = dns.message.make_query(case["name"], case["type"], use_edns=0, payload=4096)

    outcome, _ = make_chain(zone, *directives).respond(query.to_wire(), DnsClient("10.244.1.7", 4711))

    assert isinstance(outcome, Reply)
    reply = dns.message.from_wire(outcome.data, one_rr_per_rrset=True)
    assert query.is_response(reply) and reply.flags & dns.flags.AA
    assert dns.rcode.to_text(reply.rcode()) == case["rcode"]
    assert lines_of(reply.answer) == sorted(case["answer"])
    assert lines_of(reply.authority) == sorted(case["authority"])
    assert lines_of(reply.additional) == sorted(case["additional"])


@pytest.mark.parametrize("case", _TABLE["transfers"], ids=lambda case: case["zone"])
def test_transfer_has_the_records_of_the_table(case: dict[str, Any]) -> None:
    domain = case["zone"].removesuffix(".")
    clusterset = domain if domain != "cluster.local" else "clusterset.local"
    zone = make_zone(case, _TABLE["fixtures"]["serve"], zonal=False, domain=clusterset)
    to = Directive("to", ("*",), "Corefile", 2)
    chain = make_chain(zone, Directive("transfer", (domain,), "Corefile", 1, (to,)))
    request = dns.message.make_query(domain, "AXFR").to_wire()

    outcome, _ = chain.respond(request, DnsClient("10.244.1.7", 4711, True))

    assert isinstance(outcome, ReplyStream) and not isinstance(outcome, ChainQuery)
    (message,) = outcome.messages
    records = [
        line.replace(" 127.0.0.1", " 10.0.0.10")
        for rrset in dns.message.from_wire(message, one_rr_per_rrset=True).answer
        for line in lines_of([rrset])
    ]
    assert records[0] == records[-1]
    # A transfer has the weights and the names of answers; those of CoreDNS' transfers differ for two families, and for
    # the endpoints of other clusters, whose names CoreDNS does not answer in the form that it transfers.
    records = [line.replace(".cluster1.", ".").replace("cluster1.", "") for line in records]
    expected = {line.replace(" 0 100 80 svc-dual-stack", " 0 50 80 svc-dual-stack") for line in case["records"]}
    assert set(records) == expected
