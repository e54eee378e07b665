"""Numbered flows over loopback."""

import re
import threading

import pytest
from tests.fakes.ports import free_port

from podwire.errors import ConfigError
from podwire.flows import sending, serving
from podwire.flows.count import FlowReport, FlowTarget


def start_server() -> tuple[int, int, int]:
    """The ports of a server that runs until the tests end: numbers, HTTP, denied."""
    port, http, denied = free_port(), free_port(), free_port()
    threading.Thread(target=serving.serve, args=(port, http, denied), daemon=True).start()
    assert sending.unreachable(["127.0.0.1"], 30.0, port) == []
    return port, http, denied


def sent(targets: list[FlowTarget], turns: int) -> dict[str, FlowReport]:
    lines: list[str] = []
    sending.send(targets, lines.append, ended=lambda done: done == turns)
    return {report.kind: report for report in sending.parse("\n".join(["starting", *lines, "[{incomple"]))}


def test_every_kind_of_flow_gets_its_answers() -> None:
    port, http, _ = start_server()
    web = FlowTarget(kind="http", address="127.0.0.1", port=http, path="ingress", name="a.example")
    by_kind = sent([*sending.targets_of("127.0.0.1", port), web], 10)
    assert by_kind.keys() == {"tcp", "udp", "new", "http"}
    for report in by_kind.values():
        assert report.answered >= 2 and report.lost == report.broken == 0
        assert report.sent - report.answered <= 2, "the last ones may be under way"
    assert by_kind["http"].path == "ingress"


def test_answers_to_denied_probes_are_leaks() -> None:
    _, _, denied = start_server()
    targets = [FlowTarget(kind=kind, address="127.0.0.1", port=denied) for kind in ("denied", "denied-udp")]
    by_kind = sent(targets, 8)
    assert all(report.leaked >= 2 and report.lost == 0 for report in by_kind.values())
    assert by_kind["denied"].losses[0].reason == "answered though it is denied"


def test_a_server_that_is_away_is_counted_and_named() -> None:
    port = free_port()
    by_kind = sent(sending.targets_of("127.0.0.1", port), 4)
    assert by_kind["tcp"].broken >= 2 and by_kind["new"].lost >= 2
    assert by_kind["new"].losses[0].reason == "connection refused"
    assert all(report.answered == 0 for report in by_kind.values())
    assert sending.unreachable(["127.0.0.1"], 0.0, port) == ["127.0.0.1: Connection refused"]


def test_a_refused_connection_is_no_leak() -> None:
    port = free_port()
    report = sent([FlowTarget(kind="denied", address="127.0.0.1", port=port)], 4)["denied"]
    assert (report.leaked, report.lost, report.losses) == (0, 0, ())


def test_a_log_without_a_report_has_none() -> None:
    assert sending.parse("") == sending.parse("Traceback\n") == []


def test_targets_pass_the_command_line() -> None:
    target = FlowTarget(kind="dns", address="10.96.0.10", port=53, path="dns", name="kubernetes.default.svc")
    assert sending.parse_targets(sending.write_targets([target])) == [target]
    assert [item.kind for item in sending.parse_targets(["10.0.0.1"])] == ["tcp", "udp", "new"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"kind": "sctp", "address": "10.0.0.1", "port": 1}', "Invalid enum value 'sctp'"),
        ('{"kind": "tcp", "address": "10.0.0.1", "port": 65536}', "Expected `int` <= 65535"),
        ('{"kind": "tcp", "address": "shop.example", "port": 1}', "'shop.example' does not appear to be an IPv4"),
        ('{"kind": "dns", "address": "10.0.0.1", "port": 53, "name": "a..b"}', "a label of 0 bytes"),
        ("shop.example", "'shop.example' does not appear to be an IPv4 or IPv6 address"),
    ],
)
def test_a_wrong_target_is_refused_with_its_text(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"TARGET: {re.escape(text)}: .*{re.escape(problem)}"):
        sending.parse_targets([text])
