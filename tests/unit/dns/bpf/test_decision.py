"""What the kernel says to a query, as text."""

import pytest

from podwire.dns import wire
from podwire.dns.bpf.decision import KernelZone, decide
from podwire.dns.bpf.entries import NO_DATA, SERVED, NameEntry, relative_key
from podwire.dns.names import encode_name

DOMAIN = encode_name("cluster.local")
ENTRIES = {
    relative_key(encode_name(name), DOMAIN): entry
    for name, entry in {
        "cluster.local": SERVED,
        "shop.svc.cluster.local": NO_DATA,
        "web.shop.svc.cluster.local": NameEntry((b"\x0a\x60\0\7",)),
        "alias.shop.svc.cluster.local": SERVED,
    }.items()
}


@pytest.mark.parametrize(
    ("name", "qtype", "text"),
    [
        ("WEB.shop.svc.cluster.local", wire.A, "entry web.shop.svc.cluster.local. with 10.96.0.7"),
        (
            "web.shop.svc.cluster.local",
            wire.AAAA,
            "entry web.shop.svc.cluster.local. with no address of this family",
        ),
        ("web.shop.svc.cluster.local", wire.SRV, ""),
        ("alias.shop.svc.cluster.local", wire.A, ""),
        ("_http._tcp.web.shop.svc.cluster.local", wire.SRV, ""),
        ("10-0-0-1.shop.pod.cluster.local", wire.A, ""),
        ("gone.shop.svc.cluster.local", wire.TXT, "no entry, so the name does not exist"),
        ("example.com.shop.svc.cluster.local", wire.A, "no entry, so the name does not exist"),
        ("example.com.cluster.local", wire.A, "no entry, so the name does not exist"),
        ("gone.shop.svc.cluster.local", wire.AXFR, ""),
        ("cluster.local", wire.A, ""),
        ("example.com", wire.A, ""),
        (f"{'a' * 63}.{'b' * 63}.cluster.local", wire.A, ""),
    ],
)
def test_decision_names_the_entry(name: str, qtype: int, text: str) -> None:
    assert decide(encode_name(name), qtype, KernelZone(DOMAIN, ENTRIES)) == text


def test_missing_name_of_an_open_zone_goes_to_the_server() -> None:
    zone = KernelZone(DOMAIN, ENTRIES, closed=False)
    assert decide(encode_name("gone.svc.cluster.local"), wire.A, zone) == ""


@pytest.mark.parametrize("long_names", [False, True])
def test_long_name_goes_to_the_server_when_some_exist(long_names: bool) -> None:
    zone = KernelZone(DOMAIN, ENTRIES, long_names=long_names)
    text = decide(encode_name(f"{'a' * 63}.shop.svc.cluster.local"), wire.A, zone)
    assert text == ("" if long_names else "no entry, so the name does not exist")
