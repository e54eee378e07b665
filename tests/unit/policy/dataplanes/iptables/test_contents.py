"""Contents that follow a changing cluster, by steps that a kernel would take."""

import random

import pytest
from msgspec.structs import replace
from tests.unit.policy.test_changes_in_place import COUNT, FIRST, Blocks, Selectors
from tests.unit.policy.test_compile import CASES, Chaos

from podwire.errors import KernelError
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.contents import Contents
from podwire.policy.dataplanes.iptables.fixedchains import FixedChains
from podwire.policy.dataplanes.iptables.layout import ChainLayout
from podwire.policy.dataplanes.iptables.numbers import MarkBits
from podwire.policy.dataplanes.iptables.podelements import KernelState, names_in_kernel
from podwire.policy.dataplanes.iptables.steps import Steps
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.settings import LogSettings
from podwire.state.ipset import IpSet, IpSetElement
from podwire.state.ipset_diff import Add, Create, Delete, Operation
from podwire.state.iptables import Rules

MARKS = MarkBits(0xFFF00000)
LAYOUTS = {
    "ip": ChainLayout(
        family="ip", marks=MARKS, pod_ranges=("10.180.0.0/24",), node_addresses=("192.168.99.1",),
        log=LogSettings(group=5), uplinks=("eth0",),
    ),
    "ip6": ChainLayout(family="ip6", marks=MARKS, pod_ranges=("fd18::/64",), node_addresses=("fd99::1",)),
}  # fmt: skip


class Kernel:
    """Takes steps as the kernel does: nothing twice, nothing that is not there, nothing that is in use."""

    def __init__(self) -> None:
        self.chains: dict[str, list[str]] = {"FORWARD": [], "INPUT": [], "POSTROUTING": []}
        self.sets: dict[str, IpSet] = {}
        self.elements: dict[str, dict[str, IpSetElement]] = {}
        self._words: set[str] = set()
        self._leads: dict[str, set[str]] = {}

    @property
    def saved(self) -> dict[str, dict[str, list[str]]]:
        return {names.TABLE: {chain: list(rules) for chain, rules in self.chains.items()}}

    def held(self) -> dict[str, IpSet]:
        return {name: replace(item, elements=dict(self.elements[name])) for name, item in self.sets.items()}

    def take(self, steps: Steps) -> None:
        for operation in steps.prepare:
            self.change_set(operation)
        self.restore(steps.enter)
        for operation in steps.lead:
            self.change_set(operation)
        self.restore(steps.leave)
        for name in steps.forget:
            assert name not in self.words()
            del self.sets[name], self.elements[name]

    def change_set(self, operation: Operation) -> None:
        match operation:
            case Create(declared):
                assert declared.name not in self.sets
                self.sets[declared.name], self.elements[declared.name] = replace(declared, elements={}), {}
            case Add(declared, key):
                self.elements[declared.name][key] = declared.elements[key]
            case Delete(declared, key):
                del self.elements[declared.name][key]
            case _:
                pytest.fail(f"not expected: {operation}")
        self.check_numbers()

    def restore(self, text: str) -> None:
        """Whole tables at once; afterwards every chain and set that a rule names is there."""
        self._words, self._leads = set(), {}
        for line in text.splitlines():
            verb, _, rest = line.partition(" ")
            chain, _, rule = rest.partition(" ")
            if verb.startswith(":"):
                self.chains[verb[1:]] = []
            elif verb == "-A":
                self.chains[chain].append(rule)
            elif verb == "-I":
                self.chains[chain].insert(0, rule)
            elif verb == "-X":
                assert not self.chains.pop(chain)
            else:
                assert verb in ("*mangle", "COMMIT"), line
        arguments = self.words()
        assert {word for word in arguments if word.startswith("PODWIRE-")} <= self.chains.keys()
        assert {word for word in arguments if word.startswith(("podwire4-", "podwire6-"))} <= self.sets.keys()
        self.check_numbers()

    def check_numbers(self) -> None:
        """Whatever number an element gives leads somewhere, once there are rules."""
        if not self.chains["FORWARD"]:
            return
        arguments = self.words()
        for name, elements in self.elements.items():
            if name not in arguments or "devices" in name:
                continue
            roots = {"egress": names.OUT, "sources": names.OUT, "ingress": names.IN}
            root = roots.get(name.partition("-")[2], names.TABLES)
            leads = self.leads(root)
            for element in elements.values():
                if element.mark is not None and (element.mark[0] > MARKS.of(2)[0] or root == names.TABLES):
                    assert f"0x{element.mark[0]:x}/0x{element.mark[1]:x}" in leads, name

    def leads(self, root: str) -> set[str]:
        """The marks that the rules of some chains ask for."""
        if root not in self._leads:
            results = (rule for chain, rules in self.chains.items() if chain.startswith(root) for rule in rules)
            self._leads[root] = {rule.split()[3] for rule in results if rule.startswith("-m mark --mark")}
        return self._leads[root]

    def words(self) -> set[str]:
        """What the rules say; both are kept until there are other rules."""
        if not self._words:
            self._words = {word for rules in self.chains.values() for rule in rules for word in rule.split()}
        return self._words

    def holds(self, contents: Contents) -> bool:
        want = contents.rules()
        ours = {name: tuple(rules) for name, rules in self.chains.items() if name.startswith("PODWIRE-")}
        return ours == want.chains and self.held() == want.sets


