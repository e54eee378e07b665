"""How far a node has come is told by a few bytes."""

import random

from podwire.model.meta import ObjectMeta
from podwire.model.policy import NetworkPolicy, NetworkPolicySpec
from podwire.policy.status.digest import Digest, History, same, version


def meta(uid: str = "u1", generation: int = 1, **annotations: str) -> ObjectMeta:
    return ObjectMeta(
        name="db",
        namespace="shop",
        uid=uid,
        generation=generation,
        annotations={f"podwire.io/{name}": value for name, value in annotations.items()},
    )


def test_annotations_of_podwire_do_not_change_the_digest() -> None:
    assert version(meta()) == version(meta(enforced='{"generation":1}'))
    rest = (meta(generation=2), meta(mode="audit"), meta(log="all"), meta("u2"))
    assert len({version(meta()), *map(version, rest)}) == 5
    plain = NetworkPolicy(metadata=meta())
    assert same(plain, NetworkPolicy(metadata=meta(enforced="{}")))
    assert not same(plain, NetworkPolicy(metadata=meta(mode="audit")))
    assert not same(plain, NetworkPolicy(metadata=meta(), spec=NetworkPolicySpec(policy_types=("Egress",))))


def test_digest_depends_on_objects_and_not_on_their_history() -> None:
    order = [(f"shop/{number}", meta(f"u{number}")) for number in range(20)]
    entry, other = Digest(), Digest()
    for key, item in order:
        assert entry.put(key, item)
    random.Random(1).shuffle(order)
    for key, item in order:
        other.put(key, meta("old"))
        other.put(key, item)
    assert str(entry) == str(other) != str(Digest())
    assert not entry.put("shop/1", meta("u1"))
    for key, _ in order:
        entry.put(key, None)
    assert str(entry) == str(Digest())


def test_lagging_node_has_all_unchanged_objects() -> None:
    history = History([("shop/a", meta("a")), ("shop/b", meta("b"))])
    node = Digest()
    for key in ("a", "b"):
        node.put(f"shop/{key}", meta(key))
    assert history.step(str(node)) == 0
    assert history.put("shop/b", meta("b", 2))
    assert history.put("shop/c", meta("c"))
    assert not history.put("shop/c", meta("c", enforced="x"))
    assert history.step(str(node)) == 0
    assert [history.changed(f"shop/{key}") for key in "abc"] == [0, 1, 2]
    node.put("shop/b", meta("b", 2))
    assert history.step(str(node)) == 1
    node.put("shop/c", meta("c"))
    assert history.step(str(node)) == 2
    assert history.between(0, 2) == ["shop/c", "shop/b"]
    assert history.between(0, 1) == ["shop/b"]
    assert history.between(1, 2) == ["shop/c"]
    node.put("shop/d", meta("d"))
    assert history.step(str(node)) == -1


def test_set_that_existed_before_is_reported_as_latest() -> None:
    history = History([("shop/a", meta("a"))])
    first = Digest()
    first.put("shop/a", meta("a"))
    history.put("shop/b", meta("b"))
    history.put("shop/b", None)
    assert history.step(str(first)) == 2


def test_history_is_bounded() -> None:
    history = History()
    for generation in range(5000):
        history.put("shop/a", meta("a", generation))
    assert history.step(str(Digest())) == -1
    node = Digest()
    node.put("shop/a", meta("a", 4999))
    assert history.step(str(node)) == 5000
