"""Slots, capacities and affinity numbers are read from the kernel's table."""

import msgspec
import pytest

from podwire.proxy.dataplanes.nftables.adopted import AdoptedTable
from podwire.proxy.dataplanes.nftables.compile import PortCompiler
from podwire.proxy.dataplanes.nftables.contents import Contents
from podwire.proxy.dataplanes.nftables.layout import NftablesLayout, Shape, capacity_of
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort

LAYOUT = NftablesLayout("ip", NodeFacts(name="n1", addresses=("192.168.99.1",)))
ENDPOINTS = tuple(ResolvedEndpoint(f"10.0.0.{number}", 8080, number % 2 == 0) for number in range(1, 8))
PORT = ResolvedPort(
    service="default/web",
    port_name="http",
    protocol="tcp",
    family="ip",
    port=80,
    cluster_ip="172.30.0.1",
    node_port=30080,
    cluster_endpoints=ENDPOINTS,
    local_endpoints=ENDPOINTS[1::2],
    has_endpoints=True,
)


@pytest.mark.parametrize("affinity_s", [0, 600])
@pytest.mark.parametrize("external_local", [False, True])
@pytest.mark.parametrize("internal_local", [False, True])
def test_both_lists_are_found_again(affinity_s: int, external_local: bool, internal_local: bool) -> None:
    port = msgspec.structs.replace(
        PORT, affinity_s=affinity_s, external_local=external_local, internal_local=internal_local
    )
    contents = Contents(LAYOUT)
    contents.change({"default/web": (port,)})
    fewer = msgspec.structs.replace(port, cluster_endpoints=ENDPOINTS[3:], local_endpoints=ENDPOINTS[3::2])
    contents.change({"default/web": (fewer,)})
    cluster, local = AdoptedTable(contents.table(), PortCompiler(LAYOUT)).endpoint_slots_of(fewer)
    assert cluster.endpoints == (ENDPOINTS[4], ENDPOINTS[5], ENDPOINTS[6], ENDPOINTS[3])
    assert cluster.capacity == 8
    assert bool(cluster.affinity_list) == bool(affinity_s)
    assert cluster.affinity_list is None or cluster.affinity_list.endpoints[ENDPOINTS[3]] == 4
    if internal_local or external_local:
        assert sorted(local.endpoints) == sorted(fewer.local_endpoints)
        assert local.capacity == 4


def test_the_capacity_is_in_the_name_of_the_chain() -> None:
    for shape in (Shape("cluster", 8), Shape("local", 16, True), Shape("external", 4, True, 600)):
        assert capacity_of(shape.chain) == shape.capacity
    assert capacity_of("refuse") == 4
