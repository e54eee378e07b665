"""Lines of the log of policies: names, the reason, one of a connection that passes."""

import asyncio
import json
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.fakes.clock import FakeClock

from podwire.cluster.world import Party
from podwire.kernel.nflog import Logged
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod
from podwire.policy.connectionmatch import Connection
from podwire.policy.packetlog import PacketLookups, PolicyLog
from podwire.policy.ports import Ruling
from podwire.policy.verdicts import RuleHit

PODS = {"10.0.0.1": "web", "10.0.0.2": "db"}
RULED = {
    "rule-1": RuleHit("Ingress", Ruling(accept=False), ("shop/deny",)),
    "rule-2": RuleHit("Ingress", Ruling(accept=True, audit=True), ("shop/later",)),
}
PACKET = Logged(
    prefix="rule-1",
    source="10.0.0.1",
    destination="10.0.0.2",
    protocol="TCP",
    source_port=4000,
    destination_port=5432,
    at=1_700_000_000.5,
)


def party(address: str) -> Party:
    if address not in PODS:
        return Party(address=address)
    return Party(address=address, node="node-1", pod=Pod(metadata=ObjectMeta(name=PODS[address], namespace="shop")))


def why(connection: Connection, audited: str) -> tuple[bool, str]:
    return connection.port == 81, f"{audited} in audit about " * bool(audited) + f"about {connection.port}"


def opened_log() -> tuple[PolicyLog, FakeClock, Callable[..., list[dict[str, object]]]]:
    clock = FakeClock()
    sight = PacketLookups("node-1", RULED.get, party, why)
    log = PolicyLog(sight, clock)

    def page(**query: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in log.page({name: [value] for name, value in query.items()})]

    return log, clock, page


def test_a_packet_is_logged_with_names_and_reason() -> None:
    log, _, page = opened_log()
    log.write(PACKET)
    log.write(replace(PACKET, destination="192.0.2.1", protocol="ICMPv6", destination_port=0, at=None))
    first, second = page()
    assert first == {
        "number": 1,
        "at": "2023-11-14T22:13:20.500Z",
        "node": "node-1",
        "verdict": "dropped",
        "direction": "ingress",
        "source": "shop/web",
        "destination": "shop/db",
        "protocol": "TCP",
        "port": 5432,
        "sourceAddress": "10.0.0.1",
        "destinationAddress": "10.0.0.2",
        "sourcePort": 4000,
        "policies": ["shop/deny"],
        "rule": None,
        "why": "about 5432",
    }
    assert (second["destination"], second["protocol"], second["number"]) == ("192.0.2.1", "ICMP", 2)


def test_the_page_selects_new_or_last_lines() -> None:
    log, _, page = opened_log()
    for _ in range(1500):
        log.write(PACKET)
    assert [len(page()), page()[0]["number"]] == [1000, 501]
    assert [item["number"] for item in page(after="1498")] == [1499, 1500]
    assert [item["number"] for item in page(last="1")] == [1500]
    assert page(after="1500") == page(last="0") == []
    with pytest.raises(ValueError, match="invalid literal"):
        log.page({"last": ["all"]})


def test_passing_connection_is_logged_once_a_minute() -> None:
    log, clock, page = opened_log()
    passing = replace(PACKET, prefix="rule-2")
    for _ in range(5):
        log.write(passing)
    log.write(replace(passing, source_port=4001))
    assert [(item["verdict"], item["sourcePort"]) for item in page()] == [("audited", 4000), ("audited", 4001)]
    assert page()[0]["why"] == "Ingress in audit about about 5432"
    asyncio.run(clock.advance(61))
    log.write(passing)
    assert len(page()) == 3


def test_a_rule_that_is_there_no_more() -> None:
    log, _, page = opened_log()
    log.write(replace(PACKET, prefix="rule-9"))
    assert [(item["verdict"], item["policies"]) for item in page()] == [("dropped", [])]


def test_drops_without_policy_name_their_reason_and_direction() -> None:
    log, _, page = opened_log()
    log.write(replace(PACKET, prefix="podwire-borrowed", input=1, output=999_999))
    (item,) = page()
    output = "the packet came from a pod's device with an address that is not that pod's (from lo to device 999999)"
    assert item["why"] == f"shop/web -> shop/db TCP 5432: dropped: {output}"
    assert (item["verdict"], item["policies"]) == ("dropped", [])


def test_log_says_when_policies_would_now_allow_the_packet() -> None:
    log, _, page = opened_log()
    log.write(replace(PACKET, destination_port=81))
    (item,) = page()
    assert item["why"] == "about 81; the rules were different when the packet came (no ingress rule of shop/deny)"
