"""The order in which a data plane's contents follow the compiler: new profiles, then pods, then unused profiles (pure).

A pod is moved to its new profiles between the two, so no element refers to a profile that does not exist.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from podwire.policy.compile import Compiler
from podwire.policy.nodepods import PodProfiles, PolicyDelta
from podwire.policy.profile import Profile, ProfileKey
from podwire.policy.tablechains import GroupChange


class Contents(Protocol):
    """The rules and sets that a data plane holds in one family."""

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: PolicyDelta) -> None:
        """Updates profiles; :meth:`place` updates the pods that have them."""
        ...

    def place(self, pod: str, device: str, profiles: PodProfiles | None) -> None:
        """Sets the device and the profiles of a pod; ``profiles`` None: the pod was deleted."""
        ...

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Removes profiles that no pod has any more."""
        ...


def profiles_left(placed: Mapping[str, tuple[str, PodProfiles]], delta: PolicyDelta) -> set[ProfileKey]:
    """The profiles that a pod leaves for another one; ``placed`` has the devices and profiles of pods before."""
    left_profiles: set[ProfileKey] = set()
    for pod, after in delta.pods.items():
        if after is not None and pod in placed:
            before = placed[pod][1]
            left_profiles.update(
                key for key in (before.ingress, before.egress) if key not in (None, after.ingress, after.egress)
            )
    return left_profiles


def group_changes(delta: PolicyDelta) -> Iterator[tuple[ProfileKey, GroupChange]]:
    """The profiles that changed in place, with their changes."""
    for key in delta.groups.keys() | delta.hosts.keys():
        yield (
            key,
            GroupChange(
                delta.groups.get(key, set()),
                delta.hosts.get(key, set()),
                delta.ranges.get(key, {}),
                delta.left_groups.get(key, set()),
            ),
        )


def follow(contents: Contents, compiler: Compiler, delta: PolicyDelta, devices: Mapping[str, str]) -> None:
    """Applies a change of a compiler to contents; ``devices`` has the device of each pod of this node."""
    contents.follow(compiler.profiles, delta)
    for pod, profiles in delta.pods.items():
        device = devices.get(pod, "")
        contents.place(pod, device, profiles if device else None)
    contents.end(delta.ended)
