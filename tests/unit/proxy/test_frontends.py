"""The ways in to a port, and who may come in by a load balancer's addresses."""

import pytest

from podwire.proxy.frontends import Frontend, admitted, frontends
from podwire.proxy.servicemap import NodeFacts, ResolvedPort

FACTS = NodeFacts(name="n1", addresses=("192.168.0.1", "fd00::1"))


def port(*ranges: str, node_port: int = 0) -> ResolvedPort:
    return ResolvedPort(
        service="default/web", port_name="", protocol="tcp", family="ip", port=80, cluster_ip="10.96.0.10",
        external_ips=("203.0.113.7",), load_balancer_ips=("203.0.113.8",), node_port=node_port, source_ranges=ranges,
    )  # fmt: skip


def test_every_address_and_node_port_is_a_frontend() -> None:
    results = {Frontend(address, "tcp", 80) for address in ("10.96.0.10", "203.0.113.7", "203.0.113.8")}
    assert frontends(port()) == results
    assert frontends(port(node_port=30080)) == results | {Frontend("", "tcp", 30080)}


@pytest.mark.parametrize(("ranges", "sources"), [
    (("198.51.100.0/24", "198.51.100.0/24"), ["198.51.100.0/24"]),
    (("192.168.0.0/16", "198.51.100.0/24"), ["192.168.0.0/16", "198.51.100.0/24", "203.0.113.8/32"]),
    (("192.168.0.1/32", "203.0.113.8/32"), ["192.168.0.1/32", "203.0.113.8/32"]),
])  # fmt: skip
def test_admitted_node_also_admits_the_load_balancer_address(ranges: tuple[str, ...], sources: list[str]) -> None:
    assert list(map(str, admitted(port(*ranges), FACTS))) == sources
