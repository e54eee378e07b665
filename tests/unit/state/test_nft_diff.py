"""Differences between tables: what is left alone, what is changed in which order."""

import msgspec

from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_diff import AddElements, DeleteElements, diff, removal
from podwire.state.nft_text import parse_rule


def table(elements: dict[str, str], rules: tuple[str, ...] = ("ip daddr vmap @services",), *more: Chain) -> Table:
    services = Set(name="services", key=("ipv4_addr",), data=("verdict",))
    return Table(
        family="ip",
        name="t",
        sets=(services.with_elements(services.element(key, value) for key, value in elements.items()),),
        chains=(Chain(name="dispatch", rules=tuple(parse_rule(rule) for rule in rules)), *more),
    )


WEB = Chain(name="web", rules=(parse_rule("accept"),))


def test_equal_tables_differ_in_nothing() -> None:
    assert not diff(table({"10.0.0.1": "accept"}), table({"10.0.0.1": "accept"}))


def test_counters_are_no_difference() -> None:
    have = table({}, ("ip saddr 10.0.0.1 counter packets 7 bytes 900 drop",))
    assert not diff(have, table({}, ("ip saddr 10.0.0.1 counter packets 0 bytes 0 drop",)))


def test_a_new_table_comes_whole() -> None:
    assert str(diff(None, table({"10.0.0.1": "goto web"}, ("ip daddr vmap @services",), WEB))).splitlines() == [
        "add table  # ip t",
        "add map services  # ip t",
        "add chain dispatch  # ip t",
        "add chain web  # ip t",
        "add rule dispatch ip daddr vmap @services  # ip t",
        "add rule web accept  # ip t",
        "add element services { 10.0.0.1 : goto web }  # ip t",
    ]


def test_changed_elements_leave_before_they_come() -> None:
    change = diff(table({"10.0.0.1": "accept", "10.0.0.2": "drop"}), table({"10.0.0.1": "drop", "10.0.0.3": "drop"}))
    removed, added = change.operations
    assert isinstance(removed, DeleteElements)
    assert isinstance(added, AddElements)
    assert str(removed) == "delete element services { 10.0.0.1 : accept, 10.0.0.2 : drop }"
    assert str(added) == "add element services { 10.0.0.1 : drop, 10.0.0.3 : drop }"


def test_changed_rules_are_written_again() -> None:
    change = diff(table({}), table({}, ("ip daddr vmap @services", "drop")))
    assert [str(operation) for operation in change.operations] == [
        "flush chain dispatch",
        "add rule dispatch ip daddr vmap @services",
        "add rule dispatch drop",
    ]


def test_a_chain_goes_after_the_elements_that_name_it() -> None:
    change = diff(table({"10.0.0.1": "goto web"}, ("ip daddr vmap @services",), WEB), table({}))
    assert [str(operation) for operation in change.operations] == [
        "delete element services { 10.0.0.1 : goto web }",
        "flush chain web",
        "delete chain web",
    ]


def test_another_declaration_replaces_the_table() -> None:
    want = table({})
    want = msgspec.structs.replace(want, sets=(msgspec.structs.replace(want.sets[0], size=8),))
    arguments = [str(operation) for operation in diff(table({}), want).operations]
    assert arguments[:3] == ["add table", "delete table", "add table"]


def test_elements_of_dynamic_sets_are_the_kernels() -> None:
    declared = Set(name="seen", key=("ipv4_addr",), flags=("dynamic",))
    have = Table(family="ip", name="t", sets=(declared.with_elements([declared.element("10.0.0.1")]),))
    assert not diff(have, Table(family="ip", name="t", sets=(declared,)))


def test_removal_of_a_missing_table_is_no_error() -> None:
    assert [str(operation) for operation in removal("ip", "t").operations] == ["add table", "delete table"]
