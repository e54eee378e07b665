"""Every field of the kinds of projectcalico.org/v3 has an effect, or an object with it is refused by its name."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from tests.unit.routing.backends.test_bgp_definitions import FIELDS, RULE
from tests.unit.routing.backends.test_bgp_objects import PASSWORD, Json, configuration, peer_values, pool, rules

from podwire.errors import ConfigError
from podwire.model.bgp import FilterOperation

Outcome = Literal["served", "refused", "as podwire does"]
"""``as podwire does``: the value names what happens anyway, and any other value is refused."""
S: Outcome = "served"
R: Outcome = "refused"
A: Outcome = "as podwire does"

CASES: dict[str, tuple[Callable[[Json], Any], Json, dict[str, list[tuple[Any, Outcome]]]]] = {
    "BGPConfiguration": (
        configuration,
        {},
        {
            "asNumber": [(64513, S)],
            "bindMode": [("NodeIP", S)],
            "communities": [([{"name": "blue", "value": "wrong"}], R)],  # served by prefixAdvertisements
            "ignoredInterfaces": [(["eth9", "cali*"], S), (["eth*"], R), (["a b"], R)],
            "ipv4NormalRoutePriority": [(1024, R)],
            "ipv6NormalRoutePriority": [(1024, R)],
            "listenPort": [(1179, S)],
            "localWorkloadPeeringIPV4": [("10.0.0.1", R)],
            "localWorkloadPeeringIPV6": [("fd00::1", R)],
            "logSeverityScreen": [("Debug", S)],
            "nodeMeshMaxRestartTime": [("60s", S)],
            "nodeMeshPassword": [(PASSWORD, S)],
            "nodeToNodeMeshEnabled": [(False, S)],
            "prefixAdvertisements": [([{"cidr": "10.244.0.0/16", "communities": ["64512:7"]}], S)],
            "programClusterRoutes": [("Disabled", S), ("EnabledIPIPOnly", S), ("Sometimes", R)],
            "serviceClusterIPs": [([{"cidr": "10.96.0.0/12"}], S)],
            "serviceExternalIPs": [([{"cidr": "192.0.2.0/24"}], S)],
            "serviceLoadBalancerAggregation": [("Sometimes", R)],  # served by serviceLoadBalancerIPs
            "serviceLoadBalancerIPs": [([{"cidr": "192.0.2.0/24"}], S)],
        },
    ),
    "BGPPeer": (
        peer_values,
        {"peerIP": "10.89.0.1", "asNumber": 64600},
        {
            "asNumber": [(64601, S)],
            "filters": [(["no-default"], S), (["missing"], R)],
            "keepOriginalNextHop": [(True, S)],
            "keepaliveTime": [("20s", S)],
            "localASNumber": [(64513, S)],
            "localWorkloadSelector": [("all()", R)],
            "maxRestartTime": [("60s", S)],
            "nextHopMode": [("Self", S), ("Keep", S)],
            "node": [("node-1", S)],
            "nodeSelector": [("has(rack)", S)],
            "numAllowedLocalASNumbers": [(1, S)],
            "password": [(PASSWORD, S)],
            "peerIP": [("10.89.0.2:1179", S)],
            "peerSelector": [("has(rr)", R)],  # beside peerIP; served without it
            "reachableBy": [("10.89.0.9", S)],
            "reversePeering": [("Manual", S)],
            "sourceAddress": [("None", S)],
            "ttlSecurity": [(2, S)],
        },
    ),
    "BGPFilter": (
        rules,
        {},
        {name: [([{"action": "Reject"}], S)] for name in ("exportV4", "exportV6", "importV4", "importV6")},
    ),
    "IPPool": (
        pool,
        {"cidr": "10.244.0.0/16"},
        {
            "allowedUses": [(["Workload"], A), (["Tunnel"], R)],
            "assignmentMode": [("Automatic", A), ("Manual", R)],
            "blockSize": [(24, A), (26, R)],
            "cidr": [("10.245.0.0/16", S)],
            "disableBGPExport": [(True, S)],
            "disabled": [(False, A), (True, R)],
            "ipipMode": [("Never", A), ("Always", R)],
            "namespaceSelector": [("all()", A), ("has(a)", R)],
            "natOutgoing": [(True, A), (False, R)],
            "nodeSelector": [("all()", A), ("has(a)", R)],
            "vxlanMode": [("Never", A), ("CrossSubnet", R)],
        },
    ),
    "rule": (
        lambda rule: rules({"importV4": [rule]}),
        {"action": "Accept"},
        {
            "action": [("Reject", S)],
            "asPathPrefix": [([64600], S)],
            "cidr": [("10.0.0.0/8", R)],  # without matchOperator; served with it
            "communities": [({"values": ["64512:7"]}, S)],
            "interface": [("eth9", S)],
            "matchOperator": [("In", R)],
            "operations": [([{"addCommunity": {"value": "64512:7"}}], S), ([{"prependASPath": {"prefix": [1]}}], S)],
            "peerType": [("eBGP", S)],
            "prefixLength": [({"min": 24}, R)],
            "priority": [(1024, R)],
            "source": [("RemotePeers", S)],
        },
    ),
    "operation": (
        lambda operation: rules({"importV4": [{"action": "Accept", "operations": [operation]}]}),
        {},
        {
            "addCommunity": [({"value": "64512:7"}, S)],
            "prependASPath": [({"prefix": [64513]}, S)],
            "setPriority": [({"value": 1024}, R)],
        },
    ),
}
"""By kind: what reads an object, a valid object, and values of each field with their outcomes."""
TOGETHER = [
    (
        "BGPConfiguration",
        {"serviceLoadBalancerIPs": [{"cidr": "192.0.2.0/24"}]},
        "serviceLoadBalancerAggregation",
        "Disabled",
    ),
    (
        "BGPConfiguration",
        {"prefixAdvertisements": [{"cidr": "10.244.0.0/16", "communities": ["64512:7"]}]},
        "prefixAdvertisements",
        [{"cidr": "10.244.0.0/16", "communities": ["64512:8"]}],
    ),
    ("BGPPeer", {"peerIP": "", "asNumber": None, "peerSelector": "has(rr)"}, "peerSelector", "has(other)"),
    ("rule", {"cidr": "10.0.0.0/8", "matchOperator": "In"}, "cidr", "11.0.0.0/8"),
    ("rule", {"cidr": "10.0.0.0/8", "matchOperator": "In"}, "matchOperator", "NotIn"),
    ("rule", {"cidr": "10.0.0.0/8", "matchOperator": "In"}, "prefixLength", {"min": 24}),
]
"""Fields that have an effect beside others: what the object has besides, the field and its value."""


def names_of(kind: str) -> list[str]:
    if kind == "operation":
        return sorted(FilterOperation.__struct_encode_fields__)
    return RULE if kind == "rule" else FIELDS[kind][1].split()


@pytest.mark.parametrize("kind", CASES)
def test_every_field_has_a_case(kind: str) -> None:
    assert sorted(CASES[kind][2]) == sorted(names_of(kind))


@pytest.mark.parametrize(
    ("kind", "field", "value", "outcome"),
    [
        (kind, field, value, outcome)
        for kind, (_, _, fields) in CASES.items()
        for field, values in fields.items()
        for value, outcome in values
    ],
)
def test_every_field_is_served_or_refused_by_name(kind: str, field: str, value: Any, outcome: Outcome) -> None:
    read, base, _ = CASES[kind]
    if outcome == "refused":
        with pytest.raises(ConfigError) as refused:
            read(base | {field: value})
        assert any(name in str(refused.value) for name in (field, "matchOperator", "peerIP"))
        return
    without = read(base) if kind != "operation" else read({"addCommunity": {"value": "64512:9"}})
    assert (read(base | {field: value}) == without) == (outcome == "as podwire does")


@pytest.mark.parametrize(("kind", "besides", "field", "value"), TOGETHER)
def test_fields_have_their_effect_beside_others(kind: str, besides: Json, field: str, value: Any) -> None:
    read, base, _ = CASES[kind]
    base = {key: known for key, known in (base | besides).items() if known is not None}
    assert read(base | {field: value}) != read(base)


@pytest.mark.parametrize(
    ("text", "writes"),
    [("Enabled", True), ("EnabledNoEncapOnly", True), ("EnabledIPIPOnly", False), ("Disabled", False)],
)
def test_bird_writes_routes_to_pods_that_are_not_encapsulated(text: str, writes: bool) -> None:
    assert configuration({"programClusterRoutes": text}).writes_pod_routes == writes
