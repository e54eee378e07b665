"""Lists of the match ``recent`` as the kernel prints them."""

from podwire.kernel.xt_recent import parse, parse_clock

TIMERS = """Timer List Version: v0.10
now at 23192609556919 nsecs

  .idle_jiffies   : 4300690377
jiffies: 4300690385
"""
TEXT = """src=10.244.0.5 ttl: 64 last_seen: 4300690135 oldest_pkt: 2 4300680000, 4300690135
src=fd00:0000:0000:0000:0000:0000:0000:0001 ttl: 64 last_seen: 4300690385 oldest_pkt: 1 4300690385
"""


def test_ages() -> None:
    clock = parse_clock(TIMERS)
    assert clock == (4300690385, 250)
    assert parse(TEXT, clock) == {"10.244.0.5": 1.0, "fd00::1": 0.0}


def test_without_a_clock_everybody_was_seen_just_now() -> None:
    assert parse_clock("") is None
    assert parse(TEXT, None) == {"10.244.0.5": 0.0, "fd00::1": 0.0}
    assert parse("", None) == {}
