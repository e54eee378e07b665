"""The small languages of plugins: expressions of ``view``, actions of ``template``, rules for names and options."""

from ipaddress import IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.names import encode_name
from podwire.dns.plugins.actions import TemplateValues, parse_line
from podwire.dns.plugins.dns64 import embed
from podwire.dns.plugins.ednsoptions import join_options, split_options
from podwire.dns.plugins.expressions import parse_expression
from podwire.dns.plugins.namerules import read_name_change
from podwire.dns.plugins.optionrules import read_option_rule
from podwire.dns.plugins.plugin import PluginRequest
from podwire.dns.wire import Edns, Query
from podwire.errors import PodwireError, ProtocolError

_DIRECTIVE = Directive("rewrite", (), "Corefile", 1)
_REQUEST = PluginRequest(
    Query(9, wire.RD, encode_name("abc.x.Example.com"), wire.AAAA, wire.IN, Edns(size=1400, dnssec_ok=True)),
    client="10.1.2.3",
    port=4711,
    size=60,
    server="fd00::10",
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("incidr(client_ip(), '10.0.0.0/8')", True),
        ("type() in ['A', 'AAAA'] && class() == 'IN'", True),
        (r"name() matches '^abc\\..*\\.example\\.com\\.$'", True),
        ("(type() == 'A' && name() == 'x') || client_ip() == '10.1.2.3'", True),
        ("not do() or bufsize() >= 1400 and proto() != 'tcp'", True),
        ("port() not in ['4711', '4712']", False),
        ("server_ip() == '[fd00::10]' ? size() + 2 * 3 : 0", 66),
        ("name() endsWith '.com.' and name() startsWith \"abc\" and name() contains 'x'", True),
        ("-id() + 10 % 4 - opcode()", -7),
        ("len(lower(upper(trim(' ab ')))) == 2", True),
        ("server_port()", "53"),
    ],
)
def test_expression_has_the_value_of_the_request(text: str, value: object) -> None:
    assert parse_expression(text)(_REQUEST) == value


@given(st.text(alphabet="abc()'\"[]=!<>&|?:+-*/% 12.", max_size=30))
def test_any_text_is_an_expression_or_a_clear_error(text: str) -> None:
    try:
        parse_expression(text)
    except ProtocolError as failure:
        assert "expression" in str(failure) or "regular" in str(failure)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{{ .Name }} 60 IN {{.Type}} {{ index .Match 1 }}", "a.b. 60 IN A one"),
        ('{{ printf "%03d-%s" (.Group.n) "x" }}', ""),
        ('{{ .Group.n | printf "%03d" }}{{- .Zone -}}', "007b."),
        ('{{ parseInt "ff" "16" "8" }}', "255"),
        ("{{ .Group.missing }}", ""),
    ],
)
def test_actions_are_replaced_by_values(text: str, rendered: str) -> None:
    values = TemplateValues(zone="b.", name="a.b.", rtype="A", matches=("one!", "one"), groups={"n": "7"})
    if "(" in text:
        with pytest.raises(ProtocolError, match="podwire does not have '\\('"):
            parse_line(text)
        return
    assert parse_line(text).render(values) == rendered


@pytest.mark.parametrize(
    "text", ['{{ parseInt "zz" "16" "8" }}', '{{ parseInt "fff" "16" "8" }}', "{{ index .Match 9 }}"]
)
def test_action_without_a_value_fails(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_line(text).render(TemplateValues(zone="b."))


@given(st.text(alphabet='{}. |Namez"`index12()', max_size=40))
def test_any_template_line_is_read_or_refused(text: str) -> None:
    try:
        parse_line("{{" + text + "}}").render(TemplateValues(zone="b.", name="a."))
    except PodwireError:
        pass


@pytest.mark.parametrize(
    ("prefix", "address"),
    [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
    ],
)
def test_addresses_are_embedded_as_rfc_6052_says(prefix: str, address: str) -> None:
    assert embed(IPv6Network(prefix), bytes([192, 0, 2, 33])) == ip_address(address).packed


@given(st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=40)), max_size=5))
def test_options_are_read_as_they_were_written(options: list[tuple[int, bytes]]) -> None:
    assert split_options(join_options(options)) == tuple(options)


@given(st.binary(max_size=60))
def test_any_bytes_are_options_or_their_beginning(data: bytes) -> None:
    assert data.startswith(join_options(split_options(data)))


@pytest.mark.parametrize(
    ("rule", "name", "changed"),
    [
        (["a.example", "b.example"], "a.example.", "b.example."),
        (["prefix", "x-", "y-"], "x-a.example.", "y-a.example."),
        (["suffix", "example.", "example.net."], "a.example.", "a.example.net."),
        (["regex", r"^(\w+)-(\w+)\.", "{2}-{1}."], "a-b.example.", "b-a."),
        (["substring", "zz", "y"], "a.example.", None),
    ],
)
def test_name_rules_change_names(rule: list[str], name: str, changed: str | None) -> None:
    outcome = read_name_change(_DIRECTIVE, rule, answers=True).apply(name)
    assert (outcome.name if outcome else None) == changed


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("set", [(1, b"x")], [(1, b"x"), (65001, b"new")]),
        ("set", [(65001, b"old")], [(65001, b"new")]),
        ("append", [(65001, b"old")], None),
        ("replace", [(1, b"x")], None),
        ("replace", [(65001, b"old")], [(65001, b"new")]),
    ],
)
def test_option_rules_set_append_or_replace(
    action: str, before: list[tuple[int, bytes]], after: list[tuple[int, bytes]] | None
) -> None:
    rule = read_option_rule(_DIRECTIVE, ["local", action, "65001", "new"])
    query = Query(1, 0, encode_name("a"), wire.A, wire.IN, Edns(options=join_options(before)))
    assert rule.apply(PluginRequest(query)) == (None if after is None else join_options(after))
