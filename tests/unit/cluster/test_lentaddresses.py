"""The addresses of a node's ranges that other nodes use."""

from ipaddress import ip_network

from podwire.cluster.lentaddresses import LentAddresses
from podwire.model.meta import ObjectMeta
from podwire.model.node import POD_BLOCKS, Node


def node(name: str, *ranges: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, annotations={POD_BLOCKS: ",".join(ranges)}))


def test_borrowed_addresses_are_outside_of_the_owners_ranges() -> None:
    lent = LentAddresses()
    ranges = tuple(map(ip_network, ("10.0.0.0/29", "fd00::/125")))
    lent.follow("one", node("one", *map(str, ranges)))
    assert lent.outside("one", ranges) == ranges
    assert lent.follow("two", node("two", "10.1.0.0/29", "10.0.0.3/32", "fd00::7/128"))
    assert [str(network) for network in lent.outside("one", ranges)] == [
        "10.0.0.0/31",
        "10.0.0.2/32",
        "10.0.0.4/30",
        "fd00::/126",
        "fd00::4/127",
        "fd00::6/128",
    ]
    assert not lent.follow("two", node("two", "10.2.0.0/29", "10.0.0.3/32", "fd00::7/128"))
    assert lent.follow("two", None)
    assert lent.outside("one", ranges) == ranges


def test_own_borrowed_addresses_stay_in_the_ranges_of_the_node() -> None:
    lent = LentAddresses()
    lent.follow("two", node("two", "10.0.0.3/32"))
    assert lent.outside("two", [ip_network("10.0.0.3/32")]) == (ip_network("10.0.0.3/32"),)
