"""Packets that are evaluated while transactions are committed get a verdict of before or of after the change.

Such a packet sees the rules of before a transaction, and at each look-up the elements of the moment. ``SEED=n`` begins
the random clusters with another seed than 0, ``SEEDS=n`` tries so many.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import pytest
from tests.unit.policy.dataplanes.nftables.test_contents import LAYOUTS, Kernel, follow, fresh, grown
from tests.unit.policy.test_changes_in_place import COUNT, FIRST, Blocks, Selectors
from tests.unit.policy.test_compile import Chaos

from podwire.model.policy import NetworkPolicy
from podwire.policy.dataplanes.nftables import rangechains
from podwire.policy.dataplanes.nftables.steps import steps
from podwire.state.address import pack_ip
from podwire.state.nft import Element
from podwire.state.nft_rules import Field, Match, Rule, Verdict, VerdictMap

Rules = Mapping[str, Sequence[Rule]]
Elements = Mapping[str, Mapping[bytes, Element]]
Packet = tuple[str, bytes, bytes, str, int]
"""The map of pods in which the packet is looked up, its key there, the peer's address, protocol and port."""
PORTS = (("tcp", 8080), ("tcp", 5432), ("udp", 5432), ("sctp", 1))


class Evaluation:
    """One packet's way through rules; from the look-up with the number ``switch`` on it finds the new elements."""

    def __init__(self, rules: Rules, old: Elements, new: Elements, switch: int) -> None:
        self._rules = rules
        self._old = old
        self._new = new
        self._switch = switch
        self.lookups = 0

    def verdict(self, packet: Packet) -> str:
        name, key, *_ = packet
        found = self._find(name, key)
        if found is None:
            return "unknown pod"
        return (self._chain(found.chain, packet) if found.chain else found.kind) or "accept"

    def _find(self, name: str, key: bytes) -> Verdict | None:
        elements = self._old if self.lookups < self._switch else self._new
        self.lookups += 1
        own = elements.get(name, {})
        element = own.get(key) or next((item for first, item in own.items() if first <= key <= item.end), None)
        return element.verdict if element is not None else None

    def _chain(self, name: str, packet: Packet) -> str | None:
        for rule in self._rules.get(name, ()):
            verdict = self._rule(rule, packet)
            if verdict is None:
                continue
            if not verdict.chain:
                return verdict.kind
            result = self._chain(verdict.chain, packet)
            if result is not None or verdict.kind == "goto":
                return result
        return None

    def _rule(self, rule: Rule, packet: Packet) -> Verdict | None:
        _, _, peer, protocol, port = packet
        for statement in rule.statements:
            if isinstance(statement, VerdictMap):
                assert isinstance(statement.key, Field)
                word, _, what = statement.key.name.partition(" ")
                if what == "dport":
                    return self._find(statement.map, port.to_bytes(2, "big")) if word == protocol else None
                return self._find(statement.map, peer)
            if isinstance(statement, Verdict):
                return statement
            if isinstance(statement, Match) and str(statement) != f"meta l4proto {protocol}":
                return None
        return None


def moment(kernel: Kernel) -> tuple[Rules, Elements]:
    rules = {name: tuple(own) for name, own in kernel.rules.items()}
    return rules, {name: dict(own) for name, own in kernel.elements.items()}


def wrong(packet: Packet, moments: Sequence[tuple[Rules, Elements]]) -> list[tuple[int, int, str]]:
    """The transactions and look-ups with a verdict of neither before nor after the change."""
    (first_rules, first), (last_rules, last) = moments[0], moments[-1]
    known = {
        Evaluation(first_rules, first, first, 0).verdict(packet),
        Evaluation(last_rules, last, last, 0).verdict(packet),
    }
    results = []
    for number, ((rules, old), (_, new)) in enumerate(pairwise(moments)):
        switch, lookups = 0, 1
        while switch <= lookups:
            evaluation = Evaluation(rules, old, new, switch)
            verdict = evaluation.verdict(packet)
            if verdict not in known:
                results.append((number, switch, verdict))
            switch, lookups = switch + 1, evaluation.lookups
    return results


@pytest.mark.parametrize("few", [1, 64])
@pytest.mark.parametrize("kind", [Chaos, Blocks, Selectors])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(1, COUNT // 8)))
def test_packets_between_two_transactions(
    seed: int, kind: type[Chaos], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rangechains, "FEW", few)
    chaos = kind(9000 + seed)
    compiler = chaos.compilers["n1"]
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    kernel = Kernel(contents.table())
    for _ in range(20):
        for _ in range(chaos.random.randint(1, 3)):
            chaos.change()
        follow(contents, compiler, compiler.flush())
        moments = [moment(kernel)]
        for step in steps(contents.commit(), end_accepts=contents.end_accepts):
            kernel.commit(step)
            moments.append(moment(kernel))
        for packet in packets(chaos, moments) if len(moments) > 1 else ():
            assert not wrong(packet, moments), packet


def packets(chaos: Chaos, moments: Sequence[tuple[Rules, Elements]]) -> list[Packet]:
    """Packets of pods that are there before and after, with peers at the borders of ranges and others."""
    (_, first), (_, last) = moments[0], moments[-1]
    pods = [(name, key) for name in ("ingress", "egress") for key in first[name].keys() & last[name].keys()]
    peers = {pack_ip(address) for address in chaos.compilers["n1"].addresses() if ":" not in address}
    for elements in (first, last):
        for name, own in elements.items():
            if "-ranges-" in name or name.startswith("ranges-"):
                peers.update(address for key, element in own.items() for address in (key, element.end))
    chosen = [chaos.random.choice(sorted(peers)) for _ in range(4)] + [pack_ip("203.0.113.9")]
    return [(name, key, peer, *chaos.random.choice(PORTS)) for name, key in sorted(pods) for peer in chosen]


def test_range_that_some_addresses_leave_keeps_its_table() -> None:
    """Half of a block gets a policy of its own, which allows the port of a policy that goes in the same change."""
    compiler = grown(0)
    for name, port in (("a", 1000), ("b", 1001)):
        compiler.set_policy(f"shop/{name}", of_block(name, "203.0.113.0/24", port))
    compiler.flush()
    contents = fresh(LAYOUTS["ip"], compiler)
    contents.commit()
    kernel = Kernel(contents.table())
    compiler.set_policy("shop/c", of_block("c", "203.0.113.0/25", 1001))
    compiler.set_policy("shop/b", None)
    follow(contents, compiler, compiler.flush())
    moments = [moment(kernel)]
    for step in steps(contents.commit(), end_accepts=contents.end_accepts):
        kernel.commit(step)
        moments.append(moment(kernel))
    (key,) = kernel.elements["ingress"]
    for address in ("203.0.113.1", "203.0.113.200"):
        assert not wrong(("ingress", key, pack_ip(address), "tcp", 1001), moments)


def of_block(name: str, cidr: str, port: int) -> NetworkPolicy:
    rule = {"from": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": port}]}
    spec = {"podSelector": {}, "ingress": [rule]}
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}, NetworkPolicy)
