"""Zones with fixed records, zone transfers, and the external addresses of Services."""

import dns.zone
import pytest
from tests.unit.dns.plugins.corefiles import CLUSTER, Plugins, code, lines, settings

from podwire.errors import ConfigErrors

_ZONE = """$TTL 300
@ IN SOA ns hostmaster 2026 7200 1800 86400 60
@ NS ns
ns A 192.0.2.53
www A 192.0.2.1
www A 192.0.2.2
mail MX 10 www
alias CNAME www
out CNAME www.example.com.
deep.down TXT "here"
*.wild A 192.0.2.9
sub NS ns.sub
ns.sub A 192.0.2.77
"""
_FILES = {"/zones/db.example.org": _ZONE, "/zones/db.example.net": _ZONE.replace("2026", "7"), "/zones/notes": "x"}


def zone_file(options: str = "") -> Plugins:
    text = f"example.org {{\n file /zones/db.example.org{options}\n}}\n. {{\n{CLUSTER}}}\n"
    return Plugins(text, {"www.example.com. A": "www.example.com. 60 A 192.0.2.5"}, _FILES)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("www", "A", ["www.example.org. 300 A 192.0.2.1", "www.example.org. 300 A 192.0.2.2"]),
        ("mail", "MX", ["mail.example.org. 300 MX 10 www.example.org."]),
        ("x.y.wild", "A", ["x.y.wild.example.org. 300 A 192.0.2.9"]),
        ("www", "AAAA", []),
        ("down", "TXT", []),
        ("deep.down", "TXT", ['deep.down.example.org. 300 TXT "here"']),
    ],
)
def test_records_of_a_zone_file(name: str, kind: str, expected: list[str]) -> None:
    plugins = zone_file()
    reply = plugins.ask(f"{name}.example.org.", kind)
    assert sorted(lines(reply)) == expected and code(reply) == "NOERROR" and plugins.kept
    assert bool(lines(reply, "authority")) == (not expected)


def test_missing_name_has_the_soa_with_the_negative_ttl() -> None:
    reply = zone_file().ask("gone.example.org.")
    assert code(reply) == "NXDOMAIN" and lines(reply, "authority")[0].startswith("example.org. 60 SOA ns.example.org.")


def test_aliases_are_followed_in_the_zone_and_out_of_it() -> None:
    assert [line.split()[2] for line in lines(zone_file().ask("alias.example.org."))] == ["CNAME", "A", "A"]
    assert lines(zone_file().ask("out.example.org."))[0] == "out.example.org. 300 CNAME www.example.com."


def test_names_below_a_delegation_are_referred() -> None:
    reply = zone_file().ask("www.sub.example.org.")
    assert lines(reply) == [] and lines(reply, "authority") == ["sub.example.org. 300 NS ns.sub.example.org."]
    assert lines(reply, "additional") == ["ns.sub.example.org. 300 A 192.0.2.77"]


def test_folder_has_a_zone_for_each_file() -> None:
    text = "example.org example.net {\n auto {\n directory /zones\n }\n}\n. {\n" + CLUSTER + "}\n"
    plugins = Plugins(text, None, _FILES)
    assert len(lines(plugins.ask("www.example.net."))) == len(lines(plugins.ask("www.example.org."))) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("file /nonexistent example.org", "cannot read /nonexistent"),
        ("file /zones/notes example.org", "line 7: file: .*zone example.org"),
        ("auto {\n reload 1m\n }", "podwire does not have this option of auto"),
        ("secondary example.org", "expected transfer from and addresses"),
        ("secondary example.org {\n transfer from ns.example\n }", "expected an address, with or without a port"),
        ("transfer {\n to x\n }", "expected an address, with or without a port"),
        ("transfer example.org", "expected to and addresses"),
        ("k8s_external example.org {\n apex a b\n }", "podwire does not have this option of k8s_external"),
    ],
)
def test_wrong_zone_is_named_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigErrors, match=problem):
        settings(". {\n" + CLUSTER + f" {text}\n}}\n", _FILES)


def test_zone_transfer_has_all_records_between_two_soas() -> None:
    text = "example.org {\n transfer {\n to 10.244.0.0/16\n }\n file /zones/db.example.org\n}\n. {\n" + CLUSTER + "}\n"
    plugins = Plugins(text, None, _FILES)
    records = plugins.transfer("example.org.")
    assert records[0] == records[-1] and " SOA " in records[0] and len(records) == 13
    assert plugins.transfer("example.org.", client="192.0.2.7") == []
    assert plugins.transfer("www.example.org.") == []


def test_transfer_without_the_plugin_is_refused() -> None:
    assert zone_file().transfer("example.org.") == []


def test_transfer_of_the_cluster_is_a_zone_file() -> None:
    plugins = Plugins(". {\n transfer cluster.local {\n to *\n }\n" + CLUSTER + "}\n")
    records = plugins.transfer("cluster.local.")
    zone = dns.zone.from_text("\n".join(records[:-1]), "cluster.local.", relativize=False)
    assert zone.get_rdataset("web.shop.svc.cluster.local.", "A") is not None
    assert "out.shop.svc.cluster.local. 5 CNAME www.example.com." in records
    assert sum(line.startswith("db.shop.svc.cluster.local. 5 A ") for line in records) == 2
    assert "db-0.db.shop.svc.cluster.local. 5 A 10.244.1.20" in records
    assert any(line.startswith("_http._tcp.web.shop.svc.cluster.local. 5 SRV") for line in records)


def external(options: str = "") -> Plugins:
    text = f". {{\n transfer out.example {{\n to *\n }}\n k8s_external out.example in-addr.arpa{options}\n{CLUSTER}}}\n"
    return Plugins(text)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("web.shop.out.example.", "A", ["web.shop.out.example. 5 A 203.0.113.1"]),
        ("lb.shop.out.example.", "A", ["lb.shop.out.example. 5 CNAME lb.example.net."]),
        (
            "_http._tcp.web.shop.out.example.",
            "SRV",
            ["_http._tcp.web.shop.out.example. 5 SRV 0 100 80 web.shop.out.example."],
        ),
        ("1.113.0.203.in-addr.arpa.", "PTR", ["1.113.0.203.in-addr.arpa. 5 PTR web.shop.out.example."]),
        ("ns1.dns.out.example.", "A", ["ns1.dns.out.example. 5 A 10.244.0.53"]),
        ("out.example.", "NS", ["out.example. 5 NS ns1.dns.out.example."]),
    ],
)
def test_external_names_of_services(name: str, kind: str, expected: list[str]) -> None:
    assert lines(external().ask(name, kind)) == expected


def test_headless_services_are_external_if_asked_for() -> None:
    assert code(external().ask("db.shop.out.example.")) == "NXDOMAIN"
    plugins = external(" {\n headless\n ttl 7\n }")
    assert len(lines(plugins.ask("db.shop.out.example."))) == 2
    assert lines(plugins.ask("db-0.db.shop.out.example.")) == ["db-0.db.shop.out.example. 7 A 10.244.1.20"]


def test_external_zone_can_be_transferred() -> None:
    records = external().transfer("out.example.")
    assert records[0] == records[-1]
    assert (
        "web.shop.out.example. 5 A 203.0.113.1" in records and "lb.shop.out.example. 5 CNAME lb.example.net." in records
    )
