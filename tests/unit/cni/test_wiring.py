"""The wiring of a pod compared whole, and what is read back from a kernel."""

from ipaddress import ip_address

from msgspec.structs import replace

from podwire.cluster.podleg import PodLeg
from podwire.cni import spec, wiring
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.state.link import Link
from podwire.state.network import NetworkState, parse
from podwire.state.route import Neighbour, Route

REQUEST = CniRequest(
    command="ADD",
    conf=spec.NetConf(name="podwire", cni_version="1.0.0"),
    key=AttachmentKey("podwire", "0123456789ab", "eth0"),
    netns="/run/netns/x",
    namespace="shop",
    pod="checkout-7d9f",
)
ADDRESSES = (ip_address("10.244.1.2"), ip_address("fd00::2"))

NODE = """\
link checkout-6cd1be mtu 1450 address 02:70:77:00:00:01 alias "shop/checkout-7d9f 0123456789ab" up type veth peer eth0
route 10.244.1.2/32 dev checkout-6cd1be src 10.89.0.11 proto 112
route fd00::2/128 dev checkout-6cd1be proto 112
neighbour 10.244.1.2 lladdr MAC dev checkout-6cd1be proto 112
neighbour fd00::2 lladdr MAC dev checkout-6cd1be proto 112
sysctl net/ipv4/conf/checkout-6cd1be/accept_redirects = 0
sysctl net/ipv4/conf/checkout-6cd1be/forwarding = 1
sysctl net/ipv4/conf/checkout-6cd1be/rp_filter = 1
sysctl net/ipv4/conf/checkout-6cd1be/send_redirects = 0
"""
POD = """\
link eth0 mtu 1450 address MAC up type veth
link lo up
address 10.244.1.2/32 dev eth0 proto 112
address fd00::2/128 dev eth0 proto 112
route 169.254.1.1/32 dev eth0 proto 112
route ::/0 via fe80::1 dev eth0 mtu 1450 proto 112
route default via 169.254.1.1 dev eth0 mtu 1450 proto 112
neighbour 169.254.1.1 lladdr 02:70:77:00:00:01 dev eth0 proto 112
neighbour fe80::1 lladdr 02:70:77:00:00:01 dev eth0 proto 112
"""


def attached() -> Attachment:
    return wiring.attach(REQUEST, ADDRESSES, wiring.WiringFacts())


def test_a_pod_of_two_families() -> None:
    item = attached()
    got = wiring.plan(item, wiring.WiringFacts(mtu=1450, sources={4: "10.89.0.11"}))
    name = f"checkout-{wiring.key_hash('0123456789ab', 'eth0')}"
    assert str(got.host) == NODE.replace("MAC", item.mac).replace("checkout-6cd1be", name)
    assert str(got.pod) == POD.replace("MAC", item.mac)
    assert parse(str(got.host)) == got.host
    assert str(got).startswith("# node\nlink ")


LEG = """\
link eth0 mtu 1450 address MAC up type veth
link lan0 mtu 9000 address LEG up
link lo up
address 10.244.1.2/32 dev eth0 proto 112
address fd00::2/128 dev eth0 proto 112
address 10.244.1.2/32 dev lan0 proto 112
address fd00::2/128 dev lan0 proto 112
route 10.244.2.0/24 dev lan0 proto 112
route 169.254.1.1/32 dev eth0 proto 112
route ::/0 via fe80::1 dev eth0 mtu 1450 proto 112
route default via 169.254.1.1 dev eth0 mtu 1450 proto 112
route fd00:0:0:2::/64 dev lan0 proto 112
neighbour 169.254.1.1 lladdr 02:70:77:00:00:01 dev eth0 proto 112
neighbour fe80::1 lladdr 02:70:77:00:00:01 dev eth0 proto 112
sysctl net/ipv4/conf/eth0/rp_filter = 2
sysctl net/ipv4/conf/lan0/rp_filter = 2
sysctl net/ipv6/conf/lan0/accept_ra = 0
"""


