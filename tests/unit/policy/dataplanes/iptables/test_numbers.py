import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import KernelError
from podwire.policy.dataplanes.iptables.numbers import MarkBits, Numbers, branches, known_numbers
from podwire.state.iptables import Rules

MARKS = MarkBits(0xFFF00000)


def lead(chains: dict[str, Rules], number: int, marks: MarkBits = MARKS) -> tuple[str, int]:
    """Where a number leads, and after how many rules."""
    chain, count = "TO", 0
    mark = marks.of(number)[0]
    while chain in chains:
        for rule in chains[chain]:
            count += 1
            fields = rule.split()
            if fields[0] == "-j":
                return "dropped", count
            value, _, mask = fields[3].partition("/")
            if mark & int(mask or "0xffffffff", 16) == int(value, 16):
                chain = fields[-1]
                break
        else:
            pytest.fail("a chain ends without a verdict")
    return chain, count


@given(st.sets(st.integers(0, 4095), max_size=300), st.integers(0, 4095))
def test_number_leads_to_its_chain_only(numbers: set[int], other: int) -> None:
    names = {f"TABLE-{number}": number for number in numbers}
    chains = branches("TO", names, MARKS)
    for name, number in names.items():
        assert lead(chains, number)[0] == name
    if other not in numbers:
        assert lead(chains, other)[0] == "dropped"
    assert known_numbers(chains, "TO", "TABLE-", MARKS) == names
    assert all(len(rules) <= 5 for rules in chains.values())


@pytest.mark.parametrize(("count", "most"), [(4, 4), (16, 8), (250, 16), (1000, 20), (4000, 24)])
def test_the_way_grows_with_the_logarithm(count: int, most: int) -> None:
    chains = branches("TO", {f"TABLE-{number}": number for number in range(count)}, MARKS)
    paths = [lead(chains, number)[1] for number in range(count)]
    assert max(paths) <= most
    assert sum(paths) / count <= most / 1.5


def test_one_more_number_writes_few_chains() -> None:
    numbers = {f"TABLE-{number}": number for number in range(1, 101)}
    before = branches("TO", numbers, MARKS)
    after = branches("TO", numbers | {"TABLE-101": 101}, MARKS)
    assert len({name for name in after if before.get(name) != after[name]}) <= 2


def test_a_whole_mark_is_printed_without_its_mask() -> None:
    assert MarkBits(0xFFFFFFFF).within(5) == "0x5"
    assert MarkBits(0xFF00).within(5) == "0x500/0xff00"
    assert MarkBits(0xFF00).within(5, 1) == "0x400/0xfe00"
    assert MarkBits(0xFF00).sets(1) == "-j MARK --set-xmark 0x100/0xff00"
    assert MarkBits(0xFF00).last == 255


def test_names_keep_their_numbers_and_new_names_take_free_ones() -> None:
    numbers = Numbers(3, 6, {"a": 3, "c": 5})
    assert [numbers.take(name) for name in ("b", "c", "d")] == [4, 5, 6]
    with pytest.raises(KernelError, match="more than 6 marks"):
        numbers.take("e")
    assert numbers.leading == {"a": 3, "b": 4, "c": 5, "d": 6}
    numbers.settle()
    assert numbers.leading == {"b": 4, "c": 5, "d": 6}
    assert numbers.take("e") == 3


def test_released_number_stays_valid_until_all_is_settled() -> None:
    numbers = Numbers(1, 9, {})
    assert numbers.take("a") == 1
    numbers.settle()
    numbers.give_back("a")
    assert (numbers.leading, numbers.take("b")) == ({"a": 1}, 2)
    assert numbers.take("a") == 1, "its number is still its own"
    numbers.give_back("a")
    numbers.settle()
    assert numbers.take("c") == 1


def test_number_of_a_chain_never_written_selects_nothing() -> None:
    numbers = Numbers(1, 9, {})
    numbers.take("a")
    numbers.give_back("a")
    assert numbers.leading == {}
    assert numbers.take("b") == 1


def test_numbers_are_known_where_names_begin_as_branches_do() -> None:
    expected = {f"TO-{number:x}ab": number for number in (5, 6, 17, 18, 40, 41, 42)}
    assert known_numbers(branches("TO", expected, MARKS), "TO", "TO-", MARKS) == expected


def test_foreign_bits_and_ambiguous_numbers_are_unknown() -> None:
    chains = branches("TO", {"TABLE-a": 1, "TABLE-b": 2}, MARKS)
    assert known_numbers(chains, "TO", "TABLE-", MarkBits(0xFF00)) == {}
    twice = {"TO": (chains["TO"][0], chains["TO"][0].replace("TABLE-a", "TABLE-c"))}
    assert known_numbers(twice, "TO", "TABLE-", MARKS) == {}
