"""Which node answers for an address: candidates, order, policies, shared addresses."""

import hashlib
from ipaddress import ip_address

import pytest

from podwire.errors import ConfigError
from podwire.loadbalancer.advertisements import L2Scope, read_l2, read_l2_scopes
from podwire.loadbalancer.election import Elector, L2Choice, L2Facts, Serving, addresses_of, serving
from podwire.loadbalancer.pools import BalancerPool, BalancerPools
from podwire.loadbalancer.ranges import parse_range
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.metallb import L2Advertisement, L2AdvertisementSpec, PreferredNodes
from podwire.model.node import Node, NodeStatus
from podwire.model.selector import LabelSelector, Requirement
from podwire.model.service import (
    Endpoint,
    EndpointConditions,
    EndpointSlice,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServiceSpec,
    ServiceStatus,
)

ADDRESS = ip_address("192.0.2.1")
FROM_POOL = {"metallb.io/ip-allocated-from-pool": "p"}
POOLS = BalancerPools({"p": BalancerPool(name="p", ranges=(parse_range("p", "", "192.0.2.0/24"),), labels={"a": "b"})})
NODES = {f"node-{n}": Node(metadata=ObjectMeta(name=f"node-{n}", labels={"zone": f"{n}"})) for n in (1, 2, 3)}
EVERYWHERE = Serving(frozenset(NODES), anywhere=True)


def service(name: str = "web", policy: str = "Cluster", address: str = "192.0.2.1", **labels: str) -> Service:
    return Service(
        metadata=ObjectMeta(name=name, namespace="shop", annotations=FROM_POOL, labels=labels),
        spec=ServiceSpec(type="LoadBalancer", external_traffic_policy=policy),
        status=ServiceStatus(load_balancer=LoadBalancerStatus((LoadBalancerIngress(ip=address),))),
    )


def choose(*services: Service, endpoints: dict[str, Serving] | None = None, **fields: object) -> L2Choice | None:
    keyed = {f"shop/{item.metadata.name}": item for item in services or (service(),)}
    default: dict[str, object] = {
        "services": keyed,
        "endpoints": dict.fromkeys(keyed, EVERYWHERE) if endpoints is None else endpoints,
        "pools": POOLS,
        "scopes": {"all": L2Scope(name="all")},
        "nodes": NODES,
        "alive": frozenset(NODES),
    }
    return Elector().choose(L2Facts(**(default | fields))).get(ADDRESS)  # type: ignore[arg-type]


def order(*names: str) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: hashlib.sha256(f"{name}#192.0.2.1".encode()).digest()))


def test_the_lowest_hash_decides() -> None:
    choice = choose()
    assert choice is not None
    assert (choice.candidates, choice.node) == (order(*NODES), order(*NODES)[0])
    rest = [name for name in NODES if name != choice.node]
    after = choose(alive=frozenset(rest))
    assert after is not None and after.node == order(*rest)[0]


@pytest.mark.parametrize(
    ("fields", "candidates", "reason"),
    [
        ({"alive": frozenset()}, (), "no agent renews its Lease"),
        ({"endpoints": {}}, (), "no endpoint of the Service serves"),
        ({"endpoints": {"shop/web": Serving(frozenset(), anywhere=True)}}, tuple(NODES), ""),
        ({"scopes": {"a": L2Scope(name="a", node_selectors=(LabelSelector({"zone": "2"}),))}}, ("node-2",), ""),
        (
            {"scopes": {"a": L2Scope(name="a", node_selectors=(LabelSelector({"zone": "9"}),))}},
            (),
            "no L2Advertisement selects a node",
        ),
        ({"scopes": {"a": L2Scope(name="a", pool_selectors=(LabelSelector({"a": "b"}),))}}, tuple(NODES), ""),
        (
            {
                "nodes": NODES
                | {
                    "node-1": Node(
                        metadata=ObjectMeta(
                            name="node-1", labels={"node.kubernetes.io/exclude-from-external-load-balancers": ""}
                        )
                    ),
                    "node-2": Node(
                        metadata=ObjectMeta(name="node-2"),
                        status=NodeStatus(conditions=(Condition(type="NetworkUnavailable", status="True"),)),
                    ),
                }
            },
            ("node-3",),
            "",
        ),
    ],
)
def test_candidates(fields: dict[str, object], candidates: tuple[str, ...], reason: str) -> None:
    choice = choose(service(), **fields)  # type: ignore[arg-type]
    assert choice is not None
    assert set(choice.candidates) == set(candidates)
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("endpoints", "candidates"),
    [
        (Serving(frozenset({"node-2"}), anywhere=True), ("node-2",)),
        (Serving(frozenset({"node-9"}), anywhere=True), ()),
        (Serving(), ()),
    ],
)
def test_local_policy_needs_an_endpoint_on_the_node(endpoints: Serving, candidates: tuple[str, ...]) -> None:
    choice = choose(service(policy="Local"), endpoints={"shop/web": endpoints})
    assert choice is not None and choice.candidates == candidates


