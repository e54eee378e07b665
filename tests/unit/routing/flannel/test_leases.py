"""Leases of flanneld in etcd: reading, writing, and the Nodes that follow from them."""

import base64
import json

import pytest
from msgspec.structs import replace

from podwire.cluster.names import NODE_ROUTING_FACTS
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.flannel.leases import SubnetLease, encode_put, encode_range, own_lease, parse_range, with_leases
from podwire.routing.nodes import peer_of

PREFIX = "/coreos.com/network"
VALUE = {"PublicIP": "192.0.2.7", "BackendType": "vxlan", "BackendData": {"VNI": 1, "VtepMAC": "82:4b:b6:2f:54:4e"}}
LEASE = SubnetLease(
    subnets=("10.5.34.0/24",),
    addresses=("192.0.2.7",),
    kind="vxlan",
    data={4: '{"VNI":1,"VtepMAC":"82:4b:b6:2f:54:4e"}'},
)


def answer(**pairs: object) -> bytes:
    """etcd's answer with the values of keys, whose dots and slashes are the same in the names."""

    def coded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    kvs = [{"key": coded(f"{PREFIX}/subnets/{key}"), "value": coded(json.dumps(v))} for key, v in pairs.items()]
    return json.dumps({"header": {"revision": "5"}, "kvs": kvs, "count": str(len(kvs))}).encode()


def node(name: str, address: str, cidr: str = "", facts: str = "") -> Node:
    return Node(
        metadata=ObjectMeta(name=name, annotations={NODE_ROUTING_FACTS: facts} if facts else {}),
        spec=NodeSpec(pod_cidr=cidr, pod_cidrs=(cidr,) if cidr else ()),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=address),)),
    )


def test_the_request_covers_the_keys_of_subnets_alone() -> None:
    request = encode_range(PREFIX + "/")
    assert base64.b64decode(request["key"]) == b"/coreos.com/network/subnets/"
    assert base64.b64decode(request["range_end"]) == b"/coreos.com/network/subnets0"


def test_leases_of_both_families_are_read() -> None:
    both = VALUE | {"PublicIPv6": "2001:db8::7", "BackendV6Data": {"VNI": 1, "VtepMAC": "82:4b:b6:2f:54:66"}}
    leases, problems = parse_range(answer(**{"10.5.34.0-24": VALUE, "10.5.35.0-24&fd00:0:0:22::-64": both}), PREFIX)
    assert problems == () and len(leases) == 2
    assert leases[0].subnets == LEASE.subnets and leases[0].addresses == LEASE.addresses
    assert leases[1].subnets == ("10.5.35.0/24", "fd00:0:0:22::/64")
    assert leases[1].addresses == ("192.0.2.7", "2001:db8::7") and set(leases[1].data) == {4, 6}
    assert parse_range(b'{"header": {}}', PREFIX) == ((), ())


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("10.5.34.0", VALUE, "expected a key such as 10.5.34.0-24"),
        ("10.5.34.7-24", VALUE, "has host bits set"),
        ("10.5.34.0-24", {"PublicIP": "", "BackendType": "vxlan"}, "expected BackendType and PublicIP"),
        ("10.5.34.0-24", {"PublicIP": "node", "BackendType": "vxlan"}, "does not appear to be an IPv4"),
        ("10.5.34.0-24", [], "Expected `object`"),
    ],
)
def test_a_wrong_lease_is_left_out_and_named(key: str, value: object, problem: str) -> None:
    leases, (said,) = parse_range(answer(**{key: value, "10.5.36.0-24": VALUE}), PREFIX)
    assert [lease.subnets for lease in leases] == [("10.5.36.0/24",)]
    assert said.startswith(f"{PREFIX}/subnets/{key}: ") and problem in said


def test_an_answer_that_is_not_of_etcd_is_refused() -> None:
    with pytest.raises(ValueError, match="no answer of etcd"):
        parse_range(b"<html>", PREFIX)


def test_a_written_lease_reads_back() -> None:
    own = own_lease(LEASE.annotations(), ["fd00:0:0:22::/64", "10.5.34.0/24"])
    assert own == replace(LEASE, subnets=("10.5.34.0/24", "fd00:0:0:22::/64"))
    put = encode_put(own, PREFIX, "17")
    assert put["lease"] == "17"
    pair = {"key": put["key"], "value": put["value"]}
    assert parse_range(json.dumps({"kvs": [pair]}).encode(), PREFIX) == ((own,), ())
    assert own_lease({}, ["10.5.34.0/24"]) is None and own_lease(LEASE.annotations(), []) is None


def test_a_lease_without_a_node_becomes_a_peer() -> None:
    merged = with_leases({"node-1": node("node-1", "192.0.2.1")}, [LEASE], "node-1")
    peer = peer_of(merged["flanneld-10.5.34.0-24"])
    assert [str(cidr) for cidr in peer.pod_cidrs] == ["10.5.34.0/24"]
    assert [str(address) for address in peer.addresses] == ["192.0.2.7"]
    assert peer.facts is not None and peer.facts.backend == "vxlan"
    assert peer.facts.details == {"mac": "82:4b:b6:2f:54:4e", "vni": 1}


def test_a_lease_describes_a_node_without_facts_of_podwire() -> None:
    plain, changed = node("node-7", "192.0.2.7", "10.9.7.0/24"), node("node-7", "192.0.2.7", "10.5.34.0/24", "{}")
    merged = with_leases({"node-7": plain}, [LEASE], "node-1")
    assert merged["node-7"].pod_cidrs == ("10.5.34.0/24",) and peer_of(merged["node-7"]).facts is not None
    assert with_leases({"node-7": changed}, [LEASE], "node-1") == {"node-7": changed}
    moved = node("node-7", "192.0.2.99", "10.5.34.0/24", "{}")
    assert with_leases({"node-7": moved}, [LEASE], "node-1") == {"node-7": moved}, "the subnet is podwire's now"
    assert with_leases({"node-7": plain}, [LEASE], "node-7") == {"node-7": plain}, "the own Node stays"
