"""The choice of the router's program."""

from pathlib import Path

import pytest

from podwire.local.fabric.bird import BIRD
from podwire.local.fabric.router import NAMES, router_children
from podwire.local.topology import Topology


def topology(segments: int) -> Topology:
    return Topology(name="demo", index=1, segment_count=segments, run="/r", state="/s")


def test_one_segment_has_no_router() -> None:
    assert router_children(topology(1), ("10.244.0.0/16",), "frr") == ()
    assert router_children(topology(1), ("10.244.0.0/16",), "bird") == ()


@pytest.mark.skipif(not Path(BIRD).exists(), reason=f"needs {BIRD} (Debian: bird2)")
def test_processes_of_all_programs_have_different_names() -> None:
    frr = [child.name for child in router_children(topology(2), ("10.244.0.0/16",), "frr")]
    bird = [child.name for child in router_children(topology(2), ("10.244.0.0/16",), "bird")]
    assert frr == ["zebra", "bgpd"] and sorted(frr + bird) == sorted(NAMES)
