"""The text of BIRD's configuration, compared whole and read by BIRD itself where it is installed."""

import subprocess
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path

import pytest
from msgspec.structs import replace

from podwire.bgp.birdconf import SessionTexts, render
from podwire.bgp.configuration import BgpConfiguration, BgpSession, RouteRule, SecondFamily

BIRD = Path("/usr/sbin/bird")

NODE = BgpSession(
    name="node_10_89_0_12",
    peer="Node node-2",
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
    planned_next_hops=("10.89.0.12",),
    sessions=(NODE,),
    log_file="/run/test/bird.log",
)
BOTH = replace(
    CONFIG,
    networks=(ip_network("10.244.1.0/24"), ip_network("fd00:0:0:1::/64")),
    sources=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_networks=(ip_network("10.244.0.0/16"), ip_network("fd00::/48")),
    planned_next_hops=("10.89.0.12", "fd89::12"),
    sessions=(NODE6, NODE, ROUTER),
)

MESH = """\
# Written by podwire; changes are overwritten.
log "/run/test/bird.log" 1000000 "/run/test/bird.log.1" { info, remote, warning, error, auth, fatal, bug };
router id 10.89.0.11;
timeformat protocol iso long;
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
  learn; scan time 2; metric 2113; merge paths on; graceful restart on;
  ipv4 { import where krt_source != 112 && krt_source != 113; export filter kernel_out4; };
}

filter in_e1c011fe1214024b {
  if net ~ [ 10.244.1.0/24+ ] then reject;
  accept;
}

filter out_189935cf575aedc2 {
  if source = RTS_STATIC then accept;
  reject;
}

protocol bgp node_10_89_0_12 {
  local 10.89.0.11 port 179 as 64512;
  neighbor 10.89.0.12 port 179 as 64512;
  multihop;
  graceful restart on; graceful restart time 120;
  connect delay time 1; connect retry time 2; error wait time 1, 10;
  description "Node node-2";
  ipv4 { import filter in_e1c011fe1214024b; export filter out_189935cf575aedc2; gateway recursive; };
}
"""

EXTERNAL = """\
filter in_ebc2ea4fcd2af188 {
  if net ~ [ 10.244.1.0/24+ ] then reject;
  if !(net ~ [ 10.244.0.0/16+, 198.51.100.0/24+ ]) then reject;
  accept;
}

filter out_3df28058b4edfc8b {
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
  ipv4 { import filter in_ebc2ea4fcd2af188; export filter out_3df28058b4edfc8b; };
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
  ipv6 { import filter in_8746827dadfaa6f4; export filter out_c1438dd4b5421905; gateway recursive; next hop self ebgp; \
add paths on; };
}
"""


TEN = ip_network("10.0.0.0/8")
RULED = replace(
    ROUTER,
    accepts=(),
    communities=(),
    prepends=0,
    password="",
    bfd=False,
    remote=ip_address("192.0.2.9"),
    name="peer_192_0_2_9",
    on_link=False,
    has_source=False,
    next_hop="keep",
    restart_time_s=60,
    keepalive_s=20,
    own_as_limit=0,
    hops=2,
    imports=(
        RouteRule(version=4, accept=True, network=TEN, lengths=(16, 24), community=(64512, 7), added=((64512, 8),)),
        RouteRule(version=4, accept=False, network=TEN, operator="not in", interface="eth*", learned=True),
        RouteRule(version=4, accept=False, network=TEN, operator="equal", community=(64512, 1, 7)),
        RouteRule(version=4, accept=True, network=TEN, operator="not equal", path_prefix=(64600, 64601)),
        RouteRule(version=4, accept=False),
    ),
    exports=(RouteRule(version=4, accept=True, network=TEN, prepended=(64700, 64701)),),
)
WITH_RULES = replace(
    CONFIG,
    sessions=(RULED,),
    unsent=(ip_network("10.244.9.0/24"), ip_network("fd00::/48")),
    tags=((TEN, ((64512, 7), (64512, 1, 7))), (ip_network("fd00::/48"), ((64512, 7),))),
    gateways=((ip_address("192.0.2.9"), ip_address("10.89.0.254")), (ip_address("fd00::9"), ip_address("fd89::1"))),
)
RULES = """\
filter in_70abba98dc6222fb {
  if net ~ [ 10.244.1.0/24+ ] then reject;
  if net ~ [ 10.0.0.0/8{16,24} ] && bgp_community ~ [(64512, 7)] then { bgp_community.add((64512, 8)); accept; }
  if !(net ~ [ 10.0.0.0/8+ ]) && defined(ifname) && ifname ~ "eth*" && source = RTS_BGP then reject;
  if net = 10.0.0.0/8 && bgp_large_community ~ [(64512, 1, 7)] then reject;
  if net != 10.0.0.0/8 && bgp_path ~ [= 64600 64601 * =] then accept;
  reject;
  accept;
}

filter out_8fcea70e9b66a125 {
  if proto = "gateways4" then reject;
  if net ~ [ 10.0.0.0/8+ ] then { bgp_community.add((64512, 7)); bgp_large_community.add((64512, 1, 7)); }
  if net ~ [ 10.0.0.0/8+ ] then { bgp_path.prepend(64701); bgp_path.prepend(64700); accept; }
  if net ~ [ 10.244.9.0/24+ ] then reject;
  if source = RTS_STATIC then accept;
  if source = RTS_BGP && net ~ [ 10.244.0.0/16+ ] then accept;
  reject;
}

protocol bgp peer_192_0_2_9 {
  local port 1179 as 64512;
  neighbor 192.0.2.9 port 2179 as 4200000000;
  multihop 2;
  graceful restart on; graceful restart time 60;
  connect delay time 1; connect retry time 2; error wait time 1, 10;
  ttl security on;
  hold time 60; keepalive time 20;
  ipv4 { import filter in_70abba98dc6222fb; export filter out_8fcea70e9b66a125; gateway recursive; next hop keep; };
}
"""


