"""Contents that follow a changing cluster, by transactions that a kernel would take."""

import random

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.policy.test_changes_in_place import COUNT, FIRST, Blocks, Selectors
from tests.unit.policy.test_compile import CASES, Chaos

from podwire.model.pod import Pod
from podwire.model.policy import NetworkPolicy
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.dataplanes.nftables import rangechains
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.fixedchains import FixedChains
from podwire.policy.dataplanes.nftables.layout import TableLayout
from podwire.policy.dataplanes.nftables.placements import names_in_kernel
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.settings import LogSettings
from podwire.state.address import pack_ip
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
        self.sets: dict[str, Set] = {declared.name: declared.without_elements() for declared in table.sets}
        self.elements: dict[str, dict[bytes, Element]] = {
            declared.name: dict(declared.elements) for declared in table.sets
        }

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
        results = {e.verdict.chain for own in self.elements.values() for e in own.values() if e.verdict is not None}
        for rules in self.rules.values():
            for rule in rules:
                for statement in rule.statements:
                    if isinstance(statement, VerdictMap):
                        results.add(statement.map)
                    elif isinstance(statement, Verdict):
                        results.add(statement.chain)
                    elif isinstance(getattr(statement, "right", None), SetRef):
                        results.add(statement.right.name)  # type: ignore[union-attr]
        return results - {""}

    def holds(self, table: Table) -> bool:
        chains = {chain.name: list(chain.rules) for chain in table.chains}
        return (
            chains == self.rules
            and {declared.name: dict(declared.elements) for declared in table.sets} == self.elements
        )


def device(pod: str) -> str:
    return pod.replace("/", "-")[-15:]


def follow(contents: Contents, compiler: Compiler, delta: PolicyDelta) -> None:
    contents.follow(compiler.profiles, delta)
    for key, profiles in delta.pods.items():
        contents.place(key, device(key), profiles)
    contents.end(delta.ended)


def fresh(layout: TableLayout, compiler: Compiler, have: Table | None = None) -> Contents:
    """The contents after a restart, when the kernel has a table."""
    contents = Contents(layout, have)
    follow(contents, compiler, compiler.everything())
    return contents


def restarted(layout: TableLayout, compiler: Compiler, have: Table) -> Contents:
    """The contents of an agent that knows the current world and the kernel's table, and nothing of earlier changes."""
    devices = {pod: device(pod) for pod in compiler.pods}
    contents = Contents(layout, have, names_in_kernel(have, layout, compiler.pods, devices))
    follow(contents, compiler, compiler.everything())
    return contents


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("seed", range(12))
def test_transactions_lead_from_one_state_to_the_next(seed: int, family: str) -> None:
    follow_changes(Chaos(5000 + seed), family)


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("seed", range(6))
def test_transactions_replace_many_ranges_by_many_other_ranges(
    seed: int, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rangechains, "FEW", 4)
    follow_changes(Blocks(seed), family)


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_selectors_come_and_go_between_restarts(seed: int, family: str) -> None:
    follow_changes(Selectors(seed), family, restarts=True)


def follow_changes(chaos: Chaos, family: str, *, restarts: bool = False) -> None:
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
        again = compile_world(chaos.world, "n1")
        after_restart = restarted(layout, again, contents.table())
        assert contents.table().canonical() == after_restart.table().canonical()
        if restarts and chaos.random.random() < 0.3:
            chaos.compilers["n1"], compiler, contents = again, again, after_restart
            contents.commit()


def led(table: Table, addresses: set[str]) -> dict[tuple[str, bytes, str], str]:
    """The chain of ports that checks the packets of each element of a pod and each peer's address."""
    chains = {chain.name: chain for chain in table.chains}
    result = {}
    for name in ("ingress", "egress"):
        for key, element in table.set(name).elements.items():
            profile = element.verdict.chain if element.verdict is not None else ""
            for address in addresses if profile else ():
                packed = pack_ip(address)
                hosts, ranges = (
                    next(rule for rule in map(str, chains[profile].rules) if word in rule).split("@")[1]
                    for word in ("-hosts", "-ranges-")
                )
                last = chains[profile].rules[-1].statements[-1]
                way = table.set(hosts).elements.get(packed) or inside(table, ranges, packed)
                verdict = way.verdict if way is not None else last
                assert isinstance(verdict, Verdict)
                result[name, key, address] = verdict.chain
    return result


