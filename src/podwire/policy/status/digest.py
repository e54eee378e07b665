"""Which policies are in force where, told in a few bytes a node (pure).

What a node has in force of one kind is told by a *digest*: the exclusive or of a hash of each policy's :func:`version`.
Every reader of the API sees the changes of a kind in one order, so each passes through the same sets of policies, and
through the same digests. Who keeps a :class:`History` of them knows by a node's digest how far the node has come: each
policy that has not changed since is in force there. So a report costs the same with one policy and with ten thousand,
and a change costs each node one small write.

A version changes with what a policy says, not with what others, podwire among them, note on the object.
"""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from podwire.cluster.names import POLICY_LOG, POLICY_MODE
from podwire.model.meta import ObjectMeta
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy

AnyPolicy = NetworkPolicy | ClusterNetworkPolicy

_REMEMBERED = 4096
"""States of a kind that are remembered; a node that lags further behind has nothing in force that changed lately."""


def version(meta: ObjectMeta) -> str:
    """What a policy says, as far as its metadata tell."""
    asked = (meta.annotations.get(name, "") for name in (POLICY_MODE, POLICY_LOG))
    return "/".join((meta.uid, str(meta.generation), *asked))


def same(one: AnyPolicy, other: AnyPolicy) -> bool:
    """Whether two forms of a policy say the same."""
    return version(one.metadata) == version(other.metadata) and one.spec == other.spec


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Digest:
    """The digest of a set of policies, kept current at the cost of the change."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}
        self._value = 0

    def __str__(self) -> str:
        return f"{self._value:016x}"

    def __bool__(self) -> bool:
        return bool(self._versions)

    def put(self, key: str, meta: ObjectMeta | None) -> bool:
        """A policy is there, or is gone (None); whether that makes a difference."""
        now = version(meta) if meta is not None else ""
        before = self._versions.pop(key, "")
        if now:
            self._versions[key] = now
        if now == before:
            return False
        for text in filter(None, (before, now)):
            self._value ^= _hash(f"{key} {text}")
        return True


class History:
    """The sets of policies of one kind that there have been, by their digests, and when each policy changed."""

    def __init__(self, there: Iterable[tuple[str, ObjectMeta]] = ()) -> None:
        """``there`` are the policies at the beginning, by their keys."""
        self._digest = Digest()
        self._changed: dict[str, int] = {}
        for key, meta in there:
            self._digest.put(key, meta)
            self._changed[key] = 0
        self._step = 0
        self._steps: OrderedDict[str, int] = OrderedDict({str(self._digest): 0})

    def put(self, key: str, meta: ObjectMeta | None) -> bool:
        """A policy came, changed or went (None); whether it says something else now."""
        if not self._digest.put(key, meta):
            return False
        self._step += 1
        text = str(self._digest)
        self._steps.pop(text, None)
        self._steps[text] = self._step
        if len(self._steps) > _REMEMBERED:
            self._steps.popitem(last=False)
        self._changed.pop(key, None)
        if meta is not None:
            self._changed[key] = self._step  # as the last one: they are in the order of their steps
        return True

    def step(self, digest: str) -> int:
        """How far who reports a digest has come; -1: nobody knows."""
        return self._steps.get(digest, -1)

    def changed(self, key: str) -> int:
        """The step at which a policy came to say what it says."""
        return self._changed.get(key, 0)

    def between(self, after: int, until: int) -> list[str]:
        """The policies that changed last behind one step and not behind another, the latest first."""
        found = []
        for key in reversed(self._changed):
            if self._changed[key] <= after:
                break
            if self._changed[key] <= until:
                found.append(key)
        return found
