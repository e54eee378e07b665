"""What is new comes before what leads there, and goes after it."""

import pytest
from msgspec.structs import replace
from tests.unit.policy.dataplanes.nftables.test_contents import LAYOUTS, Kernel, follow, fresh
from tests.unit.policy.test_changes_in_place import Blocks
from tests.unit.policy.test_compile import CASES, Chaos

from podwire.policy.compile import compile_world
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.steps import steps
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_diff import AddElements, DeleteChain, DeleteElements, diff


@pytest.mark.parametrize("kind", [Chaos, Blocks])
@pytest.mark.parametrize("seed", range(6))
def test_chain_and_element_to_it_need_two_transactions(seed: int, kind: type[Chaos]) -> None:
    chaos = kind(7000 + seed)
    contents = fresh(LAYOUTS["ip"], chaos.compilers["n1"])
    contents.commit()
    kernel = Kernel(contents.table())
    parts = 0
    for _ in range(30):
        chaos.change()
        follow(contents, chaos.compilers["n1"], chaos.compilers["n1"].flush())
        for step in steps(contents.commit()):
            parts += 1
            ending = any(isinstance(operation, DeleteChain) for operation in step.operations)
            assert not (ending and any(isinstance(operation, DeleteElements) for operation in step.operations))
            known = set(kernel.chains)
            met = {name for name in kernel.sets if name in kernel.used()}
            kernel.commit(step)
            for operation in step.operations:
                if isinstance(operation, AddElements) and operation.set.name in met:
                    led = {
                        element.verdict.chain for element in operation.elements.values() if element.verdict is not None
                    }
                    assert led - {""} <= known
        assert kernel.holds(contents.table())
    assert parts > 10


def test_a_table_that_is_not_there_gets_its_hooks_last() -> None:
    case = next(case for case in CASES if case.name == "ports, protocols and ranges")
    table = fresh(LAYOUTS["ip"], compile_world(case.world, "n1")).table()
    first, second = steps(diff(None, table))
    hooks = [chain.name for chain in table.chains if chain.hook]
    assert all(name in str(second) and f"add chain {name}" not in str(first) for name in hooks)
    kernel = Kernel(Table(family="ip", name=table.name))
    for step in (first, second):
        kernel.commit(step)
    assert kernel.holds(table)


def test_a_table_with_other_base_chains_is_replaced_atomically() -> None:
    table = Contents(LAYOUTS["ip"]).table()
    other = Table(family="ip", name=table.name, comment="older", sets=table.sets, chains=table.chains)
    assert len(list(steps(diff(other, table)))) == 1


def test_a_single_element_is_one_transaction() -> None:
    table = Contents(LAYOUTS["ip"]).table()
    declared = next(declared for declared in table.sets if declared.name == "pod-devices")
    fuller = Table(
        family="ip",
        name=table.name,
        comment=table.comment,
        chains=table.chains,
        sets=tuple(
            item if item is not declared else declared.with_elements((declared.element("web"),)) for item in table.sets
        ),
    )
    (step,) = steps(diff(table, fuller))
    assert isinstance(step.operations[0], AddElements)
    (back,) = steps(diff(fuller, table))
    assert isinstance(back.operations[0], DeleteElements)


def test_address_leaves_a_shared_map_between_both_chains() -> None:
    """The old chain's ranges decide about no address that leaves: its element goes when no packet comes there."""
    before = table("in-a", {"10.0.0.1": "ports-x", "10.0.0.2": "ports-x"}, "ports-x")
    after = table("in-b", {"10.0.0.2": "ports-y"}, "ports-y")
    new, switch, leave, end = (str(step) for step in steps(diff(before, after)))
    assert "add chain in-b" in new
    assert "10.0.0.2" in switch
    assert "10.0.0.1" not in switch
    assert "delete element in-hosts { 10.0.0.1" in leave
    assert "delete chain in-a" in end


def table(profile: str, hosts: dict[str, str], ports: str) -> Table:
    own = Set(name="in-hosts", key=("ipv4_addr",), data=("verdict",))
    devices = Set(name="ingress", key=("ifname",), data=("verdict",))
    chains = (Chain(name=profile, rules=LAYOUTS["ip"].rules("ip saddr vmap @in-hosts")), Chain(name=ports))
    sets = (
        own.with_elements(own.element(address, f"goto {chain}") for address, chain in hosts.items()),
        devices.with_elements((devices.element("eth0", f"goto {profile}"),)),
    )
    return Table(family="ip", name="podwire-policy", chains=chains, sets=sets)


@pytest.mark.parametrize(("verdict", "commits"), [("accept", 1), ("drop", 2)])
def test_accepting_rule_comes_with_its_element(verdict: str, commits: int) -> None:
    """Where the end of a chain accepts: there a packet that meets no rules yet is accepted as well."""
    before, after = ports(), ports(("rule-a", verdict))
    transaction = diff(before, after)
    assert len(list(steps(transaction, end_accepts=True))) == commits
    assert len(list(steps(transaction))) == 2


def test_new_table_of_ports_comes_before_the_element_to_it() -> None:
    before = table("in-a", {}, "ports-x")
    after = table("in-a", {"10.0.0.1": "ports-y"}, "ports-x")
    chain = Chain(name="ports-y", rules=LAYOUTS["ip"].rules("goto rule-a"))
    after = replace(after, chains=(*after.chains, chain))
    new, lead = (str(step) for step in steps(diff(before, after), end_accepts=True))
    assert "add chain ports-y" in new
    assert "add element in-hosts { 10.0.0.1" in lead


def test_new_ranges_come_before_the_rules_that_look_there() -> None:
    """Packets were lost when a map of intervals came with the rule that looks there."""
    before, after = (
        ranged("in-a-ranges-1", {"10.0.0.1": "ports-x"}, "ports-x"),
        ranged("in-a-ranges-2", {}, "ports-y"),
    )
    new, switch, leave, end = (str(step) for step in steps(diff(before, after)))
    assert "add map in-a-ranges-2" in new
    assert "add element in-a-ranges-2" in new
    assert "add chain ports-y" in new
    assert "flush chain in-a" in switch
    assert "delete element in-hosts { 10.0.0.1" in leave
    assert "delete map in-a-ranges-1" in end


def ranged(name: str, hosts: dict[str, str], ports: str) -> Table:
    """A profile whose map of ranges leads to a table of ports."""
    plain = table("in-a", hosts, ports)
    declared = Set(name=name, key=("ipv4_addr",), data=("verdict",), flags=("interval",))
    rules = LAYOUTS["ip"].rules("ip saddr vmap @in-hosts", f"ip saddr vmap @{name}")
    chains = tuple(replace(chain, rules=rules) if chain.name == "in-a" else chain for chain in plain.chains)
    ranges = declared.with_elements((declared.element("203.0.113.0/24", f"goto {ports}"),))
    return replace(plain, chains=chains, sets=(*plain.sets, ranges))


def ports(*rules: tuple[str, str]) -> Table:
    """A table with a map of ports that leads to rules."""
    own = Set(name="ports-t-tcp", key=("inet_service",), data=("verdict",))
    chains = (Chain(name=name, rules=LAYOUTS["ip"].rules(f"counter {verdict}")) for name, verdict in rules)
    elements = (own.element(str(80 + number), f"goto {name}") for number, (name, _) in enumerate(rules))
    return Table(family="ip", name="podwire-policy", chains=tuple(chains), sets=(own.with_elements(elements),))
