"""What ServiceL2Status and ServiceBGPStatus say about a node."""

from ipaddress import ip_address, ip_network

from podwire.kernel.leased_addresses import LeasedAddress
from podwire.loadbalancer.bgproutes import BgpAnnouncement
from podwire.loadbalancer.election import L2Choice
from podwire.loadbalancer.servicestatus import advertised, answered, node_label, status_labels, status_name
from podwire.model.metallb import InterfaceInfo, ServiceAnnouncement

FOUR, SIX = ip_address("192.0.2.1"), ip_address("2001:db8::1")
WEB = ServiceAnnouncement(
    node="node-1", service_name="web", service_namespace="shop", interfaces=(InterfaceInfo(name="eth0"),)
)


def test_devices_of_both_families_are_of_one_service() -> None:
    held = {FOUR: [LeasedAddress("eth1", str(FOUR))], SIX: [LeasedAddress("eth0", str(SIX))]}
    choices = {address: L2Choice(address=address, services=("shop/web",), node="node-1") for address in held}
    (status,) = answered("node-1", held, choices).values()
    assert [entry.name for entry in status.interfaces] == ["eth0", "eth1"]
    assert (status.node, status.service_namespace, status.service_name) == ("node-1", "shop", "web")


def test_services_that_share_an_address_have_a_status_each() -> None:
    held = {FOUR: [LeasedAddress("eth0", str(FOUR))]}
    choices = {FOUR: L2Choice(address=FOUR, services=("shop/api", "shop/web"), node="node-1")}
    assert set(answered("node-1", held, choices)) == {"shop/api", "shop/web"}
    assert answered("node-1", held, choices)["shop/web"] == WEB
    assert answered("node-1", held, {}) == {}, "no Service has the address any more"


def test_peers_of_all_prefixes_add_up() -> None:
    announcements = [
        BgpAnnouncement(network=ip_network("192.0.2.1/32"), services=("shop/web",), peers=("tor-b",)),
        BgpAnnouncement(network=ip_network("192.0.2.0/24"), services=("shop/web", "shop/api"), peers=("tor-a",)),
    ]
    statuses = advertised("node-1", announcements)
    assert statuses["shop/web"].peers == ("tor-a", "tor-b") and statuses["shop/api"].peers == ("tor-a",)
    assert statuses["shop/web"].interfaces == ()


def test_names_differ_by_node_and_labels_are_those_of_metallb() -> None:
    other = ServiceAnnouncement(node="node-2", service_name="web", service_namespace="shop", peers=("tor",))
    assert status_name(WEB).startswith("l2-") and status_name(other).startswith("bgp-")
    assert status_name(WEB).partition("-")[2] != status_name(other).partition("-")[2]
    assert status_labels(WEB) == {
        "metallb.io/node": "node-1",
        "metallb.io/service-name": "web",
        "metallb.io/service-namespace": "shop",
    }
    assert len(node_label("n" * 64)) == 63 and node_label("n" * 63) == "n" * 63