def device(pod: str) -> str:
    return pod.replace("/", "-")[-15:]


def follow(contents: Contents, compiler: Compiler, delta: PolicyDelta) -> None:
    contents.follow(compiler.profiles, delta)
    for key, profiles in delta.pods.items():
        contents.place(key, device(key), profiles)
    contents.end(delta.ended)


def fresh(layout: ChainLayout, compiler: Compiler, kernel: Kernel | None = None) -> Contents:
    chains: dict[str, Rules] = {name: tuple(rules) for name, rules in kernel.chains.items()} if kernel else {}
    contents = Contents(layout, chains, kernel.held() if kernel else {})
    follow(contents, compiler, compiler.everything())
    return contents


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("seed", range(8))
def test_steps_lead_from_one_state_to_the_next(seed: int, family: str) -> None:
    follow_changes(Chaos(6000 + seed), family)


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("seed", [*range(4), 30])
def test_steps_replace_many_ranges_by_many_other_ranges(seed: int, family: str) -> None:
    follow_changes(Blocks(seed), family)


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_selectors_come_and_go_between_restarts(seed: int, family: str) -> None:
    follow_changes(Selectors(seed), family)


def restarted(layout: ChainLayout, compiler: Compiler, kernel: Kernel) -> Contents:
    """The contents of an agent that knows what the kernel holds, and nothing of earlier changes."""
    chains: dict[str, Rules] = {name: tuple(rules) for name, rules in kernel.chains.items()}
    devices = {pod: device(pod) for pod in compiler.pods}
    known = names_in_kernel(layout, KernelState(chains, kernel.held()), compiler.pods, devices)
    contents = Contents(layout, chains, kernel.held(), known)
    follow(contents, compiler, compiler.everything())
    return contents


def follow_changes(chaos: Chaos, family: str) -> None:
    layout, kernel = LAYOUTS[family], Kernel()
    compiler = chaos.compilers["n1"]
    contents = fresh(layout, compiler)
    kernel.take(contents.loaded(kernel.saved, kernel.held()))
    assert kernel.holds(contents)
    for _ in range(20):
        for _ in range(chaos.random.randint(1, 3)):
            chaos.change()
        follow(contents, compiler, compiler.flush())
        kernel.take(contents.changed())
        assert kernel.holds(contents)
        compiler_after_restart = compile_world(chaos.world, "n1")
        again = restarted(layout, compiler_after_restart, kernel)
        assert not again.loaded(kernel.saved, kernel.held()), "a restart writes nothing"
        assert not contents.changed()
        if chaos.random.random() < 0.2:
            contents, compiler = again, compiler_after_restart
            chaos.compilers["n1"] = compiler


@pytest.mark.parametrize("seed", range(4))
def test_a_restart_into_another_world(seed: int) -> None:
    chaos = Chaos(7000 + seed)
    layout, kernel = LAYOUTS["ip"], Kernel()
    for _ in range(12):
        contents = fresh(layout, chaos.compilers["n1"], kernel)
        kernel.take(contents.loaded(kernel.saved, kernel.held()))
        assert kernel.holds(contents)
        for _ in range(8):
            chaos.change()
        chaos.compilers["n1"].flush()


