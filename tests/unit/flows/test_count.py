"""Counts of numbered flows."""

from podwire.flows.count import LOST_S, FlowCount, LossSpan, since, summary


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
        "tcp: 1 of 3 messages lost in 2 flows, 1 connection ended, longest gap 80ms",
        "udp: 0 of 1 messages lost in 1 flow, longest gap 80ms",
    ]


def test_losses_are_spans_that_end_with_an_answer() -> None:
    count = FlowCount("udp", "a", 0.0, epoch=1000.0)
    for at in (1.0, 2.0):
        count.lose(count.send(at), "no answer")
    count.answer(count.send(3.0), 3.1)
    count.lose(count.send(4.0), "connection refused")
    assert count.report(4.0).losses == (
        LossSpan(first=1001.0, last=1002.0, number=2, reason="no answer"),
        LossSpan(first=1004.0, last=1004.0, number=1, reason="connection refused"),
    )


def test_answers_to_denied_messages_are_leaks() -> None:
    count = FlowCount("denied-udp", "a", 0.0)
    count.send(1.0)
    count.answer(count.send(2.0), 2.1)
    count.expire(9.0)
    report = count.report(20.0)
    assert (report.leaked, report.lost, report.answered, report.silent_ms, report.sent) == (1, 0, 0, 0, 2)
    assert summary([report]) == ["denied-udp: 1 of 2 messages leaked in 1 flow"]


def test_losses_from_before_the_window_do_not_count() -> None:
    count, denied = FlowCount("udp", "a", 0.0, epoch=1000.0), FlowCount("denied", "a", 0.0, epoch=1000.0)
    for flow in (count, denied):
        for at in (1.0, 5.0):
            number = flow.send(at)
            flow.answer(number, at) if flow is denied else flow.lose(number, "no answer")
            flow.answer(flow.send(at), at) if flow is count else flow.lose(flow.send(at), "no answer")
    late = since(count.report(6.0), 1003.0)
    assert (late.lost, [span.first for span in late.losses]) == (1, [1005.0])
    assert since(denied.report(6.0), 1003.0).leaked == 1
