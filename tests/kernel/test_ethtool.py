"""Checksum offload of a tunnel device, switched and read by the kernel."""

import os
import subprocess
from pathlib import Path

import pytest

from podwire.kernel import ethtool, netns
from podwire.state.offload import Offload

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_offload_of_a_tunnel_is_switched_off_and_on(tmp_path: Path) -> None:
    place = tmp_path / "node"
    netns.create(place)
    try:
        command = ("ip", "link", "add", "tunnel", "type", "vxlan", "id", "1", "dstport", "4789")
        subprocess.run(["nsenter", f"--net={place}", *command], check=True)
        names = ("tunnel", "missing")
        assert ethtool.read(place, names) == (Offload("tunnel", "on"),)
        off = Offload("tunnel", "off")
        assert ethtool.apply(place, names, (off, Offload("missing", "off"))) == ("offload tunnel tx off",)
        assert ethtool.read(place, names) == (off,)
        assert ethtool.apply(place, names, (off,)) == ()
        assert ethtool.apply(place, names, (Offload("tunnel", "on"),)) == ("offload tunnel tx on",)
    finally:
        netns.delete(place)


def test_old_kernels_are_known_by_their_release() -> None:
    assert [ethtool.is_older_than_safe(text) for text in ("5.6.19-300", "4.18.0", "5.7", "6.18.1", "?")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not ethtool.is_older_than_safe(ethtool.running_release())
