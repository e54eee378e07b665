"""How what a data plane holds follows the compiler: profiles that come, then pods, then profiles that end (pure)."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from podwire.policy.compile import Compiler, Delta, PodProfiles
from podwire.policy.profile import Profile, ProfileKey


class Contents(Protocol):
    """What a data plane holds of one family."""

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: Delta) -> None:
        """Takes over what became of profiles; the pods that have them are placed by :meth:`place`."""
        ...

    def place(self, pod: str, device: str, profiles: PodProfiles | None) -> None:
        """A pod has a device and profiles; None: it is gone."""
        ...

    def end(self, keys: Iterable[ProfileKey]) -> None:
        """Takes away profiles that no pod has any more."""
        ...


def follow(contents: Contents, compiler: Compiler, delta: Delta, devices: Mapping[str, str]) -> None:
    """Brings contents up to what a compiler says; ``devices`` has that of each pod of this node."""
    contents.follow(compiler.profiles, delta)
    for pod, profiles in delta.pods.items():
        device = devices.get(pod, "")
        contents.place(pod, device, profiles if device else None)
    contents.end(delta.ended)
