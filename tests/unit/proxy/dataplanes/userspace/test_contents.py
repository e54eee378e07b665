"""Pools and elements of Services, and what a change of them commits."""

import msgspec
import pytest

from podwire.proxy.dataplanes.userspace.contents import Contents, pools
from podwire.proxy.dataplanes.userspace.layout import UserspaceLayout
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort
from podwire.state.nft import Table
from podwire.state.nft_diff import AddElements, DeleteElements, Transaction

NODE = NodeFacts(name="n1", addresses=("192.168.99.1", "fd99::1"), pod_cidrs=("10.0.0.0/8",))
LAYOUT = UserspaceLayout("ip", NODE)
HERE, THERE = ResolvedEndpoint("10.0.0.1", 8080, True), ResolvedEndpoint("10.1.0.1", 8080)
WEB = ResolvedPort(
    service="default/web",
    port_name="http",
    protocol="tcp",
    family="ip",
    port=80,
    cluster_ip="10.96.0.10",
    cluster_endpoints=(HERE, THERE),
    local_endpoints=(HERE,),
    has_endpoints=True,
)
CLUSTER, LOCAL = "ip default/web:http/tcp cluster", "ip default/web:http/tcp local"


def like(**changes: object) -> ResolvedPort:
    return msgspec.structs.replace(WEB, **changes)


def keys(port: ResolvedPort) -> list[str]:
    return [pool.key for pool in pools((port,), LAYOUT)]


def test_pools_are_those_that_a_frontend_leads_to() -> None:
    assert keys(WEB) == [CLUSTER]
    assert keys(like(internal_local=True)) == [LOCAL]
    assert keys(like(internal_local=True, node_port=30080)) == [CLUSTER, LOCAL]
    assert keys(like(external_local=True, node_port=30080)) == [CLUSTER, LOCAL]
    assert keys(like(external_local=True, node_port=30080, local_endpoints=())) == [CLUSTER]
    assert keys(like(cluster_endpoints=())) == []
    assert keys(like(protocol="sctp")) == []


def test_a_pool_has_what_the_relay_needs() -> None:
    (pool,) = pools((like(protocol="udp", serving=frozenset(("10.0.0.1:8080",)), affinity_s=30),), LAYOUT)
    assert (pool.address, pool.affinity_s, pool.mark) == ("192.168.99.1", 30, 1 << 14)
    assert pool.endpoints == (("10.0.0.1", 8080), ("10.1.0.1", 8080))
    assert pool.serving == {"10.0.0.1:8080"}
    (tcp,) = pools((like(serving=frozenset(("10.0.0.1:8080",))),), LAYOUT)
    assert not tcp.serving


def test_without_an_address_of_the_family_nothing_is_relayed() -> None:
    bare = UserspaceLayout("ip6", NodeFacts(name="n1", addresses=("192.168.99.1",)))
    assert pools((like(family="ip6", cluster_ip="fd96::1"),), bare) == ()


def elements(table: Table, name: str) -> list[str]:
    result = table.set(name)
    return [result.element_text(key, element) for key, element in result.elements.items()]


def change(contents: Contents, *ports: ResolvedPort, service: str = "default/web") -> dict[str, list[str]]:
    """The operations of a change, by sign and set."""
    return summary(contents.change({service: ports}))


def summary(transaction: Transaction) -> dict[str, list[str]]:
    result = {}
    for operation in transaction.operations:
        assert isinstance(operation, AddElements | DeleteElements)
        sign = "+" if isinstance(operation, AddElements) else "-"
        texts = [operation.set.element_text(key, element) for key, element in operation.elements.items()]
        result[sign + operation.set.name] = texts
    return result


def test_a_service_leads_to_its_pool() -> None:
    contents = Contents(LAYOUT, {CLUSTER: 40001})
    assert change(contents, WEB) == {
        "+cluster-ips": ["10.96.0.10"],
        "+services": ['10.96.0.10 . tcp . 80 comment "default/web:http" : 192.168.99.1 . 40001'],
        "+relay": ['192.168.99.1 . tcp . 40001 comment "default/web:http"'],
    }
    assert change(contents, like(cluster_endpoints=(THERE,))) == {}
    assert elements(contents.table(), "cluster-ips") == ["10.96.0.10"]


def test_a_service_that_goes_takes_its_elements_along() -> None:
    contents = Contents(LAYOUT, {CLUSTER: 40001})
    change(contents, WEB)
    assert set(change(contents)) == {"-cluster-ips", "-services", "-relay"}
    assert not any(elements(contents.table(), name) for name in ("cluster-ips", "services", "relay"))


def test_a_shared_cluster_address_goes_with_the_last_port() -> None:
    contents = Contents(LAYOUT, {})
    other = like(port=81, port_name="more")
    change(contents, WEB, other)
    assert "-cluster-ips" not in change(contents, other)
    assert "-cluster-ips" in change(contents)


def test_local_policy_outside() -> None:
    contents = Contents(LAYOUT, {CLUSTER: 40001, LOCAL: 40002})
    change(contents, like(external_local=True, node_port=30080, external_ips=("203.0.113.7",)))
    table = contents.table()
    assert elements(table, "local-node-ports") == ['tcp . 30080 comment "default/web:http" : 192.168.99.1 . 40002']
    assert elements(table, "node-ports") == ['tcp . 30080 comment "default/web:http" : 192.168.99.1 . 40001']
    assert len(elements(table, "local-services")) == 1
    change(contents, like(external_local=True, node_port=30080, local_endpoints=()))
    assert elements(contents.table(), "not-local-node-ports") == ['tcp . 30080 comment "default/web:http"']
    assert not elements(contents.table(), "local-node-ports")


@pytest.mark.parametrize(
    ("port", "verdict"),
    [
        (like(cluster_endpoints=(), has_endpoints=False), "goto refuse"),
        (like(internal_local=True, local_endpoints=()), "drop"),
        (like(protocol="sctp"), "goto refuse"),
    ],
)
def test_frontends_without_endpoints_get_a_verdict(port: ResolvedPort, verdict: str) -> None:
    contents = Contents(LAYOUT, {CLUSTER: 40001})
    change(contents, port)
    assert [line.rpartition(" : ")[2] for line in elements(contents.table(), "refused-services")] == [verdict]
    assert not elements(contents.table(), "services")


def test_a_pool_without_a_port_is_refused() -> None:
    contents = Contents(LAYOUT, {})
    change(contents, WEB)
    assert len(elements(contents.table(), "refused-services")) == 1


def test_the_second_service_waits_for_an_address() -> None:
    contents = Contents(LAYOUT, {CLUSTER: 40001, "ip default/two/tcp cluster": 40002})
    two = like(service="default/two", port_name="", cluster_ip="10.96.0.11", external_ips=("203.0.113.7",))
    change(contents, like(external_ips=("203.0.113.7",)))
    change(contents, two, service="default/two")
    assert contents.conflicts() == ("default/two",)
    result = change(contents)
    assert any("203.0.113.7" in line and "40002" in line for line in result["+services"])
    assert contents.conflicts() == ()


def test_source_ranges_guard_balanced_addresses() -> None:
    contents = Contents(LAYOUT, {CLUSTER: 40001})
    change(contents, like(load_balancer_ips=("203.0.113.8",), source_ranges=("192.168.99.0/24",)))
    assert elements(contents.table(), "guarded-services") == ["203.0.113.8 . tcp . 80"]
    sources = elements(contents.table(), "guarded-sources")
    assert len(sources) == 2, "the range, and the address itself since the node is in the range"
