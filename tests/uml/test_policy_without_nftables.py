"""On a kernel without nf_tables, legacy iptables replaces nftables for policies and reports it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.errors import Unsupported
from podwire.kernel import netns
from podwire.kernel.iptables import legacy_tables
from podwire.kernel.kinds import read_values
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.dataplanes.iptables.dataplane import clear
from podwire.policy.dataplanes.iptables.tracing import OWNER_MARKS
from podwire.policy.modes import PolicyModes
from podwire.policy.switch import Switch

pytestmark = [
    pytest.mark.uml,
    pytest.mark.skipif(
        os.uname().nodename != "uml",
        reason="for the kernel of user-mode Linux: make uml, or scripts/uml pytest tests/uml",
    ),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "place"
    netns.create(path)
    yield path
    netns.delete(path)


@pytest.mark.parametrize("expected", ["nftables", "auto"])
def test_iptables_is_used_when_nftables_is_missing(place: Path, expected: str) -> None:
    switch = Switch(PolicyModes(place), expected, PolicyFacts(pod_ranges=("10.0.0.0/24",)))
    try:
        assert switch.name == "iptables"
        assert switch.problem is None or isinstance(switch.problem[1], Unsupported)
        assert (switch.problem is None) == (expected == "auto")
        switch.load(Compiler("n1"), {})
        assert switch.name == "iptables"
        assert read_values(place, OWNER_MARKS)
        assert "mangle" in legacy_tables(place)
        assert not any(switch.load(Compiler("n1"), {}))
        switch.remove()
        assert not read_values(place, OWNER_MARKS)
        assert not clear(place)
    finally:
        switch.close()
