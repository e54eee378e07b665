"""Which addresses Services get: order of pools, requests, sharing, families, and that nothing is handed out twice."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import LoadBalancerError
from podwire.loadbalancer.allocation import Allocation, Allocator
from podwire.loadbalancer.pools import BalancerPool, BalancerPools
from podwire.loadbalancer.ranges import Address, parse_range
from podwire.loadbalancer.request import AddressRequest
from podwire.model.selector import LabelSelector


def pool(name: str, *ranges: str, **fields: object) -> BalancerPool:
    return BalancerPool(name=name, ranges=tuple(parse_range(name, "", text) for text in ranges), **fields)  # type: ignore[arg-type]


def request(name: str = "a", /, **fields: object) -> AddressRequest:
    default: dict[str, object] = {"key": f"shop/{name}", "namespace": "shop", "families": (4,)}
    default["ports"] = frozenset({("TCP", 80)})
    return AddressRequest(**(default | fields))  # type: ignore[arg-type]


def allocator(*pools: BalancerPool, namespaces: dict[str, dict[str, str]] | None = None) -> Allocator:
    result = Allocator()
    result.configure(BalancerPools({item.name: item for item in pools}), namespaces or {"shop": {"team": "web"}})
    return result


def addresses(*texts: str) -> tuple[Address, ...]:
    return tuple(ip_address(text) for text in texts)


def take(allocations: Allocator, wanted: AddressRequest, *current: str) -> list[str]:
    allocation = allocations.allocate(wanted, addresses(*current))
    allocations.hold(wanted.key, allocation.addresses, wanted)
    return [allocation.pool, *map(str, allocation.addresses)]


def test_the_lowest_free_address_decides() -> None:
    allocations = allocator(pool("p", "192.0.2.10-192.0.2.12"))
    names = "abc"
    assert [take(allocations, request(name))[1] for name in names] == ["192.0.2.10", "192.0.2.11", "192.0.2.12"]
    with pytest.raises(LoadBalancerError, match="no available IPs"):
        allocations.allocate(request("d"))
    assert allocations.release("shop/b") == addresses("192.0.2.11")
    assert take(allocations, request("d")) == ["p", "192.0.2.11"]


def test_pools_that_select_the_service_come_first_by_priority() -> None:
    pools = (
        pool("any", "192.0.2.0/28"),
        pool("late", "192.0.2.16/28", pinned=True, priority=0, namespaces=frozenset({"shop"})),
        pool("second", "192.0.2.32/32", pinned=True, priority=20, namespaces=frozenset({"shop"})),
        pool("first", "192.0.2.48/32", pinned=True, priority=10, service_selectors=(LabelSelector({"app": "web"}),)),
        pool("elsewhere", "192.0.2.64/28", pinned=True, priority=1, namespaces=frozenset({"other"})),
        pool("manual", "192.0.2.80/28", auto_assign=False, pinned=True, priority=1, namespaces=frozenset({"shop"})),
    )
    allocations = allocator(*pools)
    labels = {"app": "web"}
    chosen = [take(allocations, request(name, labels=labels))[0] for name in ("a", "b", "c")]
    assert chosen == ["first", "second", "late"]
    assert take(allocations, request("d", namespace="none"))[0] == "any"


@pytest.mark.parametrize(
    ("labels", "namespace", "want"),
    [({"tier": "x"}, "shop", True), ({"tier": "y"}, "shop", False), ({"tier": "x"}, "other", False)],
)
def test_namespace_and_service_selectors_must_both_match(labels: dict[str, str], namespace: str, want: bool) -> None:
    only = pool(
        "p",
        "192.0.2.0/24",
        pinned=True,
        namespace_selectors=(LabelSelector({"team": "web"}),),
        service_selectors=(LabelSelector({"tier": "x"}),),
    )
    allocations = allocator(only)
    try:
        assert take(allocations, request(labels=labels, namespace=namespace)) and want
    except LoadBalancerError:
        assert not want


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"addresses": addresses("198.51.100.1")}, '"198.51.100.1" is not allowed in config'),
        ({"addresses": addresses("192.0.2.1"), "pool": "v6"}, 'is in the pool "p", not in "v6"'),
        ({"addresses": addresses("192.0.2.1")}, "address also in use by shop/b"),
        ({"pool": "gold"}, 'unknown pool "gold"'),
        ({"pool": "v6"}, 'no available IPs in pool "v6" for IPv4 IPFamily'),
        ({"pool": "pinned"}, "pool pinned not compatible for ip assignment"),
        ({"addresses": addresses("203.0.113.1")}, "pool pinned not compatible for ip assignment"),
        ({"addresses": addresses("192.0.2.3", "2001:db8::1"), "families": (4, 6)}, "are in different pools"),
        ({"families": (4, 6)}, "no available IPs"),
    ],
)
def test_refusals_say_why(fields: dict[str, object], message: str) -> None:
    allocations = allocator(
        pool("p", "192.0.2.0/24"),
        pool("v6", "2001:db8::/120"),
        pool("pinned", "203.0.113.0/24", pinned=True, namespaces=frozenset({"other"})),
    )
    take(allocations, request("b", addresses=addresses("192.0.2.1")))
    with pytest.raises(LoadBalancerError, match=message):
        allocations.allocate(request("a", **fields))


def test_requested_addresses_and_pools_ignore_auto_assign() -> None:
    allocations = allocator(pool("p", "192.0.2.0/24", auto_assign=False))
    assert take(allocations, request("a", addresses=addresses("192.0.2.9"))) == ["p", "192.0.2.9"]
    assert take(allocations, request("b", pool="p")) == ["p", "192.0.2.0"]
    with pytest.raises(LoadBalancerError, match="no available IPs"):
        allocations.allocate(request("c"))


def test_addresses_that_look_like_networks_are_left_out() -> None:
    allocations = allocator(pool("p", "192.0.2.254-192.0.3.1", avoid_buggy=True))
    assert take(allocations, request("a")) == ["p", "192.0.2.254"]
    assert take(allocations, request("b")) == ["p", "192.0.3.1"]


@pytest.mark.parametrize(
    ("current", "fields", "want"),
    [
        (("192.0.2.9",), {}, ["192.0.2.9"]),
        (("192.0.2.9",), {"pool": "p"}, ["192.0.2.9"]),
        (("192.0.2.9",), {"pool": "q"}, ["198.51.100.0"]),
        (("192.0.2.9",), {"addresses": addresses("192.0.2.8")}, ["192.0.2.8"]),
        (("203.0.113.9",), {}, ["192.0.2.0"]),
        (("192.0.2.7",), {}, ["192.0.2.0"]),
        (("192.0.2.9",), {"families": (4,), "optional": (6,)}, ["192.0.2.9", "2001:db8::"]),
        (("2001:db8::5",), {"families": (4,), "optional": (6,)}, ["192.0.2.0", "2001:db8::"]),
        (("192.0.2.9", "2001:db8::9"), {}, ["192.0.2.0"]),
        (("192.0.2.9",), {"families": (4, 6)}, ["192.0.2.0", "2001:db8::"]),
    ],
)
def test_present_addresses_stay_while_they_are_valid(
    current: tuple[str, ...], fields: dict[str, object], want: list[str]
) -> None:
    allocations = allocator(pool("p", "192.0.2.0/24", "2001:db8::/120"), pool("q", "198.51.100.0/24"))
    allocations.hold("other/x", addresses("192.0.2.7"))
    assert take(allocations, request("a", **fields), *current)[1:] == want


def test_services_share_an_address_by_key() -> None:
    allocations = allocator(pool("p", "192.0.2.0/24"))
    shared = {"sharing": "k"}
    assert take(allocations, request("a", **shared))[1] == "192.0.2.0"
    assert take(allocations, request("b", **shared, ports=frozenset({("UDP", 80)})))[1] == "192.0.2.0"
    assert take(allocations, request("c", **shared, ports=frozenset({("TCP", 80)})))[1] == "192.0.2.1"
    assert take(allocations, request("d", sharing="other", ports=frozenset({("TCP", 81)})))[1] == "192.0.2.2"
    assert take(allocations, request("e", **shared, ports=frozenset({("TCP", 81)}), backend="x=y"))[1] == "192.0.2.3"
    assert take(allocations, request("f", **shared, ports=frozenset({("TCP", 82)})))[1] == "192.0.2.0"
    assert allocations.release("shop/a") == ()
    assert set(allocations.holders(ip_address("192.0.2.0"))) == {"shop/b", "shop/f"}


def test_an_unread_holder_shares_with_nobody() -> None:
    allocations = allocator(pool("p", "192.0.2.0/31"))
    allocations.hold("shop/unknown", addresses("192.0.2.0"))
    assert take(allocations, request("a", sharing="k"))[1] == "192.0.2.1"


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from(["allocate", "release", "pools"]),
        st.sampled_from(["", "k", "m"]),
        st.sampled_from([80, 81]),
        st.sampled_from(["", "192.0.2.2", "192.0.2.9"]),
        st.sampled_from([(4,), (6,), (4, 6)]),
    ),
    max_size=40,
)


@given(STEPS)
def test_no_address_is_handed_out_twice(steps: list[tuple[str, str, str, int, str, tuple[int, ...]]]) -> None:
    allocations = allocator(pool("p", "192.0.2.0/29", "2001:db8::/125"))
    held: dict[str, tuple[AddressRequest, Allocation]] = {}
    for name, verb, sharing, port, address, families in steps:
        key = f"shop/{name}"
        if verb == "release":
            allocations.release(key)
            held.pop(key, None)
            continue
        if verb == "pools":
            allocations.configure(BalancerPools({"q": pool("q", "192.0.2.0/28", "2001:db8::/125")}), {})
            continue
        texts = addresses(address) if address and families == (4,) else ()
        wanted = request(name, sharing=sharing, ports=frozenset({("TCP", port)}), addresses=texts, families=families)
        current = allocations.addresses_of(key)
        allocations.release(key)
        held.pop(key, None)
        try:
            allocation = allocations.allocate(wanted, current)
        except LoadBalancerError:
            continue
        allocations.hold(key, allocation.addresses, wanted)
        held[key] = (wanted, allocation)
        assert tuple(a.version for a in allocation.addresses) == families
    for key, (mine, allocation) in held.items():
        for other_key, (other, theirs) in held.items():
            if key != other_key and set(allocation.addresses) & set(theirs.addresses):
                assert mine.sharing == other.sharing != ""
                assert not mine.ports & other.ports
