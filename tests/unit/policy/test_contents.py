"""In which order contents hear of a change, and of which pods."""

from collections.abc import Iterable, Mapping

from tests.unit.policy.test_compile import CASES

from podwire.policy.compile import compile_world
from podwire.policy.contents import follow
from podwire.policy.nodepods import PodProfiles, PolicyDelta
from podwire.policy.profile import Profile, ProfileKey


class Contents:
    """What was said, in its order."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def follow(self, profiles: Mapping[ProfileKey, Profile], delta: PolicyDelta) -> None:
        self.said += [("made", delta.new_profiles <= profiles.keys())]

    def place(self, pod: str, device: str, profiles: PodProfiles | None) -> None:
        self.said.append((pod, device, profiles))

    def end(self, keys: Iterable[ProfileKey]) -> None:
        self.said.append(("ended", set(keys)))


def test_profiles_are_added_before_their_pods_and_removed_after() -> None:
    compiler = compile_world(CASES[0].world, "n1")
    first, *rest = compiler.pods
    contents = Contents()
    follow(contents, compiler, compiler.everything(), {first: "veth1"})
    assert contents.said == [
        ("made", True),
        (first, "veth1", compiler.pods[first]),
        *((pod, "", None) for pod in rest),
        ("ended", set()),
    ], "a pod without a device is none of this node's"


def test_everything_has_all_pods_and_profiles() -> None:
    compiler = compile_world(CASES[0].world, "n1")
    delta = compiler.everything()
    assert delta.pods == dict(compiler.pods)
    assert (delta.new_profiles, delta.ended) == (set(compiler.profiles), set())
