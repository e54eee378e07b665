"""IPAddressPools as values: forms of ranges, refusals with the field, overlaps, last good forms."""

import pytest

from podwire.errors import ConfigError
from podwire.loadbalancer.pools import read_pool, read_pools
from podwire.loadbalancer.ranges import parse_range, usable_size
from podwire.model.meta import ObjectMeta
from podwire.model.metallb import IpAddressPool, IpAddressPoolSpec, ServiceAllocation
from podwire.model.selector import LabelSelector, Requirement


def pool(name: str, *addresses: str, created: str = "", **spec: object) -> IpAddressPool:
    return IpAddressPool(
        metadata=ObjectMeta(name=name, creation_timestamp=created or None),
        spec=IpAddressPoolSpec(addresses=addresses, **spec),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("text", "want", "size"),
    [
        ("192.0.2.0/24", "192.0.2.0-192.0.2.255", 256),
        ("192.0.2.9/24", "192.0.2.0-192.0.2.255", 256),
        ("192.0.2.10 - 192.0.2.20", "192.0.2.10-192.0.2.20", 11),
        ("192.0.2.7-192.0.2.7", "192.0.2.7-192.0.2.7", 1),
        ("2001:db8::/64", "2001:db8::-2001:db8::ffff:ffff:ffff:ffff", 1 << 64),
        ("2001:db8::1-2001:db8::f", "2001:db8::1-2001:db8::f", 15),
    ],
)
def test_ranges_have_two_forms(text: str, want: str, size: int) -> None:
    entry = parse_range("pool", "spec.addresses[0]", text)
    assert (str(entry), entry.size) == (want, size)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"addresses": ()}, r"IPAddressPool p: spec.addresses: is empty"),
        ({"addresses": ("192.0.2.1",)}, r"spec.addresses\[0\]: '192.0.2.1' is one address; write 192.0.2.1/32"),
        ({"addresses": ("192.0.2.9-192.0.2.1",)}, "ends before it begins"),
        ({"addresses": ("192.0.2.9-2001:db8::1",)}, "ends of two families"),
        ({"addresses": ("192.0.2.0/24", "x-y")}, r"spec.addresses\[1\]"),
        ({"addresses": ("fe80::1%eth0/64",)}, "has a zone"),
        (
            {"addresses": ("192.0.2.0/24", "192.0.2.9/32")},
            r"addresses\[1\]: 192.0.2.9/32 overlaps 192.0.2.0-192.0.2.255",
        ),
        (
            {"addresses": ("192.0.2.0/24",), "service_allocation": ServiceAllocation(priority=-1)},
            "spec.serviceAllocation.priority: -1: expected 0 or more",
        ),
        (
            {
                "addresses": ("192.0.2.0/24",),
                "service_allocation": ServiceAllocation(
                    service_selectors=(LabelSelector(match_expressions=(Requirement(key="a", operator="Is"),)),)
                ),
            },
            r"serviceSelectors\[0\].matchExpressions\[0\].operator: 'Is' is none of In, NotIn",
        ),
    ],
)
def test_refusals_name_the_field(spec: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_pool(IpAddressPool(metadata=ObjectMeta(name="p"), spec=IpAddressPoolSpec(**spec)))  # type: ignore[arg-type]


def test_the_younger_of_two_overlapping_pools_is_refused() -> None:
    read = read_pools([pool("a", "192.0.2.0/24", created="2"), pool("b", "192.0.2.128/25", created="1")], {})
    assert list(read.by_name) == ["b"]
    assert str(read.problems["a"]).endswith("overlaps the IPAddressPool b; an address may be in one pool only")


def test_a_wrong_pool_keeps_its_last_good_form() -> None:
    good = read_pools([pool("a", "192.0.2.0/24")], {})
    read = read_pools([pool("a", "nonsense")], good.by_name)
    assert read.by_name == good.by_name
    assert "spec.addresses[0]" in str(read.problems["a"])
    assert read_pools([], good.by_name).by_name == {}


def test_a_last_good_form_gives_way_to_older_pools() -> None:
    good = read_pools([pool("b", "192.0.2.0/24", created="2")], {})
    read = read_pools([pool("b", "nonsense", created="2"), pool("a", "192.0.2.7/32", created="1")], good.by_name)
    assert list(read.by_name) == ["a"]


@pytest.mark.parametrize(
    ("text", "want"),
    [("192.0.2.0/24", 254), ("192.0.2.1-192.0.2.254", 254), ("10.0.0.255-10.0.1.0", 0), ("10.0.0.0/16", 65536 - 512)],
)
def test_addresses_that_look_like_networks_are_not_counted(text: str, want: int) -> None:
    entry = parse_range("pool", "", text)
    assert usable_size((entry,), 4, avoid_buggy=True) == want
