"""Numbered flows over loopback."""

import socket
import threading

from podwire.install.migration import flows
from podwire.install.migration.flowcount import FlowReport


def port_of_server() -> int:
    """The port of a server that runs until the tests end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    threading.Thread(target=flows.serve, args=(port,), daemon=True).start()
    assert flows.unreachable(["127.0.0.1"], 30.0, port) == []
    return port


def sent(target: str, port: int, turns: int) -> list[FlowReport]:
    lines: list[str] = []
    flows.send([target], lines.append, port, turns)
    return flows.parse("\n".join(["starting", *lines, "[{incomple"]))


def test_every_kind_of_flow_gets_its_answers() -> None:
    by_kind = {report.kind: report for report in sent("127.0.0.1", port_of_server(), 10)}
    assert by_kind.keys() == {"tcp", "udp", "new"}
    for report in by_kind.values():
        assert report.answered >= 2 and report.lost == report.broken == 0
        assert report.sent - report.answered <= 1, "the last one may be under way"


def test_a_server_that_is_away_is_counted_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    by_kind = {report.kind: report for report in sent("127.0.0.1", port, 4)}
    assert by_kind["tcp"].broken >= 2 and by_kind["new"].broken >= 2
    assert all(report.answered == 0 for report in by_kind.values())
    assert flows.unreachable(["127.0.0.1"], 0.0, port) == ["127.0.0.1: Connection refused"]


def test_a_log_without_a_report_has_none() -> None:
    assert flows.parse("") == flows.parse("Traceback\n") == []
