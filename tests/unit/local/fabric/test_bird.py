"""The configuration of the router's BIRD, checked by BIRD itself where it is installed."""

import subprocess
from pathlib import Path

import pytest

from podwire.local.fabric.bird import BIRD, command, render, router_child
from podwire.local.topology import Topology


def topology() -> Topology:
    return Topology(name="demo", index=1, segment_count=2, run="/r", state="/s")


def test_each_segment_and_family_has_its_sessions() -> None:
    text = render(topology(), ("10.244.0.0/16", "fd44::/48"))
    assert [line.split()[2] for line in text.splitlines() if line.startswith("protocol bgp")] == [
        "segment0v4", "segment1v4", "segment0v6", "segment1v6",
    ]  # fmt: skip
    assert "neighbor range 10.89.9.0/24 external;" in text and "neighbor range fd89:1:1::/64 external;" in text
    assert "ipv6 { import where net ~ [ fd44::/48+ ]; export all; };" in text


def test_only_families_of_pods_have_sessions() -> None:
    assert "v6" not in render(topology(), ("10.244.0.0/16",))


def test_the_program_reads_the_file_of_the_child() -> None:
    child = router_child(topology(), ("10.244.0.0/16",))
    (path,) = child.files
    assert child.netns == "/r/netns/router" and path in command(child.argv[1])


@pytest.mark.skipif(not Path(BIRD).exists(), reason=f"needs {BIRD} (Debian: bird2)")
@pytest.mark.parametrize("cidrs", [("10.244.0.0/16",), ("fd44::/48",), ("10.244.0.0/16", "fd44::/48")])
def test_bird_accepts_the_configuration(cidrs: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "bird.conf"
    path.write_text(render(topology(), cidrs))
    checked = subprocess.run((BIRD, "-p", "-c", path), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