def inside(table: Table, name: str, packed: bytes) -> Element | None:
    """The element of the range that contains an address, also where a part of the ranges is jumped to."""
    ranges = table.set(name).elements.items()
    element = next((item for first, item in ranges if first <= packed <= (item.end or first)), None)
    if element is None or element.verdict is None or element.verdict.kind != "jump":
        return element
    return inside(table, f"{element.verdict.chain}-map", packed)


@pytest.mark.parametrize("kind", [Chaos, Blocks, Selectors])
@pytest.mark.parametrize("seed", range(10))
def test_chains_change_in_place_only_if_no_packet_leaves_them(
    seed: int, kind: type[Chaos], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rangechains, "FEW", 4)
    chaos = kind(8000 + seed)
    compiler = chaos.compilers["n1"]
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    for _ in range(25):
        before = snapshot(contents)
        for _ in range(chaos.random.randint(1, 3)):
            chaos.change()
        follow(contents, compiler, compiler.flush())
        contents.commit()
        after = snapshot(contents)
        addresses = {address for address in compiler.addresses() if ":" not in address} | {"203.0.113.9", "10.180.1.99"}
        now = led(after, addresses)
        old, new = meanings(before), meanings(after)
        changed = {name for name in old.keys() & new.keys() if old[name] != new[name]}
        for way, chain in led(before, addresses).items():
            assert chain not in changed or now.get(way, chain) == chain, way


def snapshot(contents: Contents) -> Table:
    table = contents.table()
    return replace(table, sets=tuple(replace(declared, elements=dict(declared.elements)) for declared in table.sets))


def meanings(table: Table) -> dict[str, str]:
    """The rules and maps of each chain of ports."""
    rules_and_maps = {}
    for chain in table.chains:
        if chain.name.startswith("ports-"):
            maps = [declared.elements for declared in table.sets if declared.name.startswith(f"{chain.name}-")]
            rules_and_maps[chain.name] = f"{chain} {maps}"
    return rules_and_maps


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
        assert {chain.name for chain in contents.table().chains} == {
            chain.name for chain in FixedChains(layout).chains()
        }


def test_one_more_peer_costs_one_element() -> None:
    case = next(case for case in CASES if case.name == "a policy without rules isolates")
    policy = next(item for item in CASES if item.name.startswith("pods of the policy's")).world.policies[0]
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
        assert contents.table().canonical() == fresh(layout, compiler, contents.table()).table().canonical()
    contents.move(layout)
    assert not contents.commit()


def grown(policies: int, pods: int = 20) -> Compiler:
    """A node with one pod, policies that all select it and allow all other pods, and these pods."""
    compiler = Compiler("n1")
    for number in range(pods + 1):
        meta = {"name": f"p{number}", "namespace": "shop", "labels": {"app": f"a{number % 2}"}}
        status = {"phase": "Running", "podIP": f"10.180.0.{number + 1}"}
        spec = {"nodeName": "n2" if number else "n1"}
        compiler.set_pod(f"shop/p{number}", msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Pod))
    for number in range(policies):
        compiler.set_policy(f"shop/{number}", port_policy(number))
    compiler.flush()
    return compiler


def port_policy(number: int, **peer: object) -> NetworkPolicy:
    rule = {"from": [{"podSelector": peer}], "ports": [{"port": 80 + 2 * number}]}
    metadata = {"name": f"{number}", "namespace": "shop"}
    return msgspec.convert({"metadata": metadata, "spec": {"podSelector": {}, "ingress": [rule]}}, NetworkPolicy)


def test_one_more_policy_costs_its_rule_and_one_element() -> None:
    compiler = grown(100)
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    compiler.set_policy("shop/more", port_policy(1000))
    follow(contents, compiler, compiler.flush())
    chain, rule, elements = contents.commit().operations
    assert isinstance(chain, AddChain) and chain.chain.comment == "shop/1000 ingress 0"
    assert isinstance(rule, AddRule) and rule.chain == chain.chain.name
    assert isinstance(elements, AddElements) and elements.set.name.endswith("-tcp") and len(elements.elements) == 1
    compiler.set_policy("shop/more", None)
    follow(contents, compiler, compiler.flush())
    assert {type(operation) for operation in contents.commit().operations} == {DeleteElements, FlushChain, DeleteChain}


