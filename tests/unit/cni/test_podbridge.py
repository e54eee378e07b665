"""Pods on a bridge: the state of both namespaces compared whole, and what is read back from a kernel."""

import pytest
from msgspec.structs import replace
from tests.unit.cni.test_wiring import ADDRESSES, REQUEST

from podwire.cluster.podbridge import BRIDGE
from podwire.cni import podbridge, ports, spec, wiring
from podwire.cni.ipam.ledger import Attachment
from podwire.state.network import NetworkState, merge, parse

NODE = wiring.WiringFacts(
    mtu=1450, sources={4: "10.89.0.11"}, cidrs=("10.244.1.0/24", "fd00::/64"), link="bridge", route_mtus={6: 1430}
)
ROUTED = replace(NODE, link="routed")
PORT = """\
link NAME mtu 1450 address 02:70:77:00:00:01 master podwire-pods hairpin locked \
alias "shop/checkout-7d9f 0123456789ab" up type veth peer eth0
route 10.244.1.2/32 via 10.244.1.2 dev podwire-pods onlink src 10.89.0.11 proto 112
route fd00::2/128 dev podwire-pods proto 112
neighbour 10.244.1.2 lladdr MAC dev podwire-pods proto 112
neighbour fd00::2 lladdr MAC dev podwire-pods proto 112
fdb MAC dev NAME master
"""
POD = """\
link eth0 mtu 1450 address MAC up type veth
link lo up
address 10.244.1.2/32 dev eth0 proto 112
address fd00::2/128 dev eth0 proto 112
route 10.244.1.1/32 dev eth0 proto 112
route ::/0 via fd00::1 dev eth0 mtu 1430 proto 112
route default via 10.244.1.1 dev eth0 mtu 1450 proto 112
route fd00::1/128 dev eth0 proto 112
neighbour 10.244.1.1 lladdr 02:70:77:00:00:01 dev eth0 proto 112
neighbour fd00::1 lladdr 02:70:77:00:00:01 dev eth0 proto 112
"""
DEVICE = """\
link podwire-pods mtu 1450 address 02:70:77:00:00:01 alias "podwire/cni pods" up type bridge
address 10.244.1.1/32 dev podwire-pods proto 112
address fd00::1/128 dev podwire-pods proto 112
sysctl net/ipv4/conf/podwire-pods/accept_redirects = 0
sysctl net/ipv4/conf/podwire-pods/forwarding = 1
sysctl net/ipv4/conf/podwire-pods/rp_filter = 1
sysctl net/ipv4/conf/podwire-pods/send_redirects = 0
sysctl net/ipv6/conf/podwire-pods/accept_ra = 0
sysctl net/ipv6/conf/podwire-pods/addr_gen_mode = 1
"""


def attached() -> Attachment:
    return wiring.attach(REQUEST, ADDRESSES, NODE)


def test_pod_of_two_families_is_a_port() -> None:
    item = attached()
    got = wiring.plan(item, NODE)
    assert str(got.host) == PORT.replace("MAC", item.mac).replace("NAME", item.host_link)
    assert str(got.pod) == POD.replace("MAC", item.mac)
    assert parse(str(got.host)) == got.host
    assert (item.device, item.gateways) == (BRIDGE, ("10.244.1.1", "fd00::1"))


def test_node_has_the_bridge_before_its_first_pod() -> None:
    assert str(wiring.bridge_of((), NODE)) == DEVICE
    assert str(wiring.merged((), NODE)) == DEVICE
    assert wiring.bridge_of((), replace(NODE, cidrs=())) is None, "the gateway is not known yet"
    assert wiring.bridge_of((), replace(NODE, link="routed")) is None


def test_bridge_stays_while_pods_have_it() -> None:
    item, moved = attached(), wiring.WiringFacts(mtu=1450, cidrs=("10.244.7.0/24",))
    bridge = wiring.bridge_of([item], moved)
    assert bridge is not None
    assert [address.cidr for address in bridge.addresses] == ["10.244.1.1/32", "10.244.7.1/32", "fd00::1/128"]
    assert wiring.plan(item, moved).pod.routes[0].dst == "10.244.1.1/32", "a running pod keeps its gateway"
    assert wiring.attach(REQUEST, ADDRESSES, moved).bridge == ""


