"""The query log: CoreDNS' lines, lines of one's own, JSON, and classes."""

import json

import dns.message
import dns.rcode
import pytest

from podwire.dns.logformat import CLASSES, COMBINED, PLACEHOLDERS
from podwire.dns.querylog import LoggedQuery, QueryLog, class_of, fields_of


def a_query(rcode: int = 0, answers: int = 1, protocol: str = "udp") -> LoggedQuery:
    query = dns.message.make_query("Web.example.", "AAAA", use_edns=0, payload=1400, want_dnssec=True)
    query.id = 7
    reply = dns.message.make_response(query)
    reply.set_rcode(dns.rcode.Rcode(rcode))
    data = bytearray(reply.to_wire())
    data[7] = answers
    return LoggedQuery(query.to_wire(), bytes(data), ("fd00::7", 4711), ("fd00::53", 53), protocol, 0.0001234)


def written(caplog: pytest.LogCaptureFixture, line: str, *classes: str, query: LoggedQuery | None = None) -> str:
    caplog.set_level("INFO")
    QueryLog(line, classes).report(query or a_query())
    return caplog.records[-1].getMessage() if caplog.records else ""


def test_common_line_is_that_of_coredns(caplog: pytest.LogCaptureFixture) -> None:
    expected = '[fd00::7]:4711 - 7 "AAAA IN web.example. udp 40 true 1400" NOERROR qr,rd 40 0.000123400s'
    assert written(caplog, "{common}") == expected


def test_line_may_have_any_placeholder(caplog: pytest.LogCaptureFixture) -> None:
    assert written(caplog, "{name} {rcode} {local} {>opcode}") == "web.example. NOERROR fd00::53 0"
    assert written(caplog, COMBINED).endswith('s "0"')


def test_json_line_has_all_values(caplog: pytest.LogCaptureFixture) -> None:
    fields = json.loads(written(caplog, "json"))
    assert fields["name"] == "web.example." and fields["id"] == 7 and fields["rflags"] == "qr,rd"
    assert set(fields) == {name.lstrip(">") for name in PLACEHOLDERS}
    assert set(fields_of(a_query())) == set(PLACEHOLDERS)


@pytest.mark.parametrize(
    ("rcode", "answers", "expected"),
    [(0, 1, "success"), (0, 0, "denial"), (3, 0, "denial"), (2, 0, "error"), (5, 0, "error")],
)
def test_only_the_chosen_classes_are_written(
    rcode: int, answers: int, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = a_query(rcode, answers)
    assert class_of(query.reply) == expected and expected in CLASSES
    assert bool(written(caplog, "{name}", expected, query=query))
    caplog.clear()
    assert not written(caplog, "{name}", *(set(CLASSES) - {expected}), query=query)


def test_request_that_cannot_be_read_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    query = a_query()._replace(request=b"\x00" * 12)
    assert written(caplog, "{common}", query=query) == ""
