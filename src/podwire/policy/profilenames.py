"""The names that a data plane gives to profiles, and which of them the kernel holds already (pure).

A profile keeps its name while the selectors of its pods change, so its name says nothing about these selectors. A
restarted agent knows only the current selectors. So a profile gets the name that the kernel's elements for its pods
lead to, and nothing is written anew. A name is not used while pods that have another profile now are led to it: a
packet of such a pod must not meet the new contents behind the old name.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import count

import msgspec

from podwire.policy.profile import ProfileKey


class ProfileName(msgspec.Struct, frozen=True, gc=False):
    """The name of a profile in the kernel."""

    direction: str
    token: str
    """Letters and digits."""

    @property
    def text(self) -> str:
        """The direction and the token, as names of chains and sets have them."""
        return f"{'in' if self.direction == 'Ingress' else 'out'}-{self.token}"


class KernelNames(msgspec.Struct, frozen=True):
    """The names in the kernel for the profiles of a node."""

    by_profile: Mapping[ProfileKey, ProfileName] = {}
    """The names that profiles have there."""
    reserved: frozenset[ProfileName] = frozenset()
    """The names that lead packets of pods with another profile, or of several profiles."""


NO_NAMES = KernelNames()


class ProfileNames:
    """The names of the profiles of one family."""

    def __init__(self, known: KernelNames) -> None:
        self._known = known
        self._names: dict[ProfileKey, ProfileName] = {}
        self._used: set[ProfileName] = set(known.reserved) | set(known.by_profile.values())
        self._dropped: set[ProfileName] = set()

    def take(self, key: ProfileKey) -> ProfileName:
        """The name of a profile; a new profile gets the name that it has in the kernel, or a new name."""
        name = self._names.get(key)
        if name is None:
            name = self._known.by_profile.get(key) or next(new for new in _new_names(key) if new not in self._used)
            self._names[key] = name
            self._used.add(name)
        return name

    def __getitem__(self, key: ProfileKey) -> ProfileName:
        return self._names[key]

    def get(self, key: ProfileKey) -> ProfileName | None:
        """The name of a profile; None: it has no name."""
        return self._names.get(key)

    def drop(self, key: ProfileKey) -> ProfileName:
        """Forgets a profile, and returns its name, which no profile gets until :meth:`settle`."""
        name = self._names.pop(key)
        self._dropped.add(name)
        return name

    def settle(self) -> None:
        """Reports that the kernel gets the contents as they are now: names of ended profiles are free again."""
        self._used -= self._dropped
        self._dropped.clear()


def _new_names(key: ProfileKey) -> Iterator[ProfileName]:
    text = msgspec.json.encode(key)
    for attempt in count():
        yield ProfileName(key.direction, hashlib.sha256(text + str(attempt or "").encode()).hexdigest()[:10])


def kernel_names(
    leads: Iterable[tuple[Hashable, ProfileName]],
    owners: Mapping[Hashable, ProfileKey | None],
    other_family: Mapping[ProfileKey, ProfileName],
) -> KernelNames:
    """The names that profiles keep.

    ``leads`` are the kernel's elements for pods, each with the profile that it leads to; ``owners`` has the elements
    that there should be, each with the profile of its pod (None: no policy applies). A profile to which no element of
    this family leads has its name in ``other_family``.
    """
    users: dict[ProfileName, Counter[ProfileKey | None]] = {}
    for element, name in leads:
        own = users.setdefault(name, Counter())
        if element in owners:
            own[owners[element]] += 1
    by_profile: dict[ProfileKey, ProfileName] = {}
    reserved: set[ProfileName] = set()
    for name, own in sorted(users.items(), key=lambda item: (-item[1].total(), item[0].token)):
        keys = tuple(own)
        if len(keys) == 1 and keys[0] is not None and keys[0] not in by_profile:
            by_profile[keys[0]] = name
        elif keys:
            reserved.add(name)
    unavailable = reserved.union(by_profile.values())
    by_profile |= {key: name for key, name in other_family.items() if key not in by_profile and name not in unavailable}
    return KernelNames(by_profile=by_profile, reserved=frozenset(reserved))
