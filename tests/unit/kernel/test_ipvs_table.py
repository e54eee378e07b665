"""The text of /proc/net/ip_vs, as values and from values."""

from podwire.kernel.ipvs_table import listed, listed_key, parse
from podwire.state.ipvs import Destination, Key, VirtualServer

TEXT = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A60000A:0050 rr (flag-3) persistent 600 FFFFFFFF
  -> 0AB40001:1F90      Masq    1      3          7
  -> 0AB40002:1F90      Masq    0      1          0
UDP  [fd18:0000:0000:0000:0000:0000:0000:000a]:0035 sh
  -> [fd18:0001:0000:0000:0000:0000:0000:0002]:0035      Masq    1      0          0
FWM  00000007 wlc
TCP  0A60000B:01BB rr
"""
WEB = VirtualServer(
    Key("tcp", "10.96.0.10", 80),
    "rr",
    destinations=(Destination("10.180.0.1", 8080), Destination("10.180.0.2", 8080, weight=0)),
)
DNS = VirtualServer(Key("udp", "fd18::a", 53), "sh", destinations=(Destination("fd18:1::2", 53),))
EMPTY = VirtualServer(Key("tcp", "10.96.0.11", 443), "rr")


def test_servers_of_both_families_are_found_by_their_keys() -> None:
    result = parse(TEXT)
    assert len(result) == 4
    for server in (WEB, DNS, EMPTY):
        assert result[listed_key(server.key)] == listed(server)


def test_scheduler_weight_and_real_servers_make_a_difference() -> None:
    result = parse(TEXT)[listed_key(WEB.key)]
    item, other = WEB.destinations
    for destinations in ((item,), (item, Destination("10.180.0.2", 8080)), (item, Destination("10.180.0.3", 8080, 0))):
        assert listed(VirtualServer(WEB.key, "rr", destinations=destinations)) != result
    assert listed(VirtualServer(WEB.key, "wrr", destinations=(item, other))) != result


def test_kernel_without_virtual_servers_lists_none() -> None:
    assert parse("".join(f"{line}\n" for line in TEXT.splitlines()[:3])) == {}