def assert_has(text: str, blocks: str) -> None:
    """A text has all blocks, which empty lines separate."""
    assert [block for block in blocks.removesuffix("\n").split("\n\n") if f"{block}\n" not in text] == []


def test_rules_and_options_of_a_session() -> None:
    text = render(WITH_RULES)
    assert_has(text, RULES)
    assert "protocol static gateways4 {\n  ipv4;\n  route 192.0.2.9/32 via 10.89.0.254;\n}\n" in text
    assert "fd" not in text, "the node has networks of IPv4 only"


def test_strict_bind_needs_a_source_address() -> None:
    text = render(replace(CONFIG, strict_bind=True, sessions=(NODE, RULED)))
    assert text.count("  strict bind on;\n") == 1


def test_a_session_of_the_mesh() -> None:
    assert render(CONFIG) == MESH


def test_an_external_peer_with_every_option() -> None:
    assert_has(render(BOTH), EXTERNAL)


def test_a_reflector_sends_everything_to_its_clients() -> None:
    text = render(BOTH)
    assert CLIENT in text
    assert "  if source = RTS_BGP then accept;\n" in text


def test_each_family_has_its_own_routes_and_filters() -> None:
    text = render(BOTH)
    assert "  route fd00:0:0:1::/64 blackhole;\n" in text and "  krt_prefsrc = fd89::11;\n" in text
    assert "  if bgp_next_hop ~ [ fd89::12 ] && net ~ [ fd00::/48+ ] then reject;\n" in text
    assert 'protocol direct { ipv4; ipv6; interface "eth0"; }\n' in text


def test_networks_of_ignored_devices_are_not_read() -> None:
    text = render(replace(CONFIG, ignored_devices=("eth9", "cali*")))
    assert 'protocol direct { ipv4; interface -"eth9", -"cali*", "eth0"; }\n' in text


def test_routes_to_pods_stay_out_of_the_kernel() -> None:
    text = render(replace(BOTH, writes_pod_routes=False))
    for networks in ("10.244.0.0/16+", "fd00::/48+"):
        assert f"  if source != RTS_BGP then reject;\n  if net ~ [ {networks} ] then reject;\n" in text


def test_sessions_stand_in_the_order_of_their_names() -> None:
    assert render(BOTH) == render(replace(BOTH, sessions=(ROUTER, NODE6, NODE)))


def test_sessions_of_a_family_without_networks_are_left_out() -> None:
    assert "fd89" not in render(replace(CONFIG, sessions=(NODE, NODE6)))


def test_sessions_with_the_same_rules_share_their_filters() -> None:
    nodes = tuple(replace(NODE, name=f"node_{n}", remote=ip_address(f"10.89.0.{n}")) for n in range(20, 25))
    text = render(replace(CONFIG, sessions=(*nodes, ROUTER)))
    assert [line for line in text.splitlines() if line.startswith(("filter in_", "filter out_"))] == [
        "filter in_e1c011fe1214024b {",
        "filter in_ebc2ea4fcd2af188 {",
        "filter out_189935cf575aedc2 {",
        "filter out_3df28058b4edfc8b {",
    ]
    assert text.count("import filter in_e1c011fe1214024b; export filter out_189935cf575aedc2;") == 5


