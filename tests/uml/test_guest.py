"""The guest kernel has the features of this tier; no other tier could test a feature that is missing here."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from podwire.kernel.features import Features

pytestmark = [
    pytest.mark.uml,
    pytest.mark.skipif(
        os.uname().nodename != "uml",
        reason="for the kernel of user-mode Linux: make uml, or scripts/uml pytest tests/uml",
    ),
]


@pytest.mark.parametrize("name", ["ip_vs", "ipip", "geneve", "ipvlan", "macvlan", "dummy", "vxlan", "tun", "conntrack"])
def test_the_uml_kernel_has_the_features(name: str) -> None:
    assert Features().probe(name), Features().probe(name)


def test_sctp_connects() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP) as client,
    ):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"hello")
            assert client.recv(100) == b"hello"


def test_modules_load_on_demand() -> None:
    subprocess.run(("ip", "link", "add", "slow0", "type", "dummy"), check=True)
    subprocess.run(("tc", "qdisc", "add", "dev", "slow0", "root", "netem", "delay", "10ms"), check=True)
    subprocess.run(("ip", "link", "delete", "slow0"), check=True)
    subprocess.run(("modprobe", "openvswitch"), check=True)
    assert "openvswitch" in Path("/proc/modules").read_text()


def test_vector_registers_are_kept_while_others_run(tmp_path: Path) -> None:
    """The ptrace(2) of ``tests/uml/registers.c`` leaves out writes; the program fails when one is missing."""
    source, program = Path(__file__).with_name("vector_registers.c"), tmp_path / "vector_registers"
    subprocess.run(("gcc", "-O1", "-pthread", "-o", program, source), check=True)
    assert subprocess.run((program,), check=False).returncode == 0


def test_files_written_in_the_guest_stay_in_the_guest() -> None:
    mounts = {splitline[1]: splitline[2] for splitline in map(str.split, Path("/proc/mounts").read_text().splitlines())}
    assert mounts["/"] == "overlay"
    assert mounts["/tmp"] == mounts["/run"] == "tmpfs"
    assert "hostfs" not in {kind for place, kind in mounts.items() if place != "/run/exchange"}


def test_the_guest_cannot_reach_the_machines_network() -> None:
    assert {name for _, name in socket.if_nameindex() if not name.startswith(("tunl", "sit"))} == {"lo"}
