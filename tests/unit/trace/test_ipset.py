"""Packets in sets of ipset(8)."""

import pytest

from podwire.errors import ProtocolError
from podwire.trace.ipset import Elements, find
from podwire.trace.packet import Packet

PACKET = Packet(source="192.168.99.2", destination="10.96.0.10", destination_port=80)
SETS = {
    "ips": Elements("hash:ip", {"10.96.0.10"}),
    "ports": Elements("bitmap:port", {"80"}),
    "fronts": Elements("hash:ip,port", {"10.96.0.10,tcp:80", "10.96.0.11,udp:80"}),
    "loops": Elements("hash:ip,port,ip", {"10.96.0.10,tcp:80,10.96.0.10"}),
    "ranges": Elements("hash:ip,port,net", {"10.96.0.10,tcp:80,192.168.99.0/30", "10.96.0.10,udp:80,0.0.0.0/1"}),
}


@pytest.mark.parametrize(
    ("name", "ways", "found"),
    [
        ("ips", "dst", "10.96.0.10"),
        ("ips", "src", ""),
        ("ports", "dst", "80"),
        ("fronts", "dst,dst", "10.96.0.10,tcp:80"),
        ("fronts", "src,dst", ""),
        ("loops", "dst,dst,src", ""),
        ("loops", "dst,dst,dst", "10.96.0.10,tcp:80,10.96.0.10"),
        ("ranges", "dst,dst,src", "10.96.0.10,tcp:80,192.168.99.0/30"),
        ("ranges", "dst,src,src", ""),
    ],
)
def test_an_element_is_found(name: str, ways: str, found: str) -> None:
    assert find(SETS, name, ways, PACKET) == found


def test_a_set_that_is_not_there() -> None:
    with pytest.raises(ProtocolError, match="no set other"):
        find(SETS, "other", "dst", PACKET)
