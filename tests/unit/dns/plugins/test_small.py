"""Small plugins: ``any``, ``chaos``, ``nsid``, ``header``, ``minimal``, ``bufsize``, ``hosts`` of one block."""

import dns.edns
import dns.flags
import dns.message
import pytest
from tests.unit.dns.plugins.corefiles import CLUSTER, Plugins, code, lines, settings

from podwire.errors import ConfigErrors

_WEB = "web.shop.svc.cluster.local."


def block(text: str, upstream: dict[str, str] | None = None) -> Plugins:
    return Plugins(". {\n " + text + "\n" + CLUSTER + "}\n", upstream)


def test_any_gets_a_minimal_answer() -> None:
    plugins = block("any")
    assert lines(plugins.ask(_WEB, "ANY")) == [f'{_WEB} 8482 HINFO "ANY obsoleted" "See RFC 8482"']
    assert lines(plugins.ask(_WEB)) == [f"{_WEB} 5 A 10.96.0.1"] and plugins.kept


@pytest.mark.parametrize(
    ("line", "name", "text"),
    [
        ("chaos", "version.bind.", '"podwire 1.2.3"'),
        ("chaos DNS-9 a@x.example b@x.example", "version.server.", '"DNS-9"'),
        ("chaos DNS-9 a@x.example", "authors.bind.", '"a@x.example"'),
        ("chaos", "hostname.bind.", '"dns-1"'),
        ("chaos", "id.server.", '"dns-1"'),
    ],
)
def test_chaos_tells_version_and_host(line: str, name: str, text: str) -> None:
    assert lines(block(line).ask(name, "TXT", query="CH")) == [f"{name} 0 TXT {text}"]


@pytest.mark.parametrize(("line", "identifier"), [("nsid", b"dns-1"), ("nsid rack 7", b"rack 7")])
def test_nsid_names_the_server_where_it_is_asked_for(line: str, identifier: bytes) -> None:
    plugins = block(line)
    query = dns.message.make_query(_WEB, "A", use_edns=0, options=[dns.edns.GenericOption("NSID", b"")])
    assert [(int(option.otype), option.to_wire()) for option in plugins.reply(query).options] == [(3, identifier)]
    assert plugins.ask(_WEB).options == ()


@pytest.mark.parametrize(
    ("rules", "flags"),
    [
        ("set ra", dns.flags.QR | dns.flags.RD | dns.flags.RA | dns.flags.AA),
        ("response clear aa", dns.flags.QR | dns.flags.RD),
        ("query clear rd", dns.flags.QR | dns.flags.AA | dns.flags.RD),
    ],
)
def test_header_changes_flags(rules: str, flags: int) -> None:
    assert block(f"header {{\n {rules}\n }}").ask(_WEB).flags == flags


def test_header_changes_flags_of_requests_to_upstream() -> None:
    plugins = block("header {\n query clear rd\n }")
    plugins.ask("www.example.com.")
    assert not dns.message.from_wire(plugins.requests[0]).flags & dns.flags.RD


def test_minimal_leaves_out_what_an_answer_does_not_need() -> None:
    name = "_sql._tcp.db.shop.svc.cluster.local."
    assert len(lines(block("any").ask(name, "SRV"), "additional")) == 2
    reply = block("minimal").ask(name, "SRV")
    assert len(lines(reply)) == 2 and not lines(reply, "additional")
    assert lines(block("minimal").ask("gone.shop.svc.cluster.local."), "authority")


def test_bufsize_limits_requests_to_upstream() -> None:
    plugins = block("bufsize 600")
    plugins.ask("www.example.com.")
    assert dns.message.from_wire(plugins.requests[0]).payload == 600


def test_hosts_without_fallthrough_hide_other_names() -> None:
    text = "corp.example {\n hosts {\n 192.0.2.1 www.corp.example\n ttl 9\n }\n}\n. {\n" + CLUSTER + "}\n"
    plugins = Plugins(text)
    assert lines(plugins.ask("WWW.corp.example.")) == ["WWW.corp.example. 9 A 192.0.2.1"]
    assert code(plugins.ask("gone.corp.example.")) == "NXDOMAIN"
    assert lines(plugins.ask(_WEB)) and not plugins.asked


def test_zone_without_a_server_block_is_refused() -> None:
    plugins = Plugins("cluster.local {\n any\n kubernetes\n}\n")
    assert code(plugins.ask("www.example.com.")) == "REFUSED"
    assert lines(plugins.ask(_WEB))


def test_block_without_a_plugin_that_answers_is_a_failure() -> None:
    plugins = Plugins("example.org {\n any\n}\n. {\n" + CLUSTER + "}\n")
    assert code(plugins.ask("www.example.org.")) == "SERVFAIL" and not plugins.asked


def test_reply_of_upstream_is_sent_as_it_arrived() -> None:
    plugins = block("any", {"www.example.com. A": "www.example.com. 60 A 192.0.2.1"})
    reply = plugins.ask("www.Example.com.")
    assert reply.flags & dns.flags.RA and not reply.flags & dns.flags.AA
    assert lines(reply) == ["www.Example.com. 60 A 192.0.2.1"] or lines(reply) == ["www.example.com. 60 A 192.0.2.1"]


def test_alias_to_a_foreign_name_is_followed() -> None:
    plugins = block("any", {"www.example.com. A": "www.example.com. 60 A 192.0.2.1"})
    assert lines(plugins.ask("out.shop.svc.cluster.local.")) == [
        "out.shop.svc.cluster.local. 5 CNAME www.example.com.",
        "www.example.com. 60 A 192.0.2.1",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("any x", "podwire does not have options of this plugin"),
        ("bufsize 100", "expected 512 to 4096 bytes"),
        ("header {\n set tc\n }", "expected .query.response. set.clear"),
        ("trace zipkin", "podwire has no tracing"),
        ("pprof", "podwire is no Go program"),
        ("dnstap /tmp/x", "podwire has a query log"),
        ("debug", "debug would end the server"),
        ("etcd", "podwire reads Services from the Kubernetes API"),
        ("route53", "podwire reads zones from files"),
        ("unheard", "it has .*autopath"),
    ],
)
def test_wrong_line_is_named(line: str, problem: str) -> None:
    with pytest.raises(ConfigErrors, match=f"line [78].*{problem}"):
        settings(". {\n" + CLUSTER + f" {line}\n}}\n")


@pytest.mark.parametrize(
    ("name", "record_type", "answers"),
    [
        ("localhost.", "A", ["localhost. 86400 A 127.0.0.1"]),
        ("localhost.", "AAAA", ["localhost. 86400 AAAA ::1"]),
        ("LocalHost.shop.svc.cluster.local.", "A", ["LocalHost.shop.svc.cluster.local. 86400 A 127.0.0.1"]),
        ("1.0.0.127.in-addr.arpa.", "PTR", ["1.0.0.127.in-addr.arpa. 86400 PTR localhost."]),
        ("localhost.", "TXT", []),
        (_WEB, "A", [f"{_WEB} 5 A 10.96.0.1"]),
    ],
)
def test_local_answers_localhost_and_no_other_names(name: str, record_type: str, answers: list[str]) -> None:
    plugins = block("local")
    assert lines(plugins.ask(name, record_type)) == answers
    assert not plugins.asked


def test_local_names_that_do_not_exist_are_not_asked_upstream() -> None:
    plugins = block("local")
    assert code(plugins.ask("7.0.0.127.in-addr.arpa.", "PTR")) == "NXDOMAIN"
    assert not plugins.asked
