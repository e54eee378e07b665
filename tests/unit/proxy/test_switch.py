"""Changes of mode, with data planes that only write down what is done to them."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.fakes.recording_modes import RecordingModes

from podwire.errors import KernelError, Unsupported
from podwire.proxy.servicemap import IpvsSettings, NodeFacts
from podwire.proxy.switch import Switch

FACTS = NodeFacts(name="n1")
MISSING = Unsupported("iptables", detail="iptables-restore is not installed")
BROKEN = KernelError("iptables-restore", "ip", 12, "out of memory")


@pytest.fixture
def modes() -> RecordingModes:
    return RecordingModes()


@pytest.fixture
def switch(modes: RecordingModes) -> Iterator[Switch]:
    created = Switch(modes, "nftables", FACTS)
    yield created
    created.close()


def test_the_first_load_takes_away_what_others_left(modes: RecordingModes, switch: Switch) -> None:
    assert modes.taken() == ["open nftables"], "nothing is written before there is something to write"
    switch.load({})
    switch.load({})
    assert modes.taken() == ["load nftables", "clear iptables", "load nftables"]
    assert switch.problem is None


def test_the_new_one_is_complete_before_the_old_one_goes(modes: RecordingModes, switch: Switch) -> None:
    switch.load({})
    modes.taken()
    switch.configured_mode = "iptables"
    assert switch.name == "nftables", "until the next load"
    assert switch.load({}) == ("load iptables",), "what had to be written"
    assert modes.taken() == [
        "open iptables",
        "load iptables",
        "remove nftables",
        "close nftables",
        "clear nftables",
    ]
    assert (switch.name, switch.problem) == ("iptables", None)


def test_missing_mode_leaves_the_old_mode_in_force(modes: RecordingModes, switch: Switch) -> None:
    switch.load({})
    modes.failures["open iptables"] = MISSING
    modes.taken()
    switch.configured_mode = "iptables"
    switch.load({})
    switch.load({})
    assert modes.taken() == ["load nftables", "load nftables"]
    assert (switch.name, switch.problem) == ("nftables", ("iptables", MISSING))
    switch.configured_mode = "nftables"
    switch.load({})
    assert switch.problem is None


def test_a_failed_load_is_cleared_away_and_tried_again(modes: RecordingModes, switch: Switch) -> None:
    switch.load({})
    modes.failures["load iptables"] = BROKEN
    modes.taken()
    switch.configured_mode = "iptables"
    switch.load({})
    assert modes.taken() == ["open iptables", "close iptables", "clear iptables", "load nftables"]
    assert (switch.name, switch.problem) == ("nftables", ("iptables", BROKEN))
    modes.failures.clear()
    switch.load({})
    assert (switch.name, switch.problem) == ("iptables", None)


def test_missing_mode_is_replaced_by_its_fallback_at_start(modes: RecordingModes) -> None:
    modes.failures["open iptables"] = MISSING
    switch = Switch(modes, "iptables", FACTS)
    switch.load({})
    assert (switch.name, switch.problem) == ("nftables", ("iptables", MISSING))
    switch.close()


def test_fallback_mode_can_be_configured(modes: RecordingModes) -> None:
    modes.failures["open userspace"] = MISSING
    for fallback, mode in (("iptables", "iptables"), ("nftables", "nftables"), ("none", "nftables")):
        switch = Switch(modes, "userspace", FACTS, fallback=fallback)
        assert (switch.name, switch.problem) == (mode, ("userspace", MISSING))
        switch.close()


def test_missing_mode_is_tried_again_after_a_settings_change(modes: RecordingModes, switch: Switch) -> None:
    switch.load({})
    modes.failures["open iptables"] = MISSING
    switch.configured_mode = "iptables"
    switch.load({})
    modes.failures.clear()
    switch.load({}, FACTS)
    assert switch.name == "nftables"
    switch.load({}, replace(FACTS, ipvs=IpvsSettings(scheduler="wlc")))
    assert (switch.name, switch.problem) == ("iptables", None)


def test_without_any_the_wanted_one_is_missing(modes: RecordingModes) -> None:
    modes.failures = {"open iptables": MISSING, "open nftables": Unsupported("nftables")}
    with pytest.raises(Unsupported, match="iptables-restore is not installed"):
        Switch(modes, "iptables", FACTS)


def test_the_descriptor_stays_the_same(modes: RecordingModes, switch: Switch) -> None:
    before = switch.fileno()
    switch.configured_mode = "iptables"
    switch.load({})
    assert switch.fileno() == before