def test_kept_texts_are_those_of_a_new_rendering() -> None:
    texts = SessionTexts()
    other = replace(NODE, name="node_9", remote=ip_address("10.89.0.9"))
    for config in (
        CONFIG,
        replace(CONFIG, sessions=(NODE, other)),
        replace(CONFIG, sessions=(replace(NODE, password="x"), other)),  # noqa: S106 - of a test
        replace(CONFIG, sessions=(other,), unsent=(ip_network("10.244.9.0/24"),)),
        WITH_RULES,
        replace(WITH_RULES, pod_networks=(ip_network("10.0.0.0/8"),)),
        BOTH,
        CONFIG,
    ):
        assert render(config, texts) == render(config)


def test_networks_of_another_family_accept_nothing() -> None:
    only6 = replace(ROUTER, accepts=(ip_network("2001:db8::/32"),))
    assert "then reject;\n  reject;\n  accept;\n}" in render(replace(CONFIG, sessions=(only6,)))


SERVICES = (ip_network("192.0.2.1/32"), ip_network("2001:db8::1/128"))
TWO_FAMILIES = replace(
    NODE,
    exports=(RouteRule(version=4, accept=True, network=SERVICES[0], operator="equal"),),
    second=SecondFamily(
        version=6,
        next_hop=ip_address("fd89::11"),
        exports=(RouteRule(version=6, accept=True, network=SERVICES[1], operator="equal", local_pref=7),),
    ),
)


def test_the_second_family_is_sent_alone_and_by_its_rules() -> None:
    text = render(replace(CONFIG, networks=(), sessions=(TWO_FAMILIES,), service_networks=SERVICES))
    assert (
        "filter second_node_10_89_0_12 {\n"
        "  if net = 2001:db8::1/128 then { bgp_local_pref = 7; accept; }\n"
        "  reject;\n"
        "}\n"
    ) in text
    channel = "  ipv6 { import none; export filter second_node_10_89_0_12; next hop address fd89::11; };\n"
    assert text.count(channel) == 1
    assert "  route 2001:db8::1/128 blackhole;\n" in text


NOWHERE = ip_address("::")
UNNUMBERED = BgpSession(
    name="router_eth1",
    local=NOWHERE,
    has_source=False,
    local_as=64512,
    remote=NOWHERE,
    remote_as=0,
    interface="eth1",
    waits=True,
    bfd=True,
    exports=(RouteRule(version=6, accept=True, network=SERVICES[1], operator="equal"),),
    second=SecondFamily(
        version=4,
        next_hop=None,
        exports=(RouteRule(version=4, accept=True, network=SERVICES[0], operator="equal"),),
    ),
)


def test_a_neighbour_of_a_link_opens_the_session() -> None:
    text = render(replace(CONFIG, networks=(), sessions=(UNNUMBERED,), service_networks=SERVICES))
    assert '  interface "eth1"; neighbor range fe80::/10 external;\n  dynamic name "router_eth1_";\n' in text
    assert '  interface "eth1" { max ra interval 10; default lifetime 0; };\n' in text
    options = "import none; export filter second_router_eth1; extended next hop on; next hop self;"
    assert f"  ipv4 {{ {options} }};\n" in text


def test_a_session_of_a_vrf_has_its_own_bfd() -> None:
    text = render(replace(CONFIG, sessions=(replace(NODE, vrf="red", bfd=True),)))
    assert '  vrf "red";\n  local ' in text
    assert 'protocol bfd bfd0 {\n  vrf "red";\n' in text


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
        WITH_RULES,
        replace(BOTH, gateways=WITH_RULES.gateways, tags=WITH_RULES.tags, unsent=WITH_RULES.unsent, log_level="error"),
        replace(CONFIG, strict_bind=True, sessions=(NODE, RULED, replace(ROUTER, hops=1, next_hop="self"))),
        replace(CONFIG, networks=(), sessions=(TWO_FAMILIES,), service_networks=SERVICES),
        replace(CONFIG, networks=(), sessions=(UNNUMBERED,), service_networks=SERVICES),
        replace(CONFIG, sessions=(replace(NODE, vrf="red", bfd=True),)),
    ],
    ids=[
        "mesh",
        "both",
        "alone",
        "debug",
        "ipv6",
        "other family",
        "rules",
        "both with gateways",
        "strict",
        "second",
        "link",
        "vrf",
    ],
)
def test_bird_accepts_the_text(config: BgpConfiguration, tmp_path: Path) -> None:
    file = tmp_path / "bird.conf"
    file.write_text(render(config))
    done = subprocess.run([BIRD, "-p", "-c", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
