"""Which nodes are alive, from the renewals that one agent observes, and that takeovers come after the holder's end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.loadbalancer.liveness import (
    EXPIRY_S,
    HOLD_S,
    KERNEL_S,
    RENEW_S,
    SpeakerLiveness,
    all_without_contact,
    lifetime_s,
)


def observed(*renewals: tuple[float, str], me: str = "me") -> SpeakerLiveness:
    """The liveness after renewals of nodes, in order."""
    liveness = SpeakerLiveness(me)
    for at, node in renewals:
        liveness.observe(node, f"{node}{at}", at)
    return liveness


def steady(until: float, *nodes: str) -> list[tuple[float, str]]:
    return [(float(second), node) for second in range(int(until) + 1) for node in nodes]


def test_a_silent_node_is_dead_after_the_expiry() -> None:
    liveness = observed(*steady(10, "me"), (2.0, "other"))
    assert liveness.alive(1.9 + EXPIRY_S) == {"me", "other"}
    assert liveness.alive(2.1 + EXPIRY_S) == {"me"}
    liveness.observe("other", "again", 9.0)
    assert liveness.alive(9.0) == {"me", "other"}


def test_an_agent_without_its_own_renewals_declares_nobody_dead() -> None:
    liveness = observed(*steady(3, "me", "other"))
    assert liveness.alive(60.0) == {"me", "other"}
    assert not liveness.is_connected(60.0)


def test_an_agent_waits_after_it_is_connected_again() -> None:
    liveness = observed(*steady(3, "me", "other"))
    for second in range(60, 66):
        liveness.observe("me", f"me{second}", float(second))
    assert liveness.alive(59.9 + EXPIRY_S) == {"me", "other"}
    assert liveness.alive(60.1 + EXPIRY_S) == {"me"}


def test_an_old_lease_is_dead_when_it_is_first_read() -> None:
    liveness = SpeakerLiveness("me")
    liveness.observe("gone", "long ago", 0.0, is_old=True)
    liveness.observe("other", "now", 0.0)
    assert liveness.alive(0.1) == {"other"}
    liveness.observe("other", None, 0.2)
    assert liveness.alive(0.2) == frozenset()


@given(st.floats(0, HOLD_S + 2))
def test_the_kernel_ends_before_another_node_takes_over(late: float) -> None:
    """The kernel removes an address at most a second after the end of its lifetime."""
    assert late + lifetime_s(0.0, late) + (1.0 if lifetime_s(0.0, late) else 0.0) <= max(KERNEL_S, late)
    assert KERNEL_S < EXPIRY_S
    assert HOLD_S < EXPIRY_S


def test_a_node_fails_over_within_five_seconds() -> None:
    """The node dies right after a renewal; 0.25 s are for the check, the write of the claim, and the announcement."""
    assert EXPIRY_S + 0.25 < 5.0
    assert RENEW_S * 2 < HOLD_S


@pytest.mark.parametrize(
    ("messages", "want"),
    [
        ({}, False),
        ({"a": (9.5, False)}, False),
        ({"a": (9.5, False), "b": (9.5, False)}, True),
        ({"a": (9.5, False), "b": (9.5, True)}, False),
        ({"a": (9.5, False), "b": (8.5, False)}, False),
        ({"a": (9.5, False), "b": (9.5, False), "stranger": (9.5, True)}, True),
    ],
)
def test_addresses_stay_while_nobody_has_contact(messages: dict[str, tuple[float, bool]], want: bool) -> None:
    assert all_without_contact({"me", "a", "b"}, "me", messages, 10.0) is want


def test_a_single_node_keeps_its_addresses() -> None:
    assert all_without_contact({"me"}, "me", {}, 10.0)
