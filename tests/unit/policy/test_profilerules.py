"""Tables of ports made with what earlier calls learned, against tables that are made anew."""

import random
from typing import Any

import msgspec
import pytest

from podwire.model.policy import NetworkPolicy
from podwire.policy.compiled import CompiledPolicy
from podwire.policy.profilerules import ProfileRules, SinglePortRules
from podwire.policy.rules import network_policy
from podwire.policy.selectors import SelectorIndex


def compiled(choice: random.Random, name: str) -> CompiledPolicy:
    """A policy with ports that are single, all ports of a protocol, all ports, or now and then a range."""
    ports: list[dict[str, Any]] = []
    for _ in range(choice.randint(1, 3)):
        port: dict[str, Any] = {"port": choice.randint(1, 30), "protocol": choice.choice(("TCP", "TCP", "UDP", "SCTP"))}
        if choice.random() < 0.05:
            del port["port"]
        elif choice.random() < 0.02:
            port["endPort"] = port["port"] + choice.randint(1, 9)
        ports.append(port)
    rule = {} if choice.random() < 0.02 else {"ports": ports}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [rule]}
    annotations = {"podwire.io/log": choice.choice(("all", "none"))} if choice.random() < 0.1 else {}
    meta = {"name": name, "namespace": "shop", "annotations": annotations}
    return network_policy(msgspec.convert({"metadata": meta, "spec": spec}, NetworkPolicy), SelectorIndex(lambda _: {}))


@pytest.mark.parametrize("seed", range(20))
def test_remembered_tables_equal_tables_made_anew(seed: int) -> None:
    choice = random.Random(seed)
    rules, memory = ProfileRules("Ingress"), SinglePortRules()
    numbers: dict[str, tuple[int, ...]] = {}
    for _ in range(60):
        name = f"p{choice.randint(0, 40)}"
        if name in numbers and choice.random() < 0.5:
            rules.delete(rules.take_out(f"shop/{name}"))
            del numbers[name]
        elif name not in numbers:
            numbers[name] = rules.add(compiled(choice, name))
        if not numbers:
            continue
        own = frozenset(number for some in numbers.values() for number in some)
        remembered = rules.table(own, (), own_node=False, memory=memory)
        assert remembered == rules.table(own, (), own_node=False)
