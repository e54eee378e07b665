"""Plugins that look at the client: ``acl``, ``view``, ``whoami``, ``dns64``."""

import dns.message
import pytest
from tests.unit.dns.plugins.corefiles import CLUSTER, Plugins, code, lines, settings

from podwire.dns.plugins.chain import DnsClient
from podwire.errors import ConfigErrors

_WEB = "web.shop.svc.cluster.local."


def block(text: str, upstream: dict[str, str] | None = None) -> Plugins:
    return Plugins(". {\n" + text + CLUSTER + "}\n", upstream)


@pytest.mark.parametrize(
    ("rules", "outcome"),
    [
        ("block net 10.244.0.0/16", "REFUSED"),
        ("block type AAAA net 10.244.0.0/16", "10.96.0.1"),
        ("block type A", "REFUSED"),
        ("filter net 10.244.1.7", "no data"),
        ("allow net 10.244.1.0/24\nblock net *", "10.96.0.1"),
        ("allow net 10.244.2.0/24\nblock", "REFUSED"),
        ("block type * net 192.0.2.0/24 fd00::/8", "10.96.0.1"),
    ],
)
def test_first_rule_that_matches_decides(rules: str, outcome: str) -> None:
    plugins = block(f" acl {{\n{rules}\n }}\n")
    reply = plugins.ask(_WEB)
    answer = [line.split()[-1] for line in lines(reply)]
    assert (answer[0] if answer else "no data" if code(reply) == "NOERROR" else code(reply)) == outcome
    assert not plugins.kept
    assert bool(reply.extended_errors()) == (not answer)


def test_dropped_request_gets_no_reply() -> None:
    plugins = block(" acl {\n drop net 10.244.0.0/16\n }\n")
    assert plugins.outcome(dns.message.make_query(_WEB, "A").to_wire(), DnsClient("10.244.1.7", 1)) is None


def test_rules_of_other_zones_do_not_count() -> None:
    assert lines(block(" acl example.org {\n block\n }\n").ask(_WEB))


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("deny net *", "expected one of allow, block, filter, drop"),
        ("block type NOTYPE", "expected a record type"),
        ("block net 10.0.0.0/33", "expected an address or a network"),
        ("block 10.0.0.0/8", "expected type or net before"),
    ],
)
def test_wrong_rule_is_named_with_its_line(rules: str, problem: str) -> None:
    with pytest.raises(ConfigErrors, match="line 8") as raised:
        settings(". {\n" + CLUSTER + f" acl {{\n {rules}\n }}\n}}\n")
    assert problem in str(raised.value)


_SPLIT = """example.org {
 view near {
  expr incidr(client_ip(), '10.244.0.0/16')
 }
 hosts {
  192.0.2.1 www.example.org
 }
}
example.org {
 view addresses {
  expr type() in ['A', 'AAAA']
 }
 forward . 192.0.2.99
}
example.org {
 hosts {
  192.0.2.3 www.example.org
 }
}
"""


def test_view_chooses_the_server_block() -> None:
    upstream = {"www.example.org. A": "www.example.org. 60 A 192.0.2.2"}
    plugins = Plugins(_SPLIT + ". {\n" + CLUSTER + "}\n", upstream)
    answers = [
        lines(plugins.ask("www.example.org.", kind, client=client))
        for client, kind in (("10.244.1.7", "A"), ("198.51.100.1", "A"), ("198.51.100.1", "MX"))
    ]
    assert answers == [["www.example.org. 3600 A 192.0.2.1"], ["www.example.org. 60 A 192.0.2.2"], []]
    assert plugins.views == ["addresses"] and not plugins.kept
    assert plugins.ask(_WEB) and plugins.kept


def test_views_have_upstream_servers_of_their_own() -> None:
    config = settings(_SPLIT + ". {\n" + CLUSTER + "}\n")
    assert config.view_forwards["addresses"]["example.org"].upstreams == ("192.0.2.99",)
    assert config.stub_domains == {}


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("type() ==", "expected a value"),
        ("typo()", "expected one of bufsize"),
        ("name() matches '('", "regular expression"),
    ],
)
def test_wrong_expression_is_named_with_its_line(expression: str, problem: str) -> None:
    with pytest.raises(ConfigErrors, match="line 8: expr") as raised:
        settings(". {\n" + CLUSTER + f" view v {{\n expr {expression}\n }}\n}}\n")
    assert problem in str(raised.value)


@pytest.mark.parametrize(("tcp", "label"), [(False, "_udp"), (True, "_tcp")])
def test_whoami_shows_address_and_port(tcp: bool, label: str) -> None:
    plugins = Plugins("me.example {\n whoami\n}\n. {\n" + CLUSTER + "}\n")
    reply = plugins.ask("x.me.example.", tcp=tcp)
    assert lines(reply) == []
    assert lines(reply, "additional") == ["x.me.example. 0 A 10.244.1.7", f"{label}.x.me.example. 0 SRV 0 0 4711 ."]
    ipv6 = plugins.ask("x.me.example.", client="fd00::7")
    assert lines(ipv6, "additional")[0] == "x.me.example. 0 AAAA fd00::7"


_OLD = {"old.example. A": "old.example. 900 A 192.0.2.33", "old.example. AAAA": ""}


@pytest.mark.parametrize(
    ("options", "client", "answer"),
    [
        ("", "fd00::7", ["old.example. 600 AAAA 64:ff9b::c000:221"]),
        ("", "10.244.1.7", []),
        (" {\n allow_ipv4\n }", "10.244.1.7", ["old.example. 600 AAAA 64:ff9b::c000:221"]),
        (" 2001:db8::/32", "fd00::7", ["old.example. 600 AAAA 2001:db8:c000:221::"]),
        (" {\n prefix 2001:db8:122:300::/56\n }", "fd00::7", ["old.example. 600 AAAA 2001:db8:122:3c0:0:221::"]),
    ],
)
def test_ipv6_addresses_are_made_from_ipv4_addresses(options: str, client: str, answer: list[str]) -> None:
    assert lines(block(f" dns64{options}\n", _OLD).ask("old.example.", "AAAA", client=client)) == answer


def test_dns64_leaves_real_addresses_and_missing_names() -> None:
    new = {"new.example. AAAA": "new.example. 60 AAAA 2001:db8::1", "gone.example. AAAA": "rcode NXDOMAIN"}
    plugins = block(" dns64\n", new)
    assert lines(plugins.ask("new.example.", "AAAA", client="fd00::7")) == ["new.example. 60 AAAA 2001:db8::1"]
    assert code(plugins.ask("gone.example.", "AAAA", client="fd00::7")) == "NXDOMAIN"
    assert plugins.asked == ["new.example. AAAA", "gone.example. AAAA"]
    answer = lines(plugins.ask(_WEB, "AAAA", client="fd00::7"))
    assert answer == [f"{_WEB} 5 AAAA 64:ff9b::a60:1"]


def test_prefix_of_a_wrong_length_is_refused() -> None:
    with pytest.raises(ConfigErrors, match="expected an IPv6 prefix of length 32, 40"):
        settings(". {\n" + CLUSTER + " dns64 2001:db8::/33\n}\n")
