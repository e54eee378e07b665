"""The pods of a selector are looked at again only when a policy may give them other profiles."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod, PodSpec, PodStatus
from podwire.model.policy import NetworkPolicy
from podwire.policy.compile import Compiler
from podwire.policy.nodepods import NodePods, PolicyDelta
from podwire.policy.profile import ProfileKey

WEB: dict[str, Any] = {"matchLabels": {"app": "web"}}
NUMBERED = {"ports": [{"port": 80}]}
NAMED = {"ports": [{"port": "http"}]}


def policy(selector: dict[str, Any] = WEB, **spec: Any) -> NetworkPolicy:
    return msgspec.convert({"metadata": {}, "spec": {"podSelector": selector, **spec}}, NetworkPolicy)


def named(name: str, spec: NetworkPolicy) -> NetworkPolicy:
    """The same policy under another name."""
    return msgspec.structs.replace(spec, metadata=ObjectMeta(name=name, namespace="shop"))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The pods whose profiles were chosen again, since the list was cleared."""
    keys: list[str] = []
    settle = NodePods.settle

    def noted(self: NodePods, pods: Iterable[str], delta: PolicyDelta) -> dict[ProfileKey, tuple[str, ...]]:
        keys.extend(pods)
        return settle(self, pods, delta)

    monkeypatch.setattr(NodePods, "settle", noted)
    yield keys


@pytest.fixture
def compiler(chosen: list[str]) -> Compiler:
    """A node with a pod that a policy for ingress selects."""
    created = Compiler("n1")
    status = PodStatus(phase="Running", pod_ip="10.0.0.1")
    meta = ObjectMeta(name="web", namespace="shop", labels={"app": "web"})
    created.set_pod("shop/web", Pod(metadata=meta, spec=PodSpec(node_name="n1"), status=status))
    created.set_policy("shop/first", named("first", policy(ingress=[NUMBERED])))
    created.flush()
    chosen.clear()
    return created


@pytest.mark.parametrize(
    ("added", "again"),
    [
        (policy(ingress=[NUMBERED]), False),
        (policy(), False),
        (policy(policyTypes=["Egress"]), True),
        (policy(ingress=[NAMED]), True),
        (policy({}, ingress=[NUMBERED]), True),
        (policy({"matchLabels": {"app": "db"}}), False),
    ],
    ids=["the same", "no rules", "another direction", "a named port", "another selector", "other pods"],
)
def test_the_first_policy_with_an_effect_chooses_profiles(
    compiler: Compiler, chosen: list[str], added: NetworkPolicy, again: bool
) -> None:
    compiler.set_policy("shop/second", named("second", added))
    compiler.flush()
    assert chosen == ["shop/web"] * again
    chosen.clear()
    compiler.set_policy("shop/third", named("third", added))
    compiler.flush()
    compiler.set_policy("shop/third", None)
    compiler.flush()
    assert not chosen, "the second policy has the same effect"
    compiler.set_policy("shop/second", None)
    compiler.flush()
    assert chosen == ["shop/web"] * again
