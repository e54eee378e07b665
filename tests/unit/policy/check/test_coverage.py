"""Whether one rule is part of others, held against what the packets say."""

import msgspec
from tests.unit.policy.check.clusters import index, policy

from podwire.model.policy import IPBlock
from podwire.policy.check.coverage import blocks_within, covered_by
from podwire.policy.check.outline import RuleOutline

_SPEC = "podSelector: {}, ingress: [%s]"


def rules(*texts: str) -> tuple[RuleOutline, ...]:
    return index(policy("shop/p", _SPEC % ",".join(texts))).policies[0].rules


def covered(item: str, *remaining: str) -> bool:
    first, *rest = rules(item, *remaining)
    return bool(covered_by(first, rest))


def test_blocks() -> None:
    part, whole = IPBlock(cidr="10.1.0.0/16"), IPBlock(cidr="10.0.0.0/8")
    assert blocks_within(part, [whole])
    assert not blocks_within(whole, [part])
    assert not blocks_within(part, [msgspec.structs.replace(whole, excepted=("10.1.2.0/24",))])
    halves = [IPBlock(cidr="10.1.0.0/17"), IPBlock(cidr="10.1.128.0/17")]
    assert blocks_within(part, halves)
    assert not blocks_within(IPBlock(cidr="fd00::/8"), [whole])


def test_ports() -> None:
    assert covered("{ports: [{port: 80}]}", "{}")
    assert covered("{ports: [{port: 80}]}", "{ports: [{port: 1, endPort: 100}]}")
    assert covered("{ports: [{port: http}]}", "{ports: [{}]}")
    assert covered("{ports: [{port: http}]}", "{ports: [{port: http}, {port: 9}]}")
    assert not covered("{ports: [{port: http}]}", "{ports: [{port: 80}]}")
    assert not covered("{ports: [{port: http, protocol: UDP}]}", "{ports: [{}]}")
    assert not covered("{}", "{ports: [{}]}")


def test_peers() -> None:
    web = "podSelector: {matchLabels: {app: web}}"
    assert covered(f"{{from: [{{{web}}}]}}", "{from: [{podSelector: {}}]}")
    assert covered(f"{{from: [{{{web}}}]}}", "{}")
    assert not covered("{}", f"{{from: [{{{web}}}]}}")
    assert not covered("{from: [{podSelector: {}}]}", "{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}")


def test_several_rules_together() -> None:
    item = "{from: [{podSelector: {matchLabels: {a: b}}}, {ipBlock: {cidr: 10.1.0.0/16}}]}"
    pods, block = "{from: [{podSelector: {}}]}", "{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}"
    assert covered(item, pods, block)
    assert not covered(item, pods)
