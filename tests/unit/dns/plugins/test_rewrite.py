"""``rewrite``: changed questions, and replies that change back."""

import dns.edns
import dns.message
import pytest
from tests.unit.dns.plugins.corefiles import CLUSTER, Plugins, code, lines, settings

from podwire.errors import ConfigErrors

_WEB = "web.shop.svc.cluster.local."


def rewriting(*rules: str, upstream: dict[str, str] | None = None) -> Plugins:
    return Plugins(". {\n" + "".join(f" rewrite {rule}\n" for rule in rules) + CLUSTER + "}\n", upstream)


@pytest.mark.parametrize(
    ("rule", "name", "owner"),
    [
        ("name web.example web.shop.svc.cluster.local", "web.example.", "web.example."),
        ("name exact web.example. web.shop.svc.cluster.local.", "WEB.example.", "web.example."),
        ("name suffix .example .shop.svc.cluster.local", "web.example.", _WEB),
        ("name suffix .example .shop.svc.cluster.local answer auto", "web.example.", "web.example."),
        ("name prefix my- ''", "my-web.shop.svc.cluster.local.", ""),
        ("name substring .mall. .shop.", "web.mall.svc.cluster.local.", _WEB),
        ("name substring .mall. .shop. answer auto", "web.mall.svc.cluster.local.", "web.mall.svc.cluster.local."),
        (r"name regex (.*)\.in\.(.*)\.example {1}.{2}.svc.cluster.local", "web.in.shop.example.", _WEB),
        (
            r"stop name regex (.*)\.(.*)\.example {1}.{2}.svc.cluster.local"
            r" answer name (.*)\.(.*)\.svc.* {1}.{2}.example",
            "web.shop.example.",
            "web.shop.example.",
        ),
        (
            "stop {\n name regex (.*)\\.(.*)\\.example {1}.{2}.svc.cluster.local\n"
            " answer name (.*)\\.(.*)\\.svc.* {1}.{2}.example\n }",
            "web.shop.example.",
            "web.shop.example.",
        ),
    ],
)
def test_name_is_replaced_and_the_question_stays(rule: str, name: str, owner: str) -> None:
    rule = rule.replace("''", '""')
    reply = rewriting(rule).ask(name)
    expected = owner or name.lower().removeprefix("my-")
    assert [line.lower() for line in lines(reply)] == [f"{expected} 5 a 10.96.0.1"]
    assert reply.question[0].name.to_text() == name


def test_first_rule_ends_the_list_unless_it_says_continue() -> None:
    first, second = "name a.example b.example", "name b.example web.shop.svc.cluster.local"
    assert code(rewriting(first, second).ask("a.example.")) == "SERVFAIL"
    assert lines(rewriting(f"continue {first}", second).ask("a.example.")) == ["a.example. 5 A 10.96.0.1"]


def test_values_inside_records_change_back() -> None:
    upstream = {"mail.inside.example. MX": "mail.inside.example. 60 MX 10 mx.inside.example."}
    plugins = rewriting("name suffix .outside.example. .inside.example. answer auto", upstream=upstream)
    assert lines(plugins.ask("mail.outside.example.", "MX")) == ["mail.outside.example. 60 MX 10 mx.outside.example."]
    assert plugins.asked == ["mail.inside.example. MX"]


def test_type_and_class_are_replaced() -> None:
    assert lines(rewriting("type AAAA A").ask(_WEB, "AAAA")) == [f"{_WEB} 5 A 10.96.0.1"]
    assert lines(rewriting("class CH IN").ask(_WEB, query="CH")) == [f"{_WEB} 5 A 10.96.0.1"]


@pytest.mark.parametrize(("seconds", "ttl"), [("30", 30), ("10-", 10), ("-3", 3), ("4-6", 5)])
def test_ttl_of_replies_is_set_or_limited(seconds: str, ttl: int) -> None:
    rule = f"ttl suffix .cluster.local {seconds}"
    assert lines(rewriting(rule).ask(_WEB)) == [f"{_WEB} {ttl} A 10.96.0.1"]
    assert lines(rewriting(rule).ask("out.example.", "A")) == []


@pytest.mark.parametrize(
    ("rule", "code_", "data"),
    [
        ("edns0 local set 0xffee 0x61626364", 0xFFEE, b"abcd"),
        ("edns0 local append 0xffee abcd", 0xFFEE, b"abcd"),
        ("edns0 local set 0xffee {client_ip}", 0xFFEE, bytes([10, 244, 1, 7])),
        ("edns0 local set 0xffee {qname}", 0xFFEE, b"www.example.com."),
        ("edns0 local set 0xffee {protocol}", 0xFFEE, b"udp"),
        ("edns0 nsid set", 3, b""),
        ("edns0 subnet set 24 56", 8, bytes([0, 1, 24, 0, 10, 244, 1])),
    ],
)
def test_options_of_requests_to_upstream_are_set(rule: str, code_: int, data: bytes) -> None:
    plugins = rewriting(rule, upstream={"www.example.com. A": "www.example.com. 60 A 192.0.2.1"})
    assert lines(plugins.ask("www.example.com.")) == ["www.example.com. 60 A 192.0.2.1"]
    (option,) = dns.message.from_wire(plugins.requests[0]).options
    assert (int(option.otype), option.to_wire()) == (code_, data)


def test_replies_that_depend_on_the_client_are_not_kept() -> None:
    fixed, varying = rewriting("name a.example b.example"), rewriting("edns0 local set 0xffee {client_ip}")
    fixed.ask(_WEB)
    varying.ask(_WEB)
    assert (fixed.kept, varying.kept) == (True, False)


def test_a_new_name_that_is_too_long_is_a_failure() -> None:
    assert code(rewriting(f"name prefix web {'a' * 70}").ask(_WEB)) == "SERVFAIL"


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("name", "expected name, type, class, edns0 or ttl"),
        ("name regex ( x", "expected a regular expression"),
        ("name regex a.b {1}", "uses a group that 'a.b' does not have"),
        ("name exact a b answer", "expected answer auto"),
        ("name suffix a b answer auto answer name a b", "either answer auto or answer name"),
        ("type A NOTYPE", "expected a record type"),
        ("class IN XX", "expected a class"),
        ("ttl exact a soon", "expected seconds"),
        ("edns0 local set 0xffee {nothing}", "expected one of qname"),
        ("edns0 subnet set 33 1", "expected lengths of at most 32"),
        ("edns0 cookie set 1", "expected edns0, local, nsid or subnet"),
        ("rcode a b c", "podwire does not rewrite 'rcode'"),
    ],
)
def test_wrong_rule_is_named_with_its_line(rule: str, problem: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        settings(". {\n" + CLUSTER + f" rewrite {rule}\n}}\n")
    (message,) = str(raised.value).splitlines()
    assert message.startswith("Corefile: line 7: rewrite: ") and problem in message
