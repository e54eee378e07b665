"""Changes of mode, with data planes that only write down what is done to them."""

from collections.abc import Iterator

import pytest
from tests.fakes.recording_modes import RecordingModes

from podwire.errors import KernelError, Unsupported
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.nodepods import PodProfiles
from podwire.policy.profile import ProfileKey
from podwire.policy.switch import Switch

LACKS = Unsupported("nf_tables", detail="the kernel has no nf_tables")
LACKS_BOTH = Unsupported("iptables", detail="iptables-restore is not installed")
BROKEN = KernelError("iptables-restore", "ip", 12, "out of memory")
EMPTY = Compiler("n1")


@pytest.fixture
def modes() -> RecordingModes:
    return RecordingModes()


@pytest.fixture
def switch(modes: RecordingModes) -> Iterator[Switch]:
    created = Switch(modes, "nftables", PolicyFacts())
    yield created
    created.close()


def test_the_first_load_clears_other_modes(modes: RecordingModes, switch: Switch) -> None:
    assert modes.taken() == ["open nftables"], "nothing is written before there is something to write"
    switch.load(EMPTY, {})
    switch.load(EMPTY, {})
    assert modes.taken() == ["load nftables", "clear iptables", "load nftables"]
    assert switch.problem is None


def test_the_new_plane_is_complete_before_the_old_is_removed(modes: RecordingModes, switch: Switch) -> None:
    switch.load(EMPTY, {})
    modes.taken()
    switch.configured_mode = "iptables"
    switch.load(EMPTY, {})
    assert modes.taken() == [
        "open iptables", "load iptables", "remove nftables", "close nftables", "clear nftables",
    ]  # fmt: skip
    assert (switch.name, switch.problem) == ("iptables", None)


@pytest.mark.parametrize("step", ["open", "load"])
def test_an_unavailable_mode_leaves_the_old_in_force(modes: RecordingModes, switch: Switch, step: str) -> None:
    switch.load(EMPTY, {})
    modes.failures[f"{step} iptables"] = BROKEN
    switch.configured_mode = "iptables"
    switch.load(EMPTY, {})
    assert (switch.name, switch.problem) == ("nftables", ("iptables", BROKEN))
    assert "load nftables" in modes.taken()[-3:]
    modes.failures.clear()
    switch.load(EMPTY, {})
    assert (switch.name, switch.problem) == ("iptables", None), "it is tried again"


def test_missing_features_are_not_tried_again(modes: RecordingModes) -> None:
    modes.failures["open nftables"] = LACKS
    switch = Switch(modes, "nftables", PolicyFacts())
    assert (switch.name, switch.problem) == ("iptables", ("nftables", LACKS))
    modes.failures.clear()
    switch.load(EMPTY, {})
    assert modes.taken() == ["open iptables", "load iptables", "clear nftables"]
    switch.close()


def test_auto_is_the_first_that_there_is(modes: RecordingModes, switch: Switch) -> None:
    modes.failures["open nftables"] = LACKS
    auto = Switch(modes, "auto", PolicyFacts())
    assert (auto.name, auto.problem) == ("iptables", None)
    auto.close()
    modes.failures.clear()
    switch.configured_mode = "iptables"
    switch.load(EMPTY, {})
    switch.configured_mode = "auto"
    switch.load(EMPTY, {})
    assert switch.name == "nftables"


def test_where_none_can_be_had_selected_pods_are_refused(modes: RecordingModes) -> None:
    modes.failures |= {"open nftables": LACKS, "open iptables": LACKS_BOTH}
    for expected in ("auto", "nftables", "iptables"):
        switch = Switch(modes, expected, PolicyFacts())
        failure = LACKS_BOTH if expected == "iptables" else LACKS
        assert (switch.name, switch.problem) == (
            "none",
            ("iptables" if expected == "iptables" else "nftables", failure),
        )
        assert not any(switch.load(EMPTY, {}))
        compiler = Compiler("n1")
        compiler.pods["shop/db"] = PodProfiles(addresses=(), ingress=ProfileKey(direction="Ingress"))
        with pytest.raises(Unsupported, match="policies that select shop/db"):
            switch.load(compiler, {"shop/db": "db"})
        switch.close()


def test_a_temporary_failure_of_the_only_mode_is_raised(modes: RecordingModes) -> None:
    modes.failures |= {"open nftables": BROKEN, "open iptables": LACKS_BOTH}
    with pytest.raises(KernelError, match="out of memory"):
        Switch(modes, "nftables", PolicyFacts())


def test_failed_cleanup_of_other_modes_is_retried(modes: RecordingModes, switch: Switch) -> None:
    modes.failures["clear iptables"] = BROKEN
    switch.load(EMPTY, {})
    modes.failures.clear()
    modes.taken()
    switch.load(EMPTY, {})
    assert modes.taken() == ["load nftables", "clear iptables"]
