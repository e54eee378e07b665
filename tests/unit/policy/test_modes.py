import pytest

from podwire.errors import ConfigError, KernelError
from podwire.policy import modes
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.modes import PolicyModes, clear_all, open_dataplane
from podwire.policy.registry import DATAPLANES
from podwire.runtime.registry import Registry as Names


class Plane:
    """A data plane of this module."""

    def __init__(self, facts: PolicyFacts, netns: object = None) -> None:
        self.facts, self.netns = facts, netns


cleared: list[object] = []


def clear(netns: object = None) -> bool:
    cleared.append(netns)
    if netns == "broken":
        raise KernelError("delete", "table", 16)
    return True


@pytest.fixture
def borrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    planes = {"mine": f"{__name__}:Plane", "other": f"{__name__}:Plane"}
    monkeypatch.setattr(modes, "DATAPLANES", Names("data plane", "policy.mode", planes))
    cleared.clear()


def test_a_data_plane_is_opened_and_cleared_by_its_name(borrowed: None) -> None:
    created = open_dataplane("mine", PolicyFacts(marks=0xFF), "/run/netns/x")
    assert isinstance(created, Plane)
    assert (created.facts.marks, created.netns) == (0xFF, "/run/netns/x")
    assert PolicyModes("x").names() == ("mine", "other")
    assert PolicyModes("x").clear("mine")
    assert cleared == ["x"]


def test_all_modes_are_cleared_despite_one_failure(borrowed: None) -> None:
    assert clear_all("x")
    with pytest.raises(KernelError):
        clear_all("broken")
    assert cleared == ["x", "x", "broken", "broken"]


def test_every_mode_is_a_registry_name() -> None:
    assert list(DATAPLANES) == ["nftables", "iptables"]
    with pytest.raises(ConfigError, match="expected one of nftables, iptables"):
        open_dataplane("ipfw", PolicyFacts())


def test_unavailable_mode_is_reported_with_what_happens_instead() -> None:
    failure = KernelError("open", "nftables", 93, "protocol not supported")
    assert modes.unavailable("nftables", None, str) == ""
    assert modes.unavailable("iptables", ("nftables", failure), lambda _: "the kernel has no nftables") == (
        "policy.mode nftables: the kernel has no nftables; iptables is used"
    )
    assert modes.unavailable("none", ("nftables", failure), lambda _: "") == (
        "policy: protocol not supported; pods that policies select are refused"
    )
