"""Entries of peers that are copies of a checked one."""

from ipaddress import ip_network

import pytest

from podwire.routing.entries import forwarding_to, neighbour_at, route_to
from podwire.state.route import Fdb, Neighbour, Route


@pytest.mark.parametrize("text", ["10.1.2.0/24", "10.1.2.3/32", "0.0.0.0/0", "fd00:1::/64", "::/0"])
@pytest.mark.parametrize("onlink", [False, True])
def test_routes_equal_those_that_are_checked(text: str, onlink: bool) -> None:  # noqa: FBT001
    via, src = ("fd00::1", "fd00::2") if ":" in text else ("10.0.0.1", "10.0.0.2")

    route = route_to(ip_network(text), via, link="eth0", src=src, onlink=onlink)

    assert route == Route(dst=text, via=via, link="eth0", src=src, onlink=onlink)
    assert route_to(ip_network(text), link="eth0") == Route(dst=text, link="eth0")


def test_entries_do_not_change_each_other() -> None:
    first = route_to(ip_network("10.1.0.0/24"), "10.0.0.1", link="eth0")
    second = route_to(ip_network("10.2.0.0/24"), link="eth0")

    assert str(first) != str(second)
    assert second.via == ""


def test_neighbours_and_forwarding_entries_equal_those_that_are_checked() -> None:
    mac = "02:0A:00:00:00:01"

    assert neighbour_at("10.1.0.1", mac, link="vx") == Neighbour(link="vx", ip="10.1.0.1", mac=mac)
    assert forwarding_to(mac, "10.0.0.1", link="vx") == Fdb(link="vx", mac=mac, dst="10.0.0.1")
    assert forwarding_to(mac, link="port", bridge=True) == Fdb(link="port", mac=mac, bridge=True)


def test_invalid_hardware_addresses_of_peers_are_refused() -> None:
    with pytest.raises(ValueError, match="hardware address"):
        neighbour_at("10.1.0.1", "02:00", link="vx")
    with pytest.raises(ValueError, match="hardware address"):
        forwarding_to("02:00", link="vx")
