"""Port tables with other rulings for some ports, and the entries in which two tables differ."""

from hypothesis import given
from hypothesis import strategies as st

from podwire.policy.portchanges import change_of, with_ports
from podwire.policy.ports import LAST_PORT, PROTOCOLS, PortRuling, PortTable, Ruling, table_of_ports

DENIED = Ruling(accept=False)
PORTS = (0, 1, 2, 80, 81, 8080, LAST_PORT - 1, LAST_PORT)
KEYS = st.tuples(st.sampled_from(PROTOCOLS), st.sampled_from(PORTS))
CHOICES = st.dictionaries(KEYS, st.integers(0, 3))
"""The place of the policy that allows each port."""


def ruling(protocol: str, port: int, place: int) -> Ruling:
    """Neighbouring ports have different rulings."""
    return Ruling(accept=True, policy=f"{protocol} {port}", rule=place)


def table(choices: dict[tuple[str, int], int]) -> PortTable:
    singles = {
        protocol: {
            port: ruling(protocol, port, place) for (own, port), place in sorted(choices.items()) if own == protocol
        }
        for protocol in PROTOCOLS
    }
    return table_of_ports(singles, dict.fromkeys(("", *PROTOCOLS), DENIED))


@given(CHOICES, CHOICES)
def test_table_with_other_ports_equals_a_new_table(
    before: dict[tuple[str, int], int], changes: dict[tuple[str, int], int]
) -> None:
    rulings = {key: ruling(*key, place) for key, place in changes.items()}
    assert with_ports(table(before), rulings) == table(before | changes)


@given(CHOICES, CHOICES, st.booleans())
def test_change_holds_all_entries_that_differ(
    before: dict[tuple[str, int], int], after: dict[tuple[str, int], int], related: bool
) -> None:
    old, new = table(before), table(before | after if related else after)
    change = change_of(old, new)
    start = next((i for i, pair in enumerate(zip(old.entries, new.entries, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        start = min(len(old.entries), len(new.entries))
    end = start + len(change.removed)
    assert old.entries[start:end] == change.removed
    assert (*old.entries[:start], *change.added, *old.entries[end:]) == new.entries
    assert (change.removed == change.added == ()) == (old == new)
    assert change.protocols == {entry.protocol for entry in (*change.removed, *change.added)}


def test_one_more_port_changes_the_range_around_it() -> None:
    ports = {("TCP", port): 0 for port in range(1000, 2000, 2)}
    change = change_of(table(ports), table(ports | {("TCP", 1501): 1}))
    assert change.removed == (PortRuling("TCP", 1501, 1501, DENIED),)
    assert change.added == (PortRuling("TCP", 1501, 1501, ruling("TCP", 1501, 1)),)
