"""A session of load balancers in a VRF, in the kernel of user-mode Linux: others may lack VRF devices."""

import os
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path

import pytest

from podwire.bgp.birdconf import render
from podwire.bgp.configuration import BfdTimes, BgpConfiguration, RouteRule
from podwire.bgp.process import BIRD, BIRDCL
from podwire.kernel import netns
from podwire.loadbalancer.bgppeers import RouterPeer
from podwire.runtime.polling import wait_until

pytestmark = [
    pytest.mark.uml,
    pytest.mark.skipif(
        os.uname().nodename != "uml",
        reason="for the kernel of user-mode Linux: make uml, or scripts/uml pytest tests/uml",
    ),
]
_VIP = ip_network("198.18.0.1/32")
_ROUTER = """
router id 10.77.0.1;
protocol device { }
protocol bfd { interface "r0" { min rx interval 300 ms; min tx interval 300 ms; multiplier 3; }; }
protocol bgp node {
  local as 64600;
  neighbor range 10.77.0.0/24 port 1790 as 64512;
  direct; passive on; bfd on;
  ipv4 { import all; export none; };
}
"""


def _run(*arguments: str) -> str:
    return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A node whose device ``n0`` is in the VRF ``red``, and a router behind it."""
    node, router = tmp_path / "node", tmp_path / "router"
    for place in (node, router):
        netns.create(place)
    subprocess.run(["modprobe", "vrf"], check=True)
    with netns.inside(node):
        for command in (
            "link add red type vrf table 10",
            "link set red up",
            "link add n0 type veth peer name r0",
            f"link set r0 netns {router}",
            "link set n0 master red",
            "address add 10.77.0.2/24 dev n0",
            "link set n0 up",
        ):
            subprocess.run(["ip", *command.split()], check=True)
    with netns.inside(router):
        for command in ("address add 10.77.0.1/24 dev r0", "link set r0 up"):
            subprocess.run(["ip", *command.split()], check=True)
    yield node, router
    for place in (node, router):
        netns.delete(place)


def _bird(place: Path, folder: Path, text: str) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "bird.conf").write_text(text, encoding="utf-8")
    with netns.inside(place):
        command = [BIRD, "-f", "-c", str(folder / "bird.conf"), "-s", str(folder / "bird.ctl")]
        return subprocess.Popen(command, cwd=folder)


def test_a_node_announces_addresses_in_a_vrf(places: tuple[Path, Path], tmp_path: Path) -> None:
    node, router = places
    peer = RouterPeer(
        name="tor",
        address=ip_address("10.77.0.1"),
        my_as=64512,
        peer_as=64600,
        connect_retry_s=1,
        vrf="red",
        bfd=BfdTimes(),
    )
    rule = RouteRule(version=4, accept=True, network=_VIP, operator="equal")
    session = peer.session({4: ip_address("192.0.2.9")}, (rule,))
    assert session is not None
    config = BgpConfiguration(
        router_id=IPv4Address("192.0.2.9"),
        link="lo",
        service_networks=(_VIP,),
        sessions=(session,),
        log_file=f"{tmp_path}/bird.log",
    )
    programs = [_bird(router, tmp_path / "r", _ROUTER), _bird(node, tmp_path / "n", render(config))]
    try:

        def answer(folder: str, question: str) -> str:
            return _run(BIRDCL, "-s", f"{tmp_path}/{folder}/bird.ctl", *question.split())

        assert wait_until(lambda: "via 10.77.0.2" in answer("r", f"show route {_VIP}"), 60), answer(
            "n", "show protocols all"
        )
        assert wait_until(lambda: "Up" in answer("n", "show bfd sessions"), 60), answer("n", "show bfd sessions")
    finally:
        for program in programs:
            program.terminate()
            program.wait()
