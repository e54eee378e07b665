"""Which addresses a node announces to which routers: endpoints, selectors, aggregation, attributes, contradictions."""

from ipaddress import ip_address, ip_network

import pytest
from msgspec.structs import replace

from podwire.bgp.birdconf import render
from podwire.bgp.configuration import BfdTimes, BgpConfiguration, BgpSession, RouteRule, with_services
from podwire.loadbalancer.bgppeers import BgpScope, RouterPeer
from podwire.loadbalancer.bgproutes import BalancedRoutes, BgpFacts, plan_routes
from podwire.loadbalancer.election import Serving
from podwire.loadbalancer.pools import BalancerPool, BalancerPools
from podwire.loadbalancer.ranges import parse_range
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeStatus
from podwire.model.selector import LabelSelector
from podwire.model.service import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServiceSpec,
    ServiceStatus,
)

POOL = BalancerPool(name="p", ranges=(parse_range("p", "", "192.0.2.0/24"), parse_range("p", "", "2001:db8::/120")))
NODE = Node(
    metadata=ObjectMeta(name="node-1", labels={"rack": "a"}),
    status=NodeStatus(addresses=(NodeAddress("InternalIP", "10.89.0.11"), NodeAddress("InternalIP", "fd89::11"))),
)
TOR = RouterPeer(name="tor", address=ip_address("10.89.0.1"), my_as=64512, peer_as=64600)
ANYWHERE = Serving(frozenset({"node-1", "node-2"}), anywhere=True)


def service(name: str, *ips: str, policy: str = "Cluster") -> Service:
    return Service(
        metadata=ObjectMeta(name=name, namespace="shop", annotations={"metallb.io/ip-allocated-from-pool": "p"}),
        spec=ServiceSpec(type="LoadBalancer", external_traffic_policy=policy),
        status=ServiceStatus(load_balancer=LoadBalancerStatus(tuple(LoadBalancerIngress(ip=ip) for ip in ips))),
    )


def routes(*services: Service, node: Node = NODE, **fields: object) -> BalancedRoutes:
    keyed = {f"shop/{item.metadata.name}": item for item in services or (service("web", "192.0.2.1"),)}
    default: dict[str, object] = {
        "services": keyed,
        "endpoints": dict.fromkeys(keyed, ANYWHERE),
        "pools": BalancerPools({"p": POOL}),
        "scopes": {"all": BgpScope(name="all")},
        "peers": {"tor": TOR},
    }
    return plan_routes(BgpFacts(**(default | fields)), node)  # type: ignore[arg-type]


def announced(planned: BalancedRoutes) -> list[str]:
    return [str(entry.network) for entry in planned.announcements]


def test_addresses_are_announced_to_routers_of_their_family() -> None:
    six = replace(TOR, name="six", address=ip_address("fd89::1"))
    planned = routes(service("web", "192.0.2.1", "2001:db8::1"), peers={"tor": TOR, "six": six})
    assert announced(planned) == ["192.0.2.1/32", "2001:db8::1/128"]
    assert [(str(s.local), str(s.remote)) for s in planned.routes.sessions] == [
        ("fd89::11", "fd89::1"),
        ("10.89.0.11", "10.89.0.1"),
    ]


@pytest.mark.parametrize(
    ("policy", "serving", "want"),
    [
        ("Cluster", ANYWHERE, ["192.0.2.1/32"]),
        ("Cluster", Serving(frozenset({"node-2"}), anywhere=True), ["192.0.2.1/32"]),
        ("Cluster", Serving(), []),
        ("Local", ANYWHERE, ["192.0.2.1/32"]),
        ("Local", Serving(frozenset({"node-2"}), anywhere=True), []),
    ],
)
def test_endpoints_decide_whether_a_node_announces(policy: str, serving: Serving, want: list[str]) -> None:
    planned = routes(service("web", "192.0.2.1", policy=policy), endpoints={"shop/web": serving})
    assert announced(planned) == want
    assert len(planned.routes.sessions) == 1, "the session stays"


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"scopes": {"a": BgpScope(name="a", node_selectors=(LabelSelector({"rack": "b"}),))}}, []),
        ({"scopes": {"a": BgpScope(name="a", pools=frozenset({"other"}))}}, []),
        ({"scopes": {"a": BgpScope(name="a", peers=frozenset({"other"}))}}, []),
        ({"scopes": {"a": BgpScope(name="a", service_selectors=(LabelSelector({"x": "y"}),))}}, []),
        ({"scopes": {"a": BgpScope(name="a", lengths={4: 24, 6: 64})}}, ["192.0.2.0/24"]),
        ({"peers": {"tor": replace(TOR, node_selectors=(LabelSelector({"rack": "b"}),))}}, []),
    ],
)
def test_selectors_and_aggregation(fields: dict[str, object], want: list[str]) -> None:
    assert announced(routes(service("a", "192.0.2.1"), service("b", "192.0.2.2"), **fields))[:1] == want[:1]  # type: ignore[arg-type]


