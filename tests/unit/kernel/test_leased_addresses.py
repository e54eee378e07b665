"""Messages of addresses with a lifetime."""

from podwire.kernel.attributes import parse
from podwire.kernel.leased_addresses import LeasedAddress, encode
from podwire.kernel.route_codec import IFADDRMSG


def test_addresses_have_a_lifetime_and_the_mark() -> None:
    body = encode(LeasedAddress("eth0", "192.0.2.1"), {"eth0": 7}, 3)
    assert IFADDRMSG.unpack_from(body) == (2, 32, 0, 253, 7)
    values = parse(body, IFADDRMSG.size)
    assert values[6][:8] == bytes(4) + (3).to_bytes(4, "little")
    assert values[11][:1] == bytes([115])


def test_addresses_of_ipv6_need_no_detection_of_duplicates() -> None:
    body = encode(LeasedAddress("eth0", "2001:db8::1"), {"eth0": 7}, 0)
    assert IFADDRMSG.unpack_from(body) == (10, 128, 2, 0, 7)
    assert 6 not in parse(body, IFADDRMSG.size)
