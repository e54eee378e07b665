"""Counts of numbered flows."""

from podwire.install.migration.flowcount import LOST_S, FlowCount, summary


def test_answers_are_counted_with_the_longest_gap() -> None:
    count = FlowCount("udp", "10.0.0.1", 0.0)
    for at in (0.0, 1.0, 4.0):
        count.answer(count.send(at), at)
    report = count.report(4.5)
    assert (report.sent, report.answered, report.lost, report.gap_ms, report.silent_ms) == (3, 3, 0, 3000, 500)


def test_messages_without_an_answer_are_lost_after_the_limit() -> None:
    count = FlowCount("udp", "10.0.0.1", 0.0)
    first, second = count.send(0.0), count.send(1.0)
    count.expire(LOST_S)
    assert count.report(LOST_S).lost == 0
    count.expire(LOST_S + 0.5)
    count.answer(first, LOST_S + 0.5)
    count.answer(second, LOST_S + 0.5)
    report = count.report(LOST_S + 0.5)
    assert (report.lost, report.answered) == (1, 1), "a late answer does not count"


def test_the_end_of_a_connection_loses_what_is_unanswered() -> None:
    count = FlowCount("tcp", "10.0.0.1", 0.0)
    count.answer(count.send(0.0), 0.1)
    count.send(0.2)
    count.send(0.3)
    count.end()
    report = count.report(0.4)
    assert (report.broken, report.lost, report.answered) == (1, 2, 1)


def test_the_summary_has_a_line_for_each_kind() -> None:
    counts = [FlowCount(kind, "a", 0.0) for kind in ("udp", "tcp", "tcp")]
    for count in counts:
        count.answer(count.send(0.0), 0.02)
    counts[1].send(0.1)
    counts[1].end()
    assert summary(count.report(0.1) for count in counts) == [
        "tcp: 1 of 3 messages lost in 2 flows, 1 connections ended, longest gap 80 ms",
        "udp: 0 of 1 messages lost in 1 flows, longest gap 80 ms",
    ]
