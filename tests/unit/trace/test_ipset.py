"""Packets in sets of ipset(8)."""

import pytest

from podwire.errors import ProtocolError
from podwire.trace.ipset import Elements, find
from podwire.trace.packet import Packet

PACKET = Packet(source="192.168.99.2", destination="10.96.0.10", destination_port=80, input="veth1", output="eth0")
SETS = {
    "ips": Elements("hash:ip", {"10.96.0.10"}),
    "ports": Elements("bitmap:port", {"80"}),
    "fronts": Elements("hash:ip,port", {"10.96.0.10,tcp:80", "10.96.0.11,udp:80"}),
    "loops": Elements("hash:ip,port,ip", {"10.96.0.10,tcp:80,10.96.0.10"}),
    "ranges": Elements("hash:ip,port,net", {"10.96.0.10,tcp:80,192.168.99.0/30", "10.96.0.10,udp:80,0.0.0.0/1"}),
    "devices": Elements("hash:net,iface", {"0.0.0.0/0,veth1", "192.168.99.0/24,veth1", "10.96.0.10,eth1"}),
    "nets": Elements("hash:net", {"10.0.0.0/8", "10.96.0.10", "10.96.0.0/16"}),
}


@pytest.mark.parametrize(
    ("name", "paths", "result"),
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
        ("devices", "src,src", "192.168.99.0/24,veth1"),
        ("devices", "dst,src", "0.0.0.0/0,veth1"),
        ("devices", "dst,dst", ""),
        ("nets", "dst", "10.96.0.10"),
        ("nets", "src", ""),
    ],
)
def test_an_element_is_found(name: str, paths: str, result: str) -> None:
    assert find(SETS, name, paths, PACKET) == result


def test_a_set_that_is_not_there() -> None:
    with pytest.raises(ProtocolError, match="name a set other"):
        find(SETS, "other", "dst", PACKET)
