"""``template``: records made from the name of a question."""

import pytest
from tests.unit.dns.plugins.corefiles import CLUSTER, Plugins, code, lines, settings

from podwire.errors import ConfigErrors

_DASHED = r"""template IN A example {
 match (^|[.])ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$
 answer "{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}"
 authority "example. 60 IN NS ns0.example."
 additional "ns0.example. 60 IN A 203.0.113.8"
 fallthrough
 }
"""
_HEX = r"""template IN A hex.example {
 match "^ip0a(?P<b>[a-f0-9]{2})(?P<c>[a-f0-9]{2})(?P<d>[a-f0-9]{2})[.]hex[.]example[.]$"
 answer "{{ .Name }} 60 IN A 10.{{ parseInt .Group.b 16 8 }}.{{ parseInt .Group.c 16 8 }}.{{ .Group.d | printf "%s" }}"
 }
"""


def templates(text: str, upstream: dict[str, str] | None = None) -> Plugins:
    return Plugins(". {\n" + text + CLUSTER + "}\n", upstream)


def test_records_are_made_from_groups_of_the_name() -> None:
    plugins = templates(_DASHED)
    reply = plugins.ask("a.IP-10-0-0-7.example.")
    assert lines(reply) == ["a.ip-10-0-0-7.example. 60 A 10.0.0.7"]
    assert lines(reply, "authority") == ["example. 60 NS ns0.example."]
    assert lines(reply, "additional") == ["ns0.example. 60 A 203.0.113.8"]
    assert plugins.kept


def test_name_without_a_match_goes_on_or_fails() -> None:
    upstream = {"www.example. A": "www.example. 60 A 192.0.2.1"}
    assert lines(templates(_DASHED, upstream).ask("www.example.")) == ["www.example. 60 A 192.0.2.1"]
    assert code(templates(_DASHED.replace(" fallthrough\n", ""), upstream).ask("www.example.")) == "SERVFAIL"
    assert code(templates(_DASHED).ask("ip-10-0-0-7.example.", "AAAA")) == "SERVFAIL"


def test_numbers_of_another_base_are_converted() -> None:
    text = _HEX.replace('.{{ .Group.d | printf "%s" }}', ".{{ parseInt .Group.d 16 8 }}")
    assert lines(templates(text).ask("ip0a7b7b7b.hex.example.")) == ["ip0a7b7b7b.hex.example. 60 A 10.123.123.123"]


def test_response_code_and_extended_error() -> None:
    text = """template ANY ANY invalid {
 rcode NXDOMAIN
 authority "invalid. 60 {{ .Class }} SOA ns.invalid. hostmaster.invalid. (1 60 60 60 60)"
 ederror 21 "Blocked according to RFC2606"
 }
"""
    reply = templates(text).ask("x.invalid.", "MX")
    assert code(reply) == "NXDOMAIN"
    assert lines(reply, "authority") == ["invalid. 60 SOA ns.invalid. hostmaster.invalid. 1 60 60 60 60"]
    assert reply.extended_errors()[0].to_text() == "EDE 21 (Not Supported): Blocked according to RFC2606"
    assert code(templates(text).ask("web.shop.svc.cluster.local.")) == "NOERROR"


def test_alias_is_followed_by_the_records_of_its_target() -> None:
    answer = "foogle.com 60 IN CNAME web.shop.svc.cluster.local"
    text = f'template IN ANY foogle.com {{\n match "^foogle\\.com\\.$"\n answer "{answer}"\n }}\n'
    assert lines(templates(text).ask("foogle.com.")) == [
        "foogle.com. 60 CNAME web.shop.svc.cluster.local.",
        "web.shop.svc.cluster.local. 5 A 10.96.0.1",
    ]


def test_match_by_number_and_address_of_the_client() -> None:
    text = (
        'template IN TXT example {\n match "^(\\w+)[.](\\w+)[.]example[.]$"\n'
        ' answer "{{ .Name }} 0 IN TXT \\"{{ index .Match 2 }} {{ .Remote }} {{ .Type }} {{ .Zone }}\\""\n }\n'
    )
    plugins = templates(text)
    assert lines(plugins.ask("a.b.example.", "TXT")) == ['a.b.example. 0 TXT "b 10.244.1.7 TXT example."']
    assert not plugins.kept


def test_record_that_cannot_be_read_is_a_failure() -> None:
    text = 'template IN A example {\n answer "{{ .Name }} 60 IN A nothing"\n }\n'
    assert code(templates(text).ask("a.example.")) == "SERVFAIL"


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ('answer "{{ if .Name }}x{{ end }}"', "podwire does not have 'if' with arguments"),
        ('answer "{{ .Meta }}"', "podwire does not have '.Meta'"),
        ('answer "{{ .Name"', "expected }} after {{"),
        ('answer "{{ .Group.z }}"', "uses the group 'z'"),
        ('answer "{{ index .Match x }}"', "expected index .Match and a number"),
        ("match (", "expected a regular expression"),
        ("rcode NOTHING", "expected a response code"),
        ("upstream", "podwire does not have this option of template"),
    ],
)
def test_wrong_option_is_named_with_its_line(option: str, problem: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        settings(". {\n" + CLUSTER + f" template IN A {{\n {option}\n }}\n}}\n")
    assert "Corefile: line " in str(raised.value) and problem in str(raised.value)