def test_a_leg_adds_an_interface_and_routes_to_its_networks() -> None:
    item = attached()
    leg = PodLeg("eth7", 9000, ("10.244.2.0/24", "fd00:0:0:2::/64"))
    got = wiring.plan(item, wiring.WiringFacts(mtu=1450, leg=leg))
    without = wiring.plan(item, wiring.WiringFacts(mtu=1450))
    assert str(got.pod) == LEG.replace("MAC", item.mac).replace("LEG", wiring.leg_mac(item.key))
    assert (
        str(got.leg) == f"link lan0 mtu 9000 address {wiring.leg_mac(item.key)} down type macvlan link eth7 mode bridge"
    )
    assert (got.first, got.host, without.leg) == (without.pod, without.host, None)
    assert wiring.leg_mac(item.key) != item.mac


def test_a_leg_of_kind_ipvlan_has_gateways_and_an_alias() -> None:
    attachment = attached()
    gateways = (("10.244.5.0/24", "10.89.0.15"), ("fd00:0:0:5::/64", "fd89::15"))
    leg = PodLeg("eth7", 1500, gateways=gateways, kind="ipvlan", mode="l3s")
    got = wiring.plan(attachment, wiring.WiringFacts(leg=leg))
    assert str(got.leg) == "link lan0 mtu 1500 down type ipvlan link eth7 mode l3s"
    lines = str(got.pod).splitlines()
    assert 'link lan0 mtu 1500 alias "podwire/cni leg" up' in lines
    assert "route 10.244.5.0/24 via 10.89.0.15 dev lan0 onlink proto 112" in lines
    assert "route fd00:0:0:5::/64 via fd89::15 dev lan0 onlink proto 112" in lines
    made = Link("lan0", "ipvlan", alias="podwire/cni leg", device="eth7", mode="l3s")
    assert wiring.is_leg(made, attachment) and not wiring.is_leg(Link("lan0", "ipvlan", mode="l2"), attachment)


def test_legs_have_routes_of_the_families_of_the_pod() -> None:
    item = wiring.attach(REQUEST, ADDRESSES[:1], wiring.WiringFacts())
    leg = PodLeg("eth7", 9000, ("10.244.2.0/24", "fd00:0:0:2::/64"))
    assert "fd00" not in str(wiring.plan(item, wiring.WiringFacts(leg=leg)).pod)


def test_foreign_devices_are_not_recognized_as_pods() -> None:
    item = attached()
    link = wiring.plan(item, wiring.WiringFacts()).host.links[0]
    assert wiring.owner_of(link) == ("0123456789ab", "eth0")
    second = wiring.attach(_request("eth1"), ADDRESSES, wiring.WiringFacts())
    assert wiring.owner_of(wiring.plan(second, wiring.WiringFacts()).host.links[0]) == ("0123456789ab", "eth1")
    for foreign in (
        Link("veth0", "veth", alias="shop/a 0123456789ab"),
        Link(link.name, "veth"),
        Link(link.name, "bridge", alias=link.alias),
        Link(link.name, "veth", alias="shop/a other"),
    ):
        assert wiring.owner_of(foreign) is None


def test_wired_pods_are_rebuilt_from_the_kernel() -> None:
    item = attached()
    host = wiring.plan(item, wiring.WiringFacts()).host
    [again] = wiring.missing_in_ledger(host, (), "podwire")
    assert (again.key, again.mac, again.host_link) == (item.key, item.mac, item.host_link)
    assert set(again.addresses) == set(item.addresses)
    assert (again.namespace, again.pod) == ("shop", "checkout-7d9f")
    assert wiring.missing_in_ledger(host, (item.key,), "podwire") == []