def test_nothing_is_left_of_policies_that_are_gone() -> None:
    layout = LAYOUTS["ip"]
    for case in random.Random(1).sample(CASES, 10):
        compiler, kernel = compile_world(case.world, "n1"), Kernel()
        contents = fresh(layout, compiler)
        kernel.take(contents.loaded(kernel.saved, kernel.held()))
        for policy in case.world.policies:
            compiler.set_policy(f"{policy.metadata.namespace}/{policy.metadata.name}", None)
        for cluster_policy in case.world.cluster_policies:
            compiler.set_cluster_policy(cluster_policy.metadata.name, None)
        follow(contents, compiler, compiler.flush())
        kernel.take(contents.changed())
        roots = {names.OUT, names.IN, names.TABLES}
        assert contents.rules().chains.keys() == FixedChains(layout).chains(1).keys() | roots
        assert {word for word in kernel.sets if "-in-" in word or "-out-" in word} == set()


def test_differences_to_the_kernel_are_detected() -> None:
    contents, kernel = fresh(LAYOUTS["ip"], compile_world(CASES[0].world, "n1")), Kernel()
    kernel.take(contents.loaded(kernel.saved, kernel.held()))
    sizes = {name: len(elements) for name, elements in kernel.elements.items()}
    assert not contents.differs(kernel.saved, sizes | {"other": 5})
    assert contents.differs(kernel.saved, sizes | {"podwire4-own": 0})
    kernel.chains["FORWARD"].insert(0, "-j ACCEPT")
    assert contents.differs(kernel.saved, sizes)


def test_a_node_without_pods_has_rules_too() -> None:
    contents, kernel = fresh(LAYOUTS["ip"], Compiler("n1")), Kernel()
    kernel.take(contents.loaded(kernel.saved, kernel.held()))
    assert kernel.holds(contents)


def test_one_more_peer_costs_one_element() -> None:
    case = next(case for case in CASES if case.name == "a policy without rules isolates")
    policy = next(item for item in CASES if item.name.startswith("pods of the policy's")).world.policies[0]
    compiler = compile_world(case.world, "n1")
    compiler.set_policy("shop/db", policy)
    compiler.flush()
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.loaded({}, {})
    pod = next(pod for pod in case.world.pods if pod.metadata.namespace == "ops" and not pod.spec.host_network)
    meta = replace(pod.metadata, name="scan-2")
    compiler.set_pod(
        "ops/scan-2", replace(pod, metadata=meta, status=replace(pod.status, pod_ip="10.180.1.77", pod_ips=()))
    )
    follow(contents, compiler, compiler.flush())
    steps = contents.changed()
    (operation,) = steps.lead
    assert isinstance(operation, Add)
    assert not (steps.prepare or steps.enter or steps.leave or steps.forget)
    assert not contents.changed()


def test_more_devices_than_one_set_accepts() -> None:
    compiler, kernel = compile_world(CASES[0].world, "n1"), Kernel()
    contents = fresh(LAYOUTS["ip"], compiler)
    (profiles, *_) = compiler.pods.values()
    for number in range(150):
        contents.place(
            f"shop/many-{number}", f"veth{number}", replace(profiles, addresses=(f"10.180.0.{number + 50}",))
        )
    kernel.take(contents.loaded(kernel.saved, kernel.held()))
    sizes = [len(kernel.elements[f"podwire4-devices-{number}"]) for number in range(3)]
    assert max(sizes) <= 64
    assert sum(sizes) == 150 + len(compiler.pods)
    assert "-m set --match-set podwire4-devices-2 src,src -j DROP" in kernel.chains[names.STRANGER]
    for number in range(150):
        contents.place(f"shop/many-{number}", f"veth{number}", None)
    kernel.take(contents.changed())
    assert kernel.holds(contents)
    assert not fresh(LAYOUTS["ip"], compiler, kernel).loaded(kernel.saved, kernel.held()), "empty sets stay"


def test_new_device_set_is_created_when_the_last_is_full() -> None:
    compiler, kernel = compile_world(CASES[0].world, "n1"), Kernel()
    contents = fresh(LAYOUTS["ip"], compiler)
    kernel.take(contents.loaded(kernel.saved, kernel.held()))
    (profiles, *_) = compiler.pods.values()
    for number in range(70):
        contents.place(
            f"shop/many-{number}", f"veth{number}", replace(profiles, addresses=(f"10.180.0.{number + 50}",))
        )
        kernel.take(contents.changed())
        assert kernel.holds(contents)
    assert len(kernel.elements["podwire4-devices-1"]) == 70 + len(compiler.pods) - 64
    assert "-m set --match-set podwire4-devices-1 src,src -j DROP" in kernel.chains[names.STRANGER]


