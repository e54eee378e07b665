"""Pools and blocks read from their objects."""

from ipaddress import ip_address, ip_network

import pytest

from podwire.cluster.blocks import PoolReader, block_name, read_block, read_pool
from podwire.errors import ConfigError
from podwire.model.bgp import IpPoolObject, IpPoolSpec
from podwire.model.ipam import IpamBlock, IpamBlockSpec
from podwire.model.meta import ObjectMeta


def pool(cidr: str, name: str = "p", created: str = "2026-01-01T00:00:00Z", **spec: object) -> IpPoolObject:
    meta = ObjectMeta(name=name, creation_timestamp=created)
    return IpPoolObject(metadata=meta, spec=IpPoolSpec(cidr=cidr, **spec))  # type: ignore[arg-type]


def test_block_sizes_have_the_defaults_of_calico() -> None:
    assert read_pool(pool("10.0.0.0/16")).block_size == 26
    assert read_pool(pool("fd00::/64")).block_size == 122
    assert read_pool(pool("10.0.0.0/16", block_size=28)).block(3) == ip_network("10.0.0.48/28")


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        (pool("10.0.0.1/16"), "spec.cidr"),
        (pool("everything"), "spec.cidr"),
        (pool("10.0.0.0/28"), "spec.blockSize"),
        (pool("10.0.0.0/16", block_size=30), "spec.blockSize"),
        (pool("fd00::/64", block_size=128), "spec.blockSize"),
        (pool("10.0.0.0/16", node_selector="zone = b"), "spec.nodeSelector"),
        (pool("10.0.0.0/16", namespace_selector="has(team)"), "spec.namespaceSelector"),
        (pool("10.0.0.0/16", assignment_mode="Manual"), "spec.assignmentMode"),
    ],
)
def test_wrong_pools_name_the_field(obj: IpPoolObject, field: str) -> None:
    with pytest.raises(ConfigError, match=f"IPPool p: {field}"):
        read_pool(obj)


def test_selector_and_uses_say_who_gets_addresses() -> None:
    zone = read_pool(pool("10.0.0.0/16", node_selector="zone == 'b'"))
    assert zone.is_for({"zone": "b"}) and not zone.is_for({})
    assert not read_pool(pool("10.0.0.0/16", disabled=True)).is_for({})
    assert not read_pool(pool("10.0.0.0/16", allowed_uses=("Tunnel",))).is_for({})


def test_of_overlapping_pools_the_oldest_is_valid() -> None:
    reader = PoolReader()
    old, new = pool("10.0.0.0/16", "z"), pool("10.0.128.0/17", "a", "2026-01-02T00:00:00Z")
    assert [each.name for each in reader.read([new, old])] == ["z"]
    assert "10.0.128.0/17 overlaps IPPool z (10.0.0.0/16)" in reader.problems["a"]
    assert [each.name for each in reader.read([new])] == ["a"]


def test_wrong_pool_keeps_its_last_good_form() -> None:
    reader = PoolReader()
    good = reader.read([pool("10.0.0.0/16")])
    assert reader.read([pool("10.0.0.0/16", block_size=31)]) == good
    assert "31" in reader.problems["p"]


@pytest.mark.parametrize(
    ("cidr", "name"),
    [("10.1.0.64/26", "10-1-0-64-26"), ("fd00::40/122", "fd00-0000-0000-0000-0000-0000-0000-0040-122")],
)
def test_name_of_a_block_follows_from_its_range(cidr: str, name: str) -> None:
    assert block_name(ip_network(cidr)) == name


def block(name: str = "10-0-0-0-26", cidr: str = "10.0.0.0/26", **spec: object) -> IpamBlock:
    fields = IpamBlockSpec(cidr=cidr, pool="p", **spec)  # type: ignore[arg-type]
    return IpamBlock(metadata=ObjectMeta(name=name), spec=fields)


def test_lent_addresses_are_read_by_borrower() -> None:
    lent = {"10.0.0.9": "two", "10.0.0.8": "two", "10.0.0.7": "one"}
    assert read_block(block(lent=lent)).lent_to("two") == (ip_address("10.0.0.8"), ip_address("10.0.0.9"))


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        (block(name="mine"), "metadata.name"),
        (block(cidr="10.0.0.1/26"), "spec.cidr"),
        (block(lent={"10.0.1.1": "two"}), r"spec.lent\[10.0.1.1\]"),
        (block(lent={"somewhere": "two"}), r"spec.lent\[somewhere\]"),
    ],
)
def test_wrong_blocks_name_the_field(obj: IpamBlock, field: str) -> None:
    with pytest.raises(ConfigError, match=f"IPAMBlock {obj.metadata.name}: {field}"):
        read_block(obj)