@pytest.mark.parametrize(
    "scope",
    [
        L2Scope(name="a", pools=frozenset({"other"})),
        L2Scope(name="a", pool_selectors=(LabelSelector({"a": "x"}),)),
        L2Scope(name="a", service_selectors=(LabelSelector({"tier": "front"}),)),
    ],
)
def test_an_address_without_an_advertisement_has_no_choice(scope: L2Scope) -> None:
    assert choose(scopes={"a": scope}) is None


def test_services_that_share_an_address_have_one_node() -> None:
    local = service("dns", "Local")
    endpoints = {"shop/web": EVERYWHERE, "shop/dns": Serving(frozenset({"node-3"}), anywhere=True)}
    choice = choose(service(), local, endpoints=endpoints)
    assert choice is not None
    assert (choice.node, choice.services) == ("node-3", ("shop/dns", "shop/web"))


def test_devices_come_from_the_advertisements_of_the_node() -> None:
    first, second = L2Scope(name="a", interfaces=("eth1",)), L2Scope(name="b", interfaces=("eth2",))
    choice = choose(scopes={"a": first, "b": second})
    assert choice is not None and choice.interfaces == {"eth1", "eth2"}
    choice = choose(scopes={"a": first, "all": L2Scope(name="all")})
    assert choice is not None and choice.interfaces == frozenset()


@pytest.mark.parametrize(
    ("conditions", "want"),
    [
        (EndpointConditions(), True),
        (EndpointConditions(ready=False), False),
        (EndpointConditions(ready=False, serving=True, terminating=True), True),
        (EndpointConditions(ready=True, serving=False), False),
    ],
)
def test_endpoints_that_serve_count(conditions: EndpointConditions, want: bool) -> None:
    item = EndpointSlice(endpoints=(Endpoint(addresses=("10.0.0.1",), conditions=conditions, node_name="node-1"),))
    assert serving([item]) == Serving(frozenset({"node-1"} if want else ()), want)


def test_addresses_of_other_controllers_do_not_count() -> None:
    seen = service()
    assert addresses_of(seen) == (ADDRESS,)
    assert addresses_of(Service(metadata=ObjectMeta(name="x"), spec=seen.spec, status=seen.status)) == ()


def advertisement(name: str, **spec: object) -> L2Advertisement:
    return L2Advertisement(metadata=ObjectMeta(name=name), spec=L2AdvertisementSpec(**spec))  # type: ignore[arg-type]


def test_advertisements_are_read_and_keep_their_last_good_form() -> None:
    good = advertisement("a", ip_address_pools=("p",), interfaces=("eth0",))
    scopes, problems = read_l2_scopes([good], {})
    assert scopes == {"a": read_l2(good)} and not problems
    wrong = advertisement("a", interfaces=("this-name-is-too-long",))
    again, problems = read_l2_scopes([wrong], scopes)
    assert again == scopes
    assert problems["a"].startswith("L2Advertisement a: spec.interfaces[0]: 'this-name-is-too-long'")
    selector = LabelSelector(match_expressions=(Requirement(key="a", operator="Is"),))
    _, problems = read_l2_scopes([advertisement("a", node_selectors=(selector,))], {})
    assert "spec.nodeSelectors[0].matchExpressions[0].operator: 'Is'" in problems["a"]


def test_preferred_nodes_come_before_the_hash() -> None:
    last = order(*NODES)[-1]
    zone = NODES[last].metadata.labels["zone"]
    scope = read_l2(
        L2Advertisement(
            metadata=ObjectMeta(name="all"),
            spec=L2AdvertisementSpec(
                preferred_node_selectors=(
                    PreferredNodes(weight=60, preference=LabelSelector(match_labels={"zone": zone})),
                )
            ),
        )
    )
    choice = choose(scopes={"all": scope})
    assert choice is not None
    assert choice.candidates == (last, *order(*NODES)[:-1])
    rest = frozenset(NODES) - {last}
    choice = choose(scopes={"all": scope}, alive=rest)
    assert choice is not None
    assert choice.candidates == order(*rest)


def test_weights_of_all_advertisements_add_up() -> None:
    first, second, third = order(*NODES)

    def scope(name: str, weight: int, node: str, **fields: object) -> L2Scope:
        labels = {"zone": NODES[node].metadata.labels["zone"]}
        preferred = PreferredNodes(weight=weight, preference=LabelSelector(match_labels=labels))
        return L2Scope(name=name, preferred=(preferred,), **fields)  # type: ignore[arg-type]

    scopes = {
        "a": scope("a", 40, third, service_selectors=(LabelSelector(match_labels={"app": "other"}),)),
        "b": scope("b", 40, third),
        "c": scope("c", 70, second),
        "d": scope("d", 100, first, pools=frozenset({"other"})),
    }
    choice = choose(scopes=scopes)
    assert choice is not None
    assert choice.candidates == (third, second, first)


@pytest.mark.parametrize("weight", [0, 101])
def test_a_weight_out_of_range_is_refused(weight: int) -> None:
    spec = L2AdvertisementSpec(preferred_node_selectors=(PreferredNodes(weight=weight),))
    with pytest.raises(ConfigError, match=r"spec.preferredNodeSelectors\[0\].weight: .*expected 1 to 100"):
        read_l2(L2Advertisement(metadata=ObjectMeta(name="all"), spec=spec))