def test_pods_with_one_address_are_distinguished_by_device() -> None:
    compiler, kernel = compile_world(CASES[0].world, "n1"), Kernel()
    contents = fresh(LAYOUTS["ip"], compiler)
    profiles = next(iter(compiler.pods.values()))
    shared = replace(profiles, addresses=("10.180.0.77",))
    for pod in ("shop/a", "shop/b"):
        contents.place(pod, pod[-1], shared)
    kernel.take(contents.loaded(kernel.saved, kernel.held()))
    contents.place("shop/a", "a", None)
    kernel.take(contents.changed())
    assert "10.180.0.77" in kernel.elements["podwire4-sources"]
    assert "10.180.0.77,b" in kernel.elements["podwire4-egress"]
    assert "10.180.0.77,a" not in kernel.elements["podwire4-egress"]


def test_a_bridge_device_identifies_no_pod() -> None:
    layout, kernel = replace(LAYOUTS["ip"], bridges=("cni0",)), Kernel()
    compiler = compile_world(CASES[0].world, "n1")
    contents = Contents(layout, {}, {})
    profiles = next(iter(compiler.pods.values()))
    contents.place("shop/a", "cni0", replace(profiles, addresses=("10.180.0.77",)))
    contents.place("shop/b", "cni0", replace(profiles, addresses=("10.180.0.78",)))
    kernel.take(contents.loaded(kernel.saved, kernel.held()))
    assert kernel.elements["podwire4-devices-0"]["0.0.0.0/0,cni0"].mark == MARKS.of(4)
    assert len(kernel.elements["podwire4-own"]) == 0
    contents.place("shop/a", "cni0", None)
    kernel.take(contents.changed())
    assert "0.0.0.0/0,cni0" in kernel.elements["podwire4-devices-0"]


def test_too_few_numbers_are_an_error_that_says_so() -> None:
    case = next(item for item in CASES if item.name == "ports, protocols and ranges")
    with pytest.raises(KernelError, match=r"give policy\.marks more bits"):
        fresh(replace(LAYOUTS["ip"], marks=MarkBits(0b11)), compile_world(case.world, "n1"))


def test_rules_that_are_gone_are_remembered_for_the_log() -> None:
    case = next(item for item in CASES if item.name == "ports, protocols and ranges")
    compiler = compile_world(case.world, "n1")
    contents = fresh(LAYOUTS["ip"], compiler)
    rules = [chain for chain in contents.rules().chains if chain.startswith(names.RULE)]
    assert rules
    for policy in case.world.policies:
        compiler.set_policy(f"{policy.metadata.namespace}/{policy.metadata.name}", None)
    follow(contents, compiler, compiler.flush())
    for chain in rules:
        prefix = chain.removeprefix("PODWIRE-").lower()
        assert contents.meaning(chain) == contents.meaning(prefix) is not None
    assert contents.meaning("rule-unknown") is None


@pytest.mark.parametrize("guarded", [False, True])
def test_changed_ranges_change_only_set_elements(*, guarded: bool) -> None:
    layout = replace(LAYOUTS["ip"], encapsulation_ports=(4789,) if guarded else (), cluster_ranges=("10.180.0.0/23",))
    compiler, kernel = compile_world(CASES[-1].world, "n1"), Kernel()
    contents = fresh(layout, compiler)
    kernel.take(contents.loaded(kernel.saved, kernel.held()))
    for ranges, addresses in (
        (("10.180.0.0/22",), ("192.168.99.1",)),
        (("10.180.0.0/24", "10.180.2.0/23"), ("192.168.99.1", "192.168.99.7")),
        ((), ()),
    ):
        layout = replace(layout, pod_ranges=ranges[:1], cluster_ranges=ranges, node_addresses=addresses)
        contents.move(layout)
        steps = contents.changed()
        assert not (steps.prepare or steps.enter or steps.leave or steps.forget)
        kernel.take(steps)
        assert kernel.holds(contents)
        assert kernel.held() == fresh(layout, compiler, kernel).rules().sets
    contents.move(layout)
    assert not contents.changed()