@pytest.mark.parametrize(
    ("cidrs", "whole", "expected"),
    [
        (("10.244.1.0/24", "10.244.9.0/24"), False, ("10.244.1.1",)),
        (("10.244.3.17/32", "10.244.0.64/26", "fd00::40/122"), False, ("10.244.0.65", "fd00::41")),
        (("10.244.1.0/24",), True, ()),
        ((), False, ()),
    ],
)
def test_gateway_is_the_first_address_of_a_range(
    cidrs: tuple[str, ...], whole: bool, expected: tuple[str, ...]
) -> None:
    assert podbridge.gateways(cidrs, whole=whole) == expected


def test_pod_without_a_gateway_uses_the_link_local_one() -> None:
    item = wiring.attach(REQUEST, ADDRESSES, replace(NODE, whole=True))
    routes = [str(route) for route in wiring.plan(item, NODE).pod.routes]
    assert "route default via 169.254.1.1 dev eth0 mtu 1450 proto 112" in routes
    assert "route ::/0 via fe80::1 dev eth0 mtu 1430 proto 112" in routes


def test_interface_beside_another_has_the_gateway_on_link() -> None:
    item = replace(attached(), beside=(4, 6), table=11200)
    routes = [str(route) for route in wiring.plan(item, NODE).pod.routes]
    assert "route default via 10.244.1.1 dev eth0 onlink mtu 1450 table 11200 proto 112" in routes
    assert "route fd00::1/128 dev eth0 table 11200 proto 112" in routes
    assert "route ::/0 via fd00::1 dev eth0 mtu 1430 table 11200 proto 112" in routes


def test_pods_of_a_bridge_are_rebuilt_from_the_kernel() -> None:
    first = attached()
    key = replace(REQUEST.key, container="fedcba987654")
    second = wiring.attach(replace(REQUEST, key=key, pod="other"), [x + 1 for x in ADDRESSES], NODE)
    have = merge([wiring.merged([first, second], NODE)])
    found = {item.key: item for item in wiring.missing_in_ledger(have, (), "podwire")}
    for item in (first, second):
        again = found[item.key]
        assert (again.mac, again.host_link, again.bridge) == (item.mac, item.host_link, BRIDGE)
        assert (set(again.addresses), again.gateways) == (set(item.addresses), item.gateways)


def test_result_names_bridge_port_and_pod() -> None:
    got = wiring.result(attached(), NODE, spec.Dns())
    assert [(link.name[:8], link.sandbox) for link in got.interfaces] == [
        ("podwire-", ""),
        ("checkout", ""),
        ("eth0", "/run/netns/x"),
    ]
    assert [(ip.gateway, ip.interface) for ip in got.ips] == [("10.244.1.1", 2), ("fd00::1", 2)]
    assert [route.gw for route in got.routes] == ["10.244.1.1", "fd00::1"]


def test_host_ports_guard_the_bridge() -> None:
    item = replace(attached(), ports=(spec.PortMapping(host_port=8080, container_port=80),))
    table = ports.plan([item])
    assert table is not None
    devices = next(declared for declared in table.sets if declared.name == "devices")
    assert [str(key) for key in devices.elements] == [str(devices.element(BRIDGE)[0])]
    assert podbridge.loopback_path() in {sysctl.path for sysctl in wiring.plan(item, NODE).host.sysctls}


def test_state_without_the_bridge_has_the_other_pods() -> None:
    item = attached()
    key = replace(REQUEST.key, container="fedcba987654")
    other = wiring.attach(replace(REQUEST, key=key), [address + 1 for address in ADDRESSES], ROUTED)
    have = wiring.merged([item, other], NODE)
    assert podbridge.without(have) == wiring.merged([other], ROUTED)
    assert podbridge.without(wiring.merged([item], NODE)) == NetworkState()
