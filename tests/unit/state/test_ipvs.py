"""Virtual servers and their text, which ipvsadm would print and read."""

import pytest

from podwire.state.ipvs import FLAG_1, FLAG_2, FLAG_3, Destination, Key, VirtualServer, parse, protocol_of

TEXT = """\
-A -t 10.96.0.10:80 -s rr -b flag-3
-a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 1
-a -t 10.96.0.10:80 -r 10.180.0.2:8080 -m -w 0
-A -u 10.96.0.10:53 -s sh -p 600 -b sh-fallback,sh-port
-a -u 10.96.0.10:53 -r 10.180.0.2:5353 -g -w 3
-A --sctp-service 10.96.0.10:80 -s wlc -p 300 -M 255.255.255.0
-A -t [fd96::10]:80 -s mh -p 10800 -M 64 -b mh-fallback,flag-3
-a -t [fd96::10]:80 -r [fd18::1]:8080 -i -w 1
"""


def test_the_text_is_read_and_printed() -> None:
    servers = parse(TEXT.splitlines())
    assert "".join(f"{server}\n" for server in servers) == TEXT
    web, dns, sctp, six = servers
    assert (web.key, web.flags, web.persistent_s) == (Key("tcp", "10.96.0.10", 80), FLAG_3, 0)
    assert web.destinations == (Destination("10.180.0.1", 8080), Destination("10.180.0.2", 8080, 0))
    assert (dns.flags, dns.persistent_s) == (FLAG_1 | FLAG_2, 600)
    assert dns.destinations == (Destination("10.180.0.2", 5353, 3, "route"),)
    assert (sctp.key.protocol, sctp.client_bits) == ("sctp", 24)
    assert six == VirtualServer(
        Key("tcp", "fd96::10", 80), "mh", FLAG_1 | FLAG_3, 10800, 64, (Destination("fd18::1", 8080, 1, "tunnel"),)
    )


@pytest.mark.parametrize(
    "line",
    [
        "-A -f 7 -s rr",
        "-D -t 10.96.0.10:80",
        "-A -t 10.96.0.10 -s rr",
        "-A -t 10.96.0.10:80 -p 5",
        "-A -t 10.96.0.10:80 -s rr -b flag-9",
        "-a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 1",
        "-a",
    ],
)
def test_other_lines_are_refused_by_name(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse([line])


def test_protocols() -> None:
    assert protocol_of("udp") == "udp"
    with pytest.raises(ValueError, match="does not balance protocol 'icmp'"):
        protocol_of("icmp")
