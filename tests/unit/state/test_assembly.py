"""A state changed by its differences is the state of all objects that were added and not removed."""

from collections.abc import Sequence
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from podwire.state.assembly import Assembly
from podwire.state.link import Link
from podwire.state.network import NetworkState, Object, merge
from podwire.state.ordered import difference
from podwire.state.route import Fdb, Route

NUMBERS = st.integers(0, 9)
OBJECTS: st.SearchStrategy[Object] = st.one_of(
    st.builds(Route, NUMBERS.map("10.244.{}.0/24".format)),
    st.builds(Fdb, st.just("eth0"), NUMBERS.map("02:00:00:00:00:0{}".format)),
    st.builds(Link, NUMBERS.map("eth{}".format)),
)
PORTIONS = st.lists(st.lists(OBJECTS, max_size=4).map(tuple), max_size=6)


@given(st.lists(PORTIONS, max_size=5))
def test_an_assembly_equals_a_new_state(turns: list[list[tuple[Object, ...]]]) -> None:
    assembly = Assembly()
    present: list[tuple[Object, ...]] = []
    for portions in turns:
        state = assembly.change(chain.from_iterable(present), chain.from_iterable(portions))
        present = portions
        assert state == merge(state_of(objects) for objects in portions)


def state_of(objects: Sequence[Object]) -> NetworkState:
    return Assembly().change((), objects)


def test_an_object_of_two_peers_stays_until_both_are_gone() -> None:
    shared, alone = Route("10.244.1.0/24", "10.89.0.12"), Route("10.244.2.0/24", "10.89.0.13")
    assembly = Assembly()
    assembly.change((), [shared, alone, shared])
    assert assembly.change([shared], []).routes == (shared, alone)
    assert assembly.change([shared], []).routes == (alone,)


def test_one_of_many_objects_is_inserted_in_order() -> None:
    routes = tuple(Route(f"10.244.{number}.0/24", "10.89.0.12") for number in range(100))
    assembly = Assembly()
    assembly.change((), routes)
    state = assembly.change(routes[40:41], [Route("10.244.40.0/24", "10.89.0.13"), Route("10.245.0.0/24")])
    expected = (*routes[:40], *routes[41:], Route("10.244.40.0/24", "10.89.0.13"), Route("10.245.0.0/24"))
    assert state == NetworkState(routes=expected)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=5))
def test_merged_states_equal_a_new_state(numbers: list[tuple[int, ...]]) -> None:
    base = tuple(Route(f"10.244.{number}.0/24") for number in range(0, 100, 3))
    portions = [base, *(tuple(Route(f"10.244.{number * 11}.0/24") for number in item) for item in numbers)]
    merged = merge(NetworkState(routes=routes) for routes in portions)
    assert merged == NetworkState(routes=tuple(chain.from_iterable(portions)))


@given(st.sets(st.integers(0, 400)), st.sets(st.integers(0, 400)), st.sets(st.integers(0, 400)))
def test_the_difference_of_two_orders(common: set[int], before: set[int], after: set[int]) -> None:
    old, new = common | before, common | after
    gone, added = difference(sorted(old), sorted(new), lambda value: value)
    assert (gone, added) == (sorted(old - new), sorted(new - old))
