"""Contents that follow a changing cluster, by transactions that a kernel would take."""

import random

import pytest
from msgspec.structs import replace
from tests.unit.policy.test_compile import CASES, Chaos

from podwire.policy.compile import Compiler, PolicyDelta, compile_world
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.layout import TableLayout
from podwire.policy.settings import LogSettings
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_diff import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    AddTable,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    FlushChain,
    Operation,
    Transaction,
)
from podwire.state.nft_rules import Rule, SetRef, Verdict, VerdictMap

LAYOUTS = {
    "ip": TableLayout(
        family="ip", pod_ranges=("10.180.0.0/24",), node_addresses=("192.168.99.1",), log=LogSettings(group=5)
    ),
    "ip6": TableLayout(family="ip6", pod_ranges=("fd18::/64",), node_addresses=("fd99::1",)),
}


class Kernel:
    """Takes transactions as the kernel does: nothing twice, nothing that is not there, nothing that is in use."""

    def __init__(self, table: Table) -> None:
        self.chains: dict[str, Chain] = {chain.name: chain for chain in table.chains}
        self.rules: dict[str, list[Rule]] = {chain.name: list(chain.rules) for chain in table.chains}
        self.sets: dict[str, Set] = {each.name: each.without_elements() for each in table.sets}
        self.elements: dict[str, dict[bytes, Element]] = {each.name: dict(each.elements) for each in table.sets}

    def commit(self, transaction: Transaction) -> None:
        for operation in transaction.operations:
            if isinstance(operation, AddTable):
                continue
            if isinstance(operation, AddSet | DeleteSet | AddElements | DeleteElements):
                self.change_set(operation)
            else:
                self.change_chain(operation)
        assert self.used() <= self.chains.keys() | self.sets.keys()

    def change_set(self, operation: AddSet | DeleteSet | AddElements | DeleteElements) -> None:
        name = operation.set.name
        match operation:
            case AddSet():
                assert name not in self.sets
                self.sets[name] = operation.set.without_elements()
                self.elements[name] = {}
            case DeleteSet():
                assert name not in self.used()
                del self.sets[name], self.elements[name]
            case AddElements(elements=elements):
                assert not elements.keys() & self.elements[name].keys()
                self.elements[name].update(elements)
            case DeleteElements(elements=elements):
                for key, element in elements.items():
                    assert self.elements[name].pop(key) == element

    def change_chain(self, operation: Operation) -> None:
        match operation:
            case AddChain(chain=chain):
                assert chain.name not in self.chains
                self.chains[chain.name] = chain
                self.rules[chain.name] = []
            case FlushChain(name=name):
                self.rules[name] = []
            case AddRule(chain=name, rule=rule):
                self.rules[name].append(rule)
            case DeleteChain(name=name):
                assert name not in self.used(), name
                assert not self.rules[name]
                del self.chains[name], self.rules[name]
            case _:
                pytest.fail(f"not expected in a table that is in use: {operation}")

    def used(self) -> set[str]:
        """The chains and sets that something leads to."""
        found = {e.verdict.chain for own in self.elements.values() for e in own.values() if e.verdict is not None}
        for rules in self.rules.values():
            for rule in rules:
                for statement in rule.statements:
                    if isinstance(statement, VerdictMap):
                        found.add(statement.map)
                    elif isinstance(statement, Verdict):
                        found.add(statement.chain)
                    elif isinstance(getattr(statement, "right", None), SetRef):
                        found.add(statement.right.name)  # type: ignore[union-attr]
        return found - {""}

    def holds(self, table: Table) -> bool:
        chains = {chain.name: list(chain.rules) for chain in table.chains}
        return chains == self.rules and {each.name: dict(each.elements) for each in table.sets} == self.elements


def device(pod: str) -> str:
    return pod.replace("/", "-")[-15:]


def follow(contents: Contents, compiler: Compiler, delta: PolicyDelta) -> None:
    contents.follow(compiler.profiles, delta)
    for key, profiles in delta.pods.items():
        contents.place(key, device(key), profiles)
    contents.end(delta.ended)


def fresh(layout: TableLayout, compiler: Compiler) -> Contents:
    made = Contents(layout)
    follow(made, compiler, compiler.everything())
    return made


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("seed", range(12))
def test_transactions_lead_from_one_state_to_the_next(seed: int, family: str) -> None:
    chaos = Chaos(5000 + seed)
    layout = LAYOUTS[family]
    contents = Contents(layout)
    kernel = Kernel(contents.table())
    compiler = chaos.compilers["n1"]
    follow(contents, compiler, compiler.everything())
    kernel.commit(contents.commit())
    for _ in range(30):
        for _ in range(chaos.random.randint(1, 3)):
            chaos.change()
        follow(contents, compiler, compiler.flush())
        kernel.commit(contents.commit())
        assert kernel.holds(contents.table())
        assert contents.table().canonical() == fresh(layout, compiler).table().canonical()


def test_nothing_is_left_of_policies_that_are_gone() -> None:
    layout = LAYOUTS["ip"]
    for case in random.Random(1).sample(CASES, 10):
        compiler = compile_world(case.world, "n1")
        contents = fresh(layout, compiler)
        for policy in case.world.policies:
            compiler.set_policy(f"{policy.metadata.namespace}/{policy.metadata.name}", None)
        for cluster_policy in case.world.cluster_policies:
            compiler.set_cluster_policy(cluster_policy.metadata.name, None)
        follow(contents, compiler, compiler.flush())
        assert {chain.name for chain in contents.table().chains} == {chain.name for chain in layout.chains()}


def test_one_more_peer_costs_one_element() -> None:
    case = next(case for case in CASES if case.name == "a policy without rules isolates")
    policy = next(each for each in CASES if each.name.startswith("pods of the policy's")).world.policies[0]
    compiler = compile_world(case.world, "n1")
    compiler.set_policy("shop/db", policy)
    compiler.flush()
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    pod = next(pod for pod in case.world.pods if pod.metadata.namespace == "ops" and not pod.spec.host_network)
    meta = replace(pod.metadata, name="scan-2")
    compiler.set_pod(
        "ops/scan-2", replace(pod, metadata=meta, status=replace(pod.status, pod_ip="10.180.1.77", pod_ips=()))
    )
    follow(contents, compiler, compiler.flush())
    (operation,) = contents.commit().operations
    assert isinstance(operation, AddElements)
    assert len(operation.elements) == 1
    assert not contents.commit()


@pytest.mark.parametrize("guarded", [False, True])
def test_changed_ranges_change_only_set_elements(*, guarded: bool) -> None:
    layout = replace(LAYOUTS["ip"], encapsulation_ports=(4789,) if guarded else (), cluster_ranges=("10.180.0.0/23",))
    compiler = compile_world(CASES[-1].world, "n1")
    contents = fresh(layout, compiler)
    contents.commit()
    kernel = Kernel(contents.table())
    for ranges, addresses in (
        (("10.180.0.0/22",), ("192.168.99.1",)),
        (("10.180.0.0/24", "10.180.2.0/23"), ("192.168.99.1", "192.168.99.7")),
        ((), ()),
    ):
        layout = replace(layout, pod_ranges=ranges[:1], cluster_ranges=ranges, node_addresses=addresses)
        contents.move(layout)
        transaction = contents.commit()
        assert {type(operation) for operation in transaction.operations} <= {AddElements, DeleteElements}
        kernel.commit(transaction)
        assert kernel.holds(contents.table())
        assert contents.table().canonical() == fresh(layout, compiler).table().canonical()
    contents.move(layout)
    assert not contents.commit()
