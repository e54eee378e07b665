"""The text of BIRD's configuration, compared whole and read by BIRD itself where it is installed."""

import subprocess
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path

import pytest
from msgspec.structs import replace

from podwire.bgp.birdconf import render
from podwire.bgp.configuration import BgpConfiguration, BgpSession

BIRD = Path("/usr/sbin/bird")

NODE = BgpSession(
    name="node_10_89_0_12",
    local=ip_address("10.89.0.11"),
    local_as=64512,
    remote=ip_address("10.89.0.12"),
    remote_as=64512,
    on_link=True,
)
ROUTER = BgpSession(
    name="peer_10_89_0_1",
    local=ip_address("10.89.0.11"),
    local_as=64512,
    local_port=1179,
    remote=ip_address("10.89.0.1"),
    remote_as=4200000000,
    remote_port=2179,
    password="a secret",
    on_link=True,
    sends="pods",
    accepts=(ip_network("10.244.0.0/16"), ip_network("198.51.100.0/24")),
    communities=((64512, 100), (64512, 1, 7)),
    prepends=2,
    bfd=True,
)
NODE6 = BgpSession(
    name="node_fd89__12",
    local=ip_address("fd89::11"),
    local_as=64512,
    remote=ip_address("fd89::12"),
    remote_as=64512,
    sends="all",
    waits=True,
    cluster_id="224.0.0.1",
    add_paths=True,
)
CONFIG = BgpConfiguration(
    router_id=IPv4Address("10.89.0.11"),
    link="eth0",
    networks=(ip_network("10.244.1.0/24"),),
    sources=(ip_address("10.89.0.11"),),
    pod_networks=(ip_network("10.244.0.0/16"),),
    planned_next_hops=(ip_address("10.89.0.12"),),
    sessions=(NODE,),
    log_file="/run/test/bird.log",
)
BOTH = replace(
    CONFIG,
    networks=(ip_network("10.244.1.0/24"), ip_network("fd00:0:0:1::/64")),
    sources=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_networks=(ip_network("10.244.0.0/16"), ip_network("fd00::/48")),
    planned_next_hops=(ip_address("10.89.0.12"), ip_address("fd89::12")),
    sessions=(NODE6, NODE, ROUTER),
)

MESH = """\
# Written by podwire; changes are overwritten.
log "/run/test/bird.log" 1000000 "/run/test/bird.log.1" { info, remote, warning, error, auth, fatal, bug };
router id 10.89.0.11;
graceful restart wait 30;
protocol device { scan time 10; }
protocol direct { ipv4; interface "eth0"; }

protocol static own4 {
  ipv4;
  route 10.244.1.0/24 blackhole;
}
filter kernel_out4 {
  if source != RTS_BGP then reject;
  if bgp_next_hop ~ [ 10.89.0.12 ] && net ~ [ 10.244.0.0/16+ ] then reject;
  krt_prefsrc = 10.89.0.11;
  accept;
}
protocol kernel kernel4 {
  learn; scan time 10; metric 2113; merge paths on; graceful restart on;
  ipv4 { import where krt_source != 112 && krt_source != 113; export filter kernel_out4; };
}

filter in_node_10_89_0_12 {
  if net ~ [ 10.244.1.0/24+ ] then reject;
  accept;
}
filter out_node_10_89_0_12 {
  if source = RTS_STATIC then accept;
  reject;
}
protocol bgp node_10_89_0_12 {
  local 10.89.0.11 port 179 as 64512;
  neighbor 10.89.0.12 port 179 as 64512;
  multihop;
  graceful restart on; graceful restart time 120;
  connect delay time 1; connect retry time 2; error wait time 1, 10;
  ipv4 { import filter in_node_10_89_0_12; export filter out_node_10_89_0_12; gateway recursive; };
}
"""