def test_aggregated_addresses_are_one_route() -> None:
    planned = routes(
        service("a", "192.0.2.1"),
        service("b", "192.0.2.2"),
        scopes={"a": BgpScope(name="a", lengths={4: 24, 6: 128})},
    )
    assert [(str(e.network), e.services) for e in planned.announcements] == [("192.0.2.0/24", ("shop/a", "shop/b"))]


def test_an_excluded_node_has_no_session() -> None:
    labels = {"node.kubernetes.io/exclude-from-external-load-balancers": ""}
    assert routes(node=replace(NODE, metadata=replace(NODE.metadata, labels=labels))) == BalancedRoutes()


def test_communities_add_up_and_preferences_may_not_differ() -> None:
    one = BgpScope(name="a", communities=((64512, 1),), local_pref=100)
    two = BgpScope(name="b", communities=((64512, 1, 2),), local_pref=100)
    planned = routes(scopes={"a": one, "b": two})
    assert [(e.communities, e.local_pref) for e in planned.announcements] == [(((64512, 1), (64512, 1, 2)), 100)]
    planned = routes(scopes={"a": one, "b": replace(two, local_pref=50)})
    assert announced(planned) == []
    assert planned.problems == {
        "shop/web": "192.0.2.1/32 is not announced to BGPPeer tor: advertisements ask for localPref 50 and 100"
    }


def test_the_engine_runs_for_load_balancers_alone() -> None:
    peer = replace(TOR, bfd=BfdTimes(receive_ms=100, transmit_ms=150, multiplier=5), hold_s=9, keepalive_s=3)
    planned = routes(peers={"tor": peer}, scopes={"a": BgpScope(name="a", local_pref=7, communities=((1, 2),))})
    config = BgpConfiguration(
        router_id=ip_address("10.89.0.11"),  # type: ignore[arg-type]
        link="eth0",
        service_networks=planned.routes.networks,
        sessions=planned.routes.sessions,
        log_file="/bird.log",
    )
    text = render(config)
    for line in (
        "protocol static services4 {\n  ipv4;\n  route 192.0.2.1/32 blackhole;\n}",
        "  if net = 192.0.2.1/32 then { bgp_local_pref = 7; bgp_community.add((1, 2)); accept; }",
        '  if proto = "services4" then reject;',
        "  neighbor 10.89.0.1 port 179 as 64600;",
        "  graceful restart off;",
        "  hold time 9; keepalive time 3;",
        "  bfd { min rx interval 100 ms; min tx interval 150 ms; multiplier 5; };",
    ):
        assert line in text, text
    incoming = text.split("\nfilter in_")[1].partition("{")[2].split("}")[0]
    assert incoming.split() == ["if", "net", "~", "[", "192.0.2.1/32+", "]", "then", "reject;", "reject;", "accept;"]


def test_a_session_of_routing_announces_load_balancers_too() -> None:
    own = BgpSession(
        name="peer", local=ip_address("10.89.0.11"), local_as=64512, remote=ip_address("10.89.0.1"), remote_as=64600
    )
    config = BgpConfiguration(
        router_id=ip_address("10.89.0.11"),  # type: ignore[arg-type]
        link="eth0",
        networks=(ip_network("10.244.1.0/24"),),
        sessions=(own,),
        log_file="/bird.log",
    )
    merged = with_services(config, routes().routes)
    rule = RouteRule(version=4, accept=True, network=ip_network("192.0.2.1/32"), operator="equal")
    assert merged.sessions == (replace(own, exports=(rule,)),)
    assert merged.service_networks == (ip_network("192.0.2.1/32"),)


def test_a_session_may_carry_both_families() -> None:
    both = replace(TOR, has_both_families=True)
    web = service("web", "192.0.2.1", "2001:db8::1")
    planned = routes(web, peers={"tor": both})
    assert announced(planned) == ["192.0.2.1/32", "2001:db8::1/128"]
    (session,) = planned.routes.sessions
    assert [str(rule.network) for rule in session.exports] == ["192.0.2.1/32"]
    assert session.second is not None and str(session.second.next_hop) == "fd89::11"
    assert [str(rule.network) for rule in session.second.exports] == ["2001:db8::1/128"]

    four = replace(NODE, status=NodeStatus(addresses=NODE.status.addresses[:1]))
    planned = routes(web, node=four, peers={"tor": both})
    assert announced(planned) == ["192.0.2.1/32"], "without an address of the family there is no next hop"
    assert planned.routes.sessions[0].second is None


@pytest.mark.parametrize(("pods", "want"), [("10.244.1.0/24", False), ("fd00:0:0:1::/64", True)])
def test_a_family_without_pods_is_left_out(pods: str, want: bool) -> None:
    planned = routes(service("web", "2001:db8::1"), peers={"tor": replace(TOR, has_both_families=True)})
    config = BgpConfiguration(
        router_id=ip_address("10.89.0.11"),  # type: ignore[arg-type]
        link="eth0",
        networks=(ip_network("10.244.1.0/24"), ip_network(pods)),
        log_file="/bird.log",
    )
    (session,) = with_services(config, planned.routes).sessions
    assert (session.second is not None) is want