def test_an_unwired_device_is_not_rebuilt() -> None:
    host = wiring.plan(attached(), wiring.WiringFacts()).host
    assert wiring.missing_in_ledger(NetworkState(links=host.links), (), "podwire") == []
    foreign = Route("10.244.1.2/32", link=host.links[0].name, proto=3)
    known = Neighbour(host.links[0].name, "10.244.1.2", "02:00:00:00:00:01")
    assert (
        wiring.missing_in_ledger(NetworkState(links=host.links, routes=(foreign,), neighbours=(known,)), (), "n") == []
    )


def test_without_a_pod_name_the_container_tells() -> None:
    plain = CniRequest(command="ADD", conf=spec.NetConf(name="n"), key=AttachmentKey("n", "0123456789ab", "eth0"))
    item = wiring.attach(plain, ADDRESSES[:1], wiring.WiringFacts())
    assert item.host_link.startswith("01234567-")
    assert wiring.alias_of(item) == "- 0123456789ab"
    assert wiring.owner_of(wiring.plan(item, wiring.WiringFacts()).host.links[0]) == ("0123456789ab", "eth0")


def test_names_hold_nothing_that_a_device_s_name_may_not() -> None:
    for pod in ("a.b.c", "ü/..", "x" * 63, "1"):
        assert Link(wiring.host_link_name(pod, REQUEST.key)).name


def test_a_result_names_both_ends() -> None:
    got = wiring.result(attached(), wiring.WiringFacts(mtu=1450), spec.Dns())
    assert [(link.name[:8], link.sandbox) for link in got.interfaces] == [("checkout", ""), ("eth0", "/run/netns/x")]
    assert [(ip.address, ip.gateway, ip.interface) for ip in got.ips] == [
        ("10.244.1.2/32", "169.254.1.1", 1),
        ("fd00::2/128", "fe80::1", 1),
    ]
    assert [route.dst for route in got.routes] == ["0.0.0.0/0", "::/0"]


def _request(ifname: str) -> CniRequest:
    key = AttachmentKey("podwire", "0123456789ab", ifname)
    return CniRequest(command="ADD", conf=REQUEST.conf, key=key, netns="/run/netns/x", namespace="shop", pod="checkout")


def test_pods_of_a_network_that_is_gone_are_cut_off() -> None:
    chosen = spec.RuntimeConfig(annotations={"podwire.io/network": "blue"})
    item = wiring.attach(
        replace(REQUEST, conf=replace(REQUEST.conf, runtime_config=chosen)), ADDRESSES, wiring.WiringFacts()
    )
    assert item.pod_network == "blue"
    assert attached().pod_network == ""
    there = wiring.WiringFacts(networks={"blue": ("10.244.1.0/24", "fd00::/64")})
    assert wiring.plan(item, there).host.rules == ()
    assert wiring.plan(attached(), wiring.WiringFacts()).host.rules == ()
    alone = [
        "rule 1121 from 10.244.1.2/32 type unreachable proto 112",
        "rule 1121 -6 from fd00::2/128 type unreachable proto 112",
    ]
    assert [str(rule) for rule in wiring.plan(item, wiring.WiringFacts()).host.rules] == alone
    other = wiring.WiringFacts(networks={"blue": ("10.245.1.0/24", "fd00::/64")})
    assert [str(rule) for rule in wiring.plan(item, other).host.rules] == alone[:1], "the network has another range"


def test_remembered_networks_need_the_rules_that_separate_them() -> None:
    node = wiring.WiringFacts(networks={"blue": ("10.245.1.0/24", "fd45::/64"), "red": ("10.246.1.0/24",)})
    have = parse("rule 1121 from 10.245.0.0/16 table 20101\nrule 1121 from 10.246.0.0/16 table 20102\n")
    assert list(wiring.separated_networks(node, have).networks) == ["red"], "of blue one family is not separate"
    both = parse(f"{have}rule 1121 -6 from fd45::/48 table 20101\n")
    assert wiring.separated_networks(node, both) == node