EXTERNAL = """\
filter in_peer_10_89_0_1 {
  if net ~ [ 10.244.1.0/24+ ] then reject;
  if !(net ~ [ 10.244.0.0/16+, 198.51.100.0/24+ ]) then reject;
  accept;
}
filter out_peer_10_89_0_1 {
  if source = RTS_STATIC then { bgp_community.add((64512, 100)); bgp_large_community.add((64512, 1, 7)); \
bgp_path.prepend(64512); bgp_path.prepend(64512); accept; }
  if source = RTS_BGP && net ~ [ 10.244.0.0/16+ ] then { bgp_community.add((64512, 100)); \
bgp_large_community.add((64512, 1, 7)); bgp_path.prepend(64512); bgp_path.prepend(64512); accept; }
  reject;
}
protocol bgp peer_10_89_0_1 {
  local 10.89.0.11 port 1179 as 64512;
  neighbor 10.89.0.1 port 2179 as 4200000000;
  direct;
  graceful restart on; graceful restart time 120;
  connect delay time 1; connect retry time 2; error wait time 1, 10;
  password "a secret";
  allow local as 1;
  bfd on;
  ipv4 { import filter in_peer_10_89_0_1; export filter out_peer_10_89_0_1; };
}
"""

CLIENT = """\
protocol bgp node_fd89__12 {
  local fd89::11 port 179 as 64512;
  neighbor fd89::12 port 179 as 64512;
  multihop;
  graceful restart on; graceful restart time 120;
  connect delay time 1; connect retry time 2; error wait time 1, 10;
  passive on;
  rr client; rr cluster id 224.0.0.1;
  ipv6 { import filter in_node_fd89__12; export filter out_node_fd89__12; gateway recursive; next hop self ebgp; \
add paths on; };
}
"""


def test_a_session_of_the_mesh() -> None:
    assert render(CONFIG) == MESH


def test_an_external_peer_with_every_option() -> None:
    assert EXTERNAL in render(BOTH)


def test_a_reflector_sends_everything_to_its_clients() -> None:
    text = render(BOTH)
    assert CLIENT in text
    assert "  if source = RTS_BGP then accept;\n" in text


def test_each_family_has_its_own_routes_and_filters() -> None:
    text = render(BOTH)
    assert "  route fd00:0:0:1::/64 blackhole;\n" in text and "  krt_prefsrc = fd89::11;\n" in text
    assert "  if bgp_next_hop ~ [ fd89::12 ] && net ~ [ fd00::/48+ ] then reject;\n" in text
    assert 'protocol direct { ipv4; ipv6; interface "eth0"; }\n' in text


def test_sessions_stand_in_the_order_of_their_names() -> None:
    assert render(BOTH) == render(replace(BOTH, sessions=(ROUTER, NODE6, NODE)))


def test_sessions_of_a_family_without_networks_are_left_out() -> None:
    assert "fd89" not in render(replace(CONFIG, sessions=(NODE, NODE6)))


def test_networks_of_another_family_accept_nothing() -> None:
    only6 = replace(ROUTER, accepts=(ip_network("2001:db8::/32"),))
    assert "then reject;\n  reject;\n  accept;\n}" in render(replace(CONFIG, sessions=(only6,)))


@pytest.mark.skipif(not BIRD.exists(), reason="bird2 is not installed")
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        BOTH,
        replace(CONFIG, sessions=()),
        replace(BOTH, log_level="debug", planned_next_hops=()),
        replace(BOTH, networks=BOTH.networks[1:], log_level="warning"),
        replace(CONFIG, sessions=(replace(ROUTER, accepts=(ip_network("2001:db8::/32"),)),)),
    ],
    ids=["mesh", "both", "alone", "debug", "ipv6", "other family"],
)
def test_bird_accepts_the_text(config: BgpConfiguration, tmp_path: Path) -> None:
    file = tmp_path / "bird.conf"
    file.write_text(render(config))
    done = subprocess.run([BIRD, "-p", "-c", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
