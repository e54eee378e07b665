"""The text and the JSON of an answer."""

from pathlib import Path

import msgspec

from podwire.why import answer_text
from podwire.why.answer import (
    AffinityState,
    Answer,
    ConnectionEnd,
    DirectionVerdict,
    Drift,
    EndpointChoice,
    Hop,
    MatchedRule,
    NearestRule,
    NodeEnforcement,
    NodeRoute,
    PolicyReference,
    PolicyVerdict,
    RuleMatch,
    RuleTerm,
    ServiceMatch,
    SourceTranslation,
    TunnelHeader,
)

ENDPOINTS = (
    EndpointChoice(
        address="10.244.0.3",
        port=3000,
        used=True,
        reason="Ready",
        message="ready",
        probability=1.0,
        masqueraded=False,
        pod="shop/catalog-1",
        node="node-1",
    ),
    EndpointChoice(
        address="fd44::9",
        port=3000,
        used=False,
        reason="NotReady",
        message="not ready",
        probability=0,
        masqueraded=False,
    ),
)
HOP = Hop(
    node="node-2",
    mode="nftables",
    state="held",
    outcome="forwarded",
    reason="Endpoints",
    message="to the only usable endpoint",
    service=ServiceMatch(
        namespace="shop",
        name="catalog",
        type="ClusterIP",
        port_name="http",
        port=8080,
        protocol="TCP",
        frontend="ClusterIP",
        policy="internalTrafficPolicy: Cluster",
        also_claimed_by=("shop/other",),
    ),
    endpoints=ENDPOINTS,
    snat=SourceTranslation(masqueraded=False, reason="PodToClusterIP", message="a pod keeps its address"),
    affinity=AffinityState(timeout_seconds=60, entries=("map affinity { 10.244.1.2 : 1 }",)),
    steps=(
        MatchedRule(
            layer="service", where="prerouting: ip t dispatch", rule="vmap @services", elements=("map services { x }",)
        ),
        MatchedRule(layer="service", where="prerouting: ip t dispatch", rule="accept"),
    ),
    drift=(Drift(where="ip t", sign="+", text="map services { y }"),),
    flows=("from port 4 to 10.244.0.3 port 3000",),
)
ANSWER = Answer(
    source=ConnectionEnd(kind="Pod", name="shop/web-0", address="10.244.1.2", node="node-2"),
    target=ConnectionEnd(kind="Service", name="shop/catalog", address="10.96.1.5", port=8080),
    protocol="TCP",
    outcome="forwarded",
    hops=(HOP,),
    notes=("one note",),
)


def test_text() -> None:
    assert (
        "\n".join(answer_text.render(ANSWER))
        == """\
Pod shop/web-0 (10.244.1.2) on node-2 -> Service shop/catalog (10.96.1.5:8080) TCP

outcome   forwarded: to the only usable endpoint
decided   on node-2, by the nftables rules in its kernel
service   shop/catalog, port http 8080/TCP (ClusterIP), by its ClusterIP
traffic   internalTrafficPolicy: Cluster
conflict  Service shop/other names the same address and port, and does not have it
source    kept: a pod keeps its address
affinity  ClientIP, an endpoint is kept for 60 s; this client has one:
          map affinity { 10.244.1.2 : 1 }
flow      known, keeps its endpoint: from port 4 to 10.244.0.3 port 3000

endpoint         used  chance  why        pod             node
10.244.0.3:3000  yes   100%    ready      shop/catalog-1  node-1
[fd44::9]:3000   no    -       not ready  -               -

differs from the plan (+ is missing, - is extra)
  + ip t: map services { y }

rules, in the order in which they matched
  prerouting: ip t dispatch
      vmap @services
        map services { x }
      accept

note      one note"""
    )


def test_a_second_node_and_one_without_a_service() -> None:
    first = Hop(node="node-1", mode="other", state="planned", outcome="untouched", reason="NoService", message="none")
    lines = list(answer_text.render(msgspec.structs.replace(ANSWER, hops=(first, HOP), notes=())))
    assert lines[2:4] == [
        "outcome   not touched by any Service: none",
        "decided   on node-1, by the other rules it should have",
    ]
    assert "then on node-2" in lines
    assert lines[-1] == "      accept"


def test_json_says_what_there_is_and_leaves_out_the_rest() -> None:
    document = msgspec.json.decode(msgspec.json.encode(ANSWER))
    assert list(document) == ["from", "to", "protocol", "outcome", "hops", "notes"]
    assert document["from"] == {"kind": "Pod", "name": "shop/web-0", "address": "10.244.1.2", "node": "node-2"}
    hop = document["hops"][0]
    assert hop["service"]["alsoClaimedBy"] == ["shop/other"]
    assert hop["endpoints"][1] == {
        "address": "fd44::9",
        "port": 3000,
        "used": False,
        "reason": "NotReady",
        "message": "not ready",
        "probability": 0,
        "masqueraded": False,
    }
    assert hop["snat"]["masqueraded"] is False
    bare = Hop(node="n", mode="m", state="held", outcome="untouched", reason="NoService", message="")
    assert set(msgspec.json.decode(msgspec.json.encode(bare))) == {
        "node",
        "mode",
        "state",
        "outcome",
        "reason",
        "message",
    }
    assert msgspec.json.decode(msgspec.json.encode(ANSWER), type=Answer) == ANSWER


_KINDS = (
    Answer,
    Hop,
    ConnectionEnd,
    ServiceMatch,
    EndpointChoice,
    SourceTranslation,
    AffinityState,
    MatchedRule,
    Drift,
    PolicyVerdict,
    DirectionVerdict,
    RuleMatch,
    RuleTerm,
    NearestRule,
    PolicyReference,
    NodeEnforcement,
    NodeRoute,
    TunnelHeader,
)


def test_the_page_names_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs/why.md").read_text()
    table = page[page.index("## JSON") : page.index("## What it costs")]
    for kind in _KINDS:
        for field in kind.__struct_encode_fields__:
            assert f"`{field}" in table or f".{field}`" in table or f".{field}[]`" in table, field


def test_an_address_alone() -> None:
    assert str(ConnectionEnd(kind="External")) == "External"
    assert str(ConnectionEnd(kind="Service", name="shop/db", port=5432)) == "Service shop/db (port 5432)"
    assert str(ConnectionEnd(kind="Address", address="fd00::1", port=80)) == "Address ([fd00::1]:80)"