def test_one_more_policy_for_some_peers_writes_these_peers() -> None:
    compiler = grown(3)
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    compiler.set_policy("shop/more", port_policy(1000, matchLabels={"app": "a1"}))
    follow(contents, compiler, compiler.flush())
    written = [operation for operation in contents.commit().operations if isinstance(operation, AddElements)]
    assert sorted(len(item.elements) for item in written) == [4, 10], "the ports of a new table, and the peers"


def test_table_that_a_peer_leaves_is_not_changed_in_place() -> None:
    """A packet of that peer may have reached the table just before, and must not find what others are allowed now."""
    compiler = grown(3)
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    kernel = Kernel(contents.table())
    compiler.set_policy("shop/more", port_policy(1000))
    compiler.set_pod("shop/p7", None)
    follow(contents, compiler, compiler.flush())
    transaction = contents.commit()
    new = {operation.chain.name for operation in transaction.operations if isinstance(operation, AddChain)}
    assert any(name.startswith("ports-") for name in new)
    kernel.commit(transaction)
    assert kernel.holds(contents.table())


def test_tables_stay_when_a_pod_leaves_their_profile() -> None:
    compiler = grown(3)
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    pod = {
        "metadata": {"name": "p0", "namespace": "ops"},
        "spec": {"nodeName": "n1"},
        "status": {"podIP": "10.180.0.1"},
    }
    compiler.set_pod("shop/p0", msgspec.convert(pod, Pod))
    compiler.set_pod("shop/p99", msgspec.convert({**pod, "metadata": {"name": "p99", "namespace": "shop"}}, Pod))
    compiler.set_policy("shop/more", port_policy(1000))
    delta = compiler.flush()
    assert delta.pods["shop/p0"] is not None and delta.pods["shop/p0"].ingress is None
    follow(contents, compiler, delta)
    names = {operation.chain.name for operation in contents.commit().operations if isinstance(operation, AddChain)}
    assert any(name.startswith("ports-") for name in names)


def test_more_policies_for_the_same_pods_keep_profile_chains() -> None:
    compiler = grown(3)
    contents = fresh(LAYOUTS["ip"], compiler)
    before = {chain.name for chain in contents.table().chains if chain.name.startswith("in-")}
    denials = contents.denials(compiler.profiles)
    for number in range(4, 20):
        compiler.set_policy(f"shop/{number}", port_policy(number))
        follow(contents, compiler, compiler.flush())
    assert {chain.name for chain in contents.table().chains if chain.name.startswith("in-")} == before
    assert contents.denials(compiler.profiles) == denials
    (denial,) = denials
    hit = contents.meaning(denial)
    assert hit is not None and len(hit.policies) == 19


def test_default_table_stays_when_a_peer_gets_its_own() -> None:
    """The peer would be denied, or allowed too much, until its own element is there."""
    compiler = grown(0)
    rule = {"ports": [{"port": 80}]}
    everyone = {"metadata": {"name": "a", "namespace": "shop"}, "spec": {"podSelector": {}, "ingress": [rule]}}
    compiler.set_policy("shop/a", msgspec.convert(everyone, NetworkPolicy))
    compiler.set_policy("shop/b", port_policy(50, matchLabels={"app": "none"}))
    compiler.flush()
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    before = {chain.name: str(chain) for chain in contents.table().chains if chain.name.startswith("ports-")}
    sets = {
        declared.name: dict(declared.elements)
        for declared in contents.table().sets
        if declared.name.startswith("ports-")
    }
    subset = {"podSelector": {"matchLabels": {"app": "a1"}}}
    everyone["spec"] = {"podSelector": {}, "ingress": [{**rule, "from": [subset]}, {"ports": [{"port": 90}]}]}
    compiler.set_policy("shop/a", msgspec.convert(everyone, NetworkPolicy))
    follow(contents, compiler, compiler.flush())
    now = contents.table()
    assert all(str(chain) == before.get(chain.name, str(chain)) for chain in now.chains)
    assert all(dict(declared.elements) == sets.get(declared.name, dict(declared.elements)) for declared in now.sets)
