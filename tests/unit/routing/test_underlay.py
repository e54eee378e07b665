"""The device under the pods, found by the node's addresses."""

from ipaddress import ip_address

from podwire.routing.underlay import find
from podwire.state.network import parse

STATE = parse("""
link lo mtu 65536 up
link docker0 mtu 1500 up type bridge
link eth1 mtu 9000 up
address 127.0.0.1/8 dev lo
address 172.17.0.1/16 dev docker0
address 10.89.0.11/24 dev eth1
address fd89::11/64 dev eth1
address fe80::1/64 dev eth1
route default via 10.89.0.1 dev eth1 mtu 1400
route 10.0.0.0/8 via 10.89.0.2 dev eth1 mtu 1300
""")


def test_the_device_with_the_node_s_address() -> None:
    result = find(STATE, [ip_address("10.89.0.11")])
    assert result is not None
    assert (result.link, result.mtu) == ("eth1", 1400)
    assert [str(a) for a in result.addresses] == ["10.89.0.11/24", "fd89::11/64"]
    assert result.reaches(ip_address("10.89.0.200")) and not result.reaches(ip_address("10.89.1.1"))
    assert result.reaches(ip_address("fd89::99"))


def test_the_first_address_that_a_device_holds_counts() -> None:
    result = find(STATE, [ip_address("192.0.2.1"), ip_address("fd89::11")])
    assert result is not None and result.link == "eth1"


def test_no_device() -> None:
    assert find(STATE, [ip_address("192.0.2.1")]) is None
    assert find(STATE, []) is None
