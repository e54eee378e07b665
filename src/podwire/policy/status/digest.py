"""A digest of the policies in force on a node, a few bytes for any number of policies (pure).

The *digest* of one kind is the exclusive or of a hash of each policy's :func:`version`. All readers of the API see the
changes of a kind in the same order, so all pass through the same sets of policies and the same digests. A reader that
keeps a :class:`History` of digests knows from a node's digest which step the node has reached: each policy that has
not changed since is in force there. So a report has the same size with one policy and with ten thousand, and a change
costs each node one small write.

A version changes with the spec and the annotations that configure a policy, not with annotations that controllers,
podwire among them, write on the object.
"""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from podwire.cluster.names import POLICY_LOG, POLICY_MODE
from podwire.model.meta import ObjectMeta
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy

AnyPolicy = NetworkPolicy | ClusterNetworkPolicy

_REMEMBERED = 4096
"""Digests of a kind that are remembered; a node that lags further behind counts as not up to date."""


def version(meta: ObjectMeta) -> str:
    """A text that changes when the policy changes: uid, generation and configuring annotations."""
    settings = (meta.annotations.get(name, "") for name in (POLICY_MODE, POLICY_LOG))
    return "/".join((meta.uid, str(meta.generation), *settings))


def same(policy: AnyPolicy, other: AnyPolicy) -> bool:
    """Whether two versions of a policy have the same effect."""
    return version(policy.metadata) == version(other.metadata) and policy.spec == other.spec


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
        """Adds or replaces a policy (None: removes it); returns whether the digest changed."""
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
    """The past sets of policies of one kind by their digests, and the step at which each policy last changed."""

    def __init__(self, there: Iterable[tuple[str, ObjectMeta]] = ()) -> None:
        """``there`` are the policies at the start, with their keys."""
        self._digest = Digest()
        self._changed: dict[str, int] = {}
        for key, meta in there:
            self._digest.put(key, meta)
            self._changed[key] = 0
        self._step = 0
        self._steps: OrderedDict[str, int] = OrderedDict({str(self._digest): 0})

    def put(self, key: str, meta: ObjectMeta | None) -> bool:
        """Takes over a policy (None: it was deleted); returns whether its version changed."""
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
            self._changed[key] = self._step  # becomes the last entry: entries are in the order of their steps
        return True

    def step(self, digest: str) -> int:
        """The step of a reported digest; -1: unknown digest."""
        return self._steps.get(digest, -1)

    def changed(self, key: str) -> int:
        """The step of a policy's last change."""
        return self._changed.get(key, 0)

    def between(self, after: int, until: int) -> list[str]:
        """The policies whose last change is after one step and not after another, the latest first."""
        keys = []
        for key in reversed(self._changed):
            if self._changed[key] <= after:
                break
            if self._changed[key] <= until:
                keys.append(key)
        return keys
