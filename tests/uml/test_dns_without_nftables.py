"""On a kernel without nf_tables there are no rules for a node's own DNS server, and policies come into force."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.dns.nodelocal.runner import NodeLocalRules, remove_rules
from podwire.kernel import netns
from podwire.runtime.clock import SystemClock

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
    with netns.inside(path):
        yield path
    netns.delete(path)


def test_policies_do_not_wait_for_rules_that_cannot_be(place: Path) -> None:
    rules = NodeLocalRules(SystemClock(), lambda: ["10.96.0.10"], lambda: ["10.0.0.1"])
    for free in ({"pw1": ("10.244.0.2",)}, {}):
        rules.narrow(free)
        rules.widen(free)
    remove_rules()
    assert place.exists()
