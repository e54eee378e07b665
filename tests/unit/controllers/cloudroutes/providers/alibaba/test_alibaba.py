"""The client of Alibaba Cloud and both of its providers, against an HTTP server written by the API references.

The cloud itself has never been asked.
"""

import asyncio
import datetime
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.alibaba_cloud import CLUSTER, KEY, REGION, SECRET, AlibabaCloud, served

from podwire.cluster.cloudinterfaces import NodeInterfaces
from podwire.controllers.cloudaddresses import plan as addressplan
from podwire.controllers.cloudroutes.execution import SyncOutcome, carry_out
from podwire.controllers.cloudroutes.plan import CloudNode, plan
from podwire.controllers.cloudroutes.providers.alibaba import signature
from podwire.controllers.cloudroutes.providers.alibaba.addresses import AlibabaAddresses
from podwire.controllers.cloudroutes.providers.alibaba.api import ECS, AlibabaApi
from podwire.controllers.cloudroutes.providers.alibaba.options import AlibabaOptions
from podwire.controllers.cloudroutes.providers.alibaba.provider import AlibabaRouteTables
from podwire.controllers.cloudroutes.registry import make_address_provider, make_provider
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError, CloudUnavailable, ConfigError
from podwire.observe.log import Log

PODS = (ip_network("10.244.0.0/16"),)
TARGETS = addressplan.AddressTargets(warm=2)
SETTINGS = CloudSettings(provider="alibaba", cluster=CLUSTER)


@pytest.fixture
def cloud() -> AlibabaCloud:
    return AlibabaCloud()


@pytest.fixture
def options(cloud: AlibabaCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[AlibabaOptions]:
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET)
    monkeypatch.setattr("podwire.controllers.cloudroutes.providers.alibaba.addresses._POLL_S", 0.01)
    with served(cloud) as address:
        yield AlibabaOptions(region=REGION, ecs_endpoint=address, vpc_endpoint=address, metadata_endpoint=address)


def test_the_example_of_the_api_reference_has_its_signature() -> None:
    parameters = {
        "Timestamp": "2016-02-23T12:46:24Z",
        "Format": "XML",
        "AccessKeyId": "testid",
        "Action": "DescribeRegions",
        "SignatureMethod": "HMAC-SHA1",
        "SignatureNonce": "3ee8c1b8-83d3-44af-a94f-4e0ad82fd6cf",
        "Version": "2014-05-26",
        "SignatureVersion": "1.0",
    }
    assert signature.signature(parameters, "testsecret", "GET") == "OLeaidS1JvxuMvnyHOwuJ+uX5qY="


def test_lists_and_fields_become_numbered_parameters() -> None:
    assert signature.flattened({"Tag": [{"Key": "a b", "Value": 1}, {"Key": "c"}], "On": True, "Empty": ""}) == {
        "Tag.1.Key": "a b",
        "Tag.1.Value": "1",
        "Tag.2.Key": "c",
        "On": "true",
    }
    assert signature.canonical_query({"b": "a b*~/", "A": "ü"}) == "A=%C3%BC&b=a%20b%2A~%2F"


def test_credentials_of_a_role_are_read_before_they_expire(cloud: AlibabaCloud, options: AlibabaOptions) -> None:
    now = datetime.datetime(2029, 12, 31, 23, 50, tzinfo=datetime.UTC)
    api = AlibabaApi(replace(options, ram_role="nodes"), lambda: now)
    asked: dict[str, Any] = {"InstanceTypes": ["ecs.small"]}
    for _ in range(2):
        assert api.call(ECS, "DescribeInstanceTypes", **asked)["RequestId"] == "1"
    now += datetime.timedelta(minutes=6)
    api.call(ECS, "DescribeInstanceTypes", **asked)
    assert cloud.log.count("metadata") == 2
    with pytest.raises(CloudUnavailable, match="404"):
        AlibabaApi(replace(options, ram_role="nobody")).call(ECS, "DescribeInstanceTypes", **asked)


@pytest.mark.parametrize(
    ("environment", "region", "problem"),
    [
        ({}, REGION, "no credentials: expected cloud.options.ramRole"),
        ({"x": "y"}, "", "cloud.options.region: is empty"),
    ],
)
def test_missing_settings_are_named(
    environment: dict[str, str], region: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALIBABA_CLOUD_ACCESS_KEY_ID", raising=False)
    with pytest.raises(ConfigError, match=problem):
        make_provider(replace(SETTINGS, options={"region": region}))
    with pytest.raises(ConfigError, match=problem):
        make_address_provider(replace(SETTINGS, pods="interfaces", options={"region": region}))


def test_refusals_and_outages_are_told_apart(cloud: AlibabaCloud, options: AlibabaOptions) -> None:
    api = AlibabaApi(options)
    for code, status, kind in (
        ("InvalidParameter", 400, CloudError),
        ("Throttling.User", 400, CloudUnavailable),
        ("Forbidden.RAM", 403, CloudUnavailable),
        ("Unknown", 503, CloudUnavailable),
    ):
        with cloud.refusing("DescribeVpcs", code, status), pytest.raises(CloudError, match=code) as failure:
            api.call(ECS, "DescribeVpcs")
        assert type(failure.value) is kind
    wrong = replace(options, ecs_endpoint="http://127.0.0.1:9")
    with pytest.raises(CloudUnavailable, match="refused"):
        AlibabaApi(wrong).call(ECS, "DescribeVpcs")


# Routes


def node(provider: AlibabaRouteTables, number: int, provider_id: str) -> CloudNode:
    return CloudNode(
        name=f"node-{number}",
        instance=provider.instance(provider_id),
        addresses=(f"10.89.0.{10 + number}",),
        networks=(ip_network(f"10.244.{number}.0/24"),),
    )


def settle(provider: AlibabaRouteTables, *nodes: CloudNode) -> SyncOutcome:
    """Runs until nothing changes; returns the first outcome."""
    outcomes = []
    for _ in range(5):
        planned = plan(nodes, provider.read({each.instance for each in nodes}), PODS)
        outcomes.append(asyncio.run(carry_out(provider, planned, Log("test"))))
        if not outcomes[-1].changes:
            return outcomes[0]
    raise AssertionError("the cloud's state does not settle")


def test_routes_follow_nodes_and_foreign_ones_stay(cloud: AlibabaCloud, options: AlibabaOptions) -> None:
    provider = AlibabaRouteTables(SETTINGS, options)
    nodes = [node(provider, number, cloud.run(f"10.89.0.{10 + number}")) for number in range(1, 6)]
    stranger = provider.instance(cloud.run("10.89.0.99"))
    foreign = {"10.244.200.0/24": "10.89.0.99", "10.99.0.0/24": "10.89.0.99"}
    for destination in foreign:
        cloud.lead(destination, stranger)
    assert settle(provider, *nodes).changes == 10, "a mark and a route for each"
    assert cloud.routes() == foreign | {f"10.244.{n}.0/24": f"10.89.0.{10 + n}" for n in range(1, 6)}
    assert cloud.tags("10.89.0.11") == {f"podwire.io/cluster/{CLUSTER}": "routes"} and not cloud.tags("10.89.0.99")
    cloud.vanish("10.89.0.15")
    moved = replace(nodes[0], networks=nodes[1].networks)
    settle(provider, moved, *nodes[2:4])
    assert cloud.routes() == foreign | {
        "10.244.2.0/24": "10.89.0.11",
        "10.244.3.0/24": "10.89.0.13",
        "10.244.4.0/24": "10.89.0.14",
    }
    settle(provider)
    assert cloud.routes() == foreign and not cloud.tags("10.89.0.11") and not cloud.tags("10.89.0.13")


def test_a_full_table_is_named_by_its_quota(cloud: AlibabaCloud, options: AlibabaOptions) -> None:
    provider, cloud.quota = AlibabaRouteTables(SETTINGS, replace(options, route_tables=("vtb-1",))), 1
    nodes = [node(provider, number, cloud.run(f"10.89.0.{10 + number}")) for number in (1, 2)]
    outcome = settle(provider, *nodes)
    assert list(outcome.problems) == ["node-2"] and "table vtb-1 is full, see the quota" in outcome.problems["node-2"]
    with pytest.raises(ValueError, match=r"expected cn-hangzhou\.i-bp1"):
        provider.instance("aws:///eu-central-1a/i-0123456789abcdef0")


# Interfaces


class Stopped(Exception):
    """The end of a run in the middle, because the cloud answers no more."""


def balance(
    provider: AlibabaAddresses, *demands: addressplan.NodeDemand, targets: addressplan.AddressTargets = TARGETS
) -> dict[str, NodeInterfaces]:
    """Runs until nothing changes; returns what the nodes have then."""
    for _ in range(9):
        planned = addressplan.plan(demands, provider.read({each.instance for each in demands}), targets)
        outcome = asyncio.run(carry_out(provider, planned, Log("test")))
        if outcome.unavailable:
            raise Stopped
        assert not outcome.failures and not outcome.problems, outcome
        if not outcome.changes:
            return dict(planned.have)
    raise AssertionError("the cloud's state does not settle")


def demand(provider: AlibabaAddresses, cloud: AlibabaCloud, number: int, pods: int) -> addressplan.NodeDemand:
    provider_id = cloud.run(f"10.89.0.{10 + number}")
    return addressplan.NodeDemand(name=f"node-{number}", instance=provider.instance(provider_id), pods=pods)


def test_nodes_get_interfaces_and_addresses_for_their_pods(cloud: AlibabaCloud, options: AlibabaOptions) -> None:
    provider = AlibabaAddresses(SETTINGS, options)
    nodes = [demand(provider, cloud, number, pods=4) for number in (1, 2)]
    have = balance(provider, *nodes)
    for name in ("node-1", "node-2"):
        first, second = have[name].interfaces
        assert [(each.index, len(each.pods), each.gateway) for each in (first, second)] == [
            (1, 3, "10.89.0.253"),
            (2, 3, "10.89.0.253"),
        ]
        assert first.address.endswith("/24") and have[name].networks == ("10.89.0.0/16",)
    assert balance(provider, *nodes) == have, "nothing is left to change"
    balance(provider)
    assert cloud.further() == [] and len(cloud.interfaces) == 2


def test_interfaces_get_addresses_of_both_families(options: AlibabaOptions) -> None:
    cloud = AlibabaCloud(network6="fd89::/56")
    with served(cloud) as address:
        settings = replace(SETTINGS, ipv6=True)
        provider = AlibabaAddresses(settings, replace(options, ecs_endpoint=address, vpc_endpoint=address))
        targets = addressplan.AddressTargets(warm=2, ipv6=True)
        node = demand(provider, cloud, 1, pods=1)
        have = balance(provider, node, targets=targets)["node-1"]
    four, six = have.interfaces
    assert (len(four.pods), len(six.pods), four.mac) == (3, 3, six.mac)
    assert (six.address, six.gateway) == ("", "fd89::1:ffff:ffff:ffff:fffd")
    assert have.networks == ("10.89.0.0/16", "fd89::/56")


def test_a_stop_between_two_calls_leaves_no_interface(cloud: AlibabaCloud, options: AlibabaOptions) -> None:
    provider = AlibabaAddresses(SETTINGS, options)
    node = demand(provider, cloud, 1, pods=3)
    for calls in range(9):
        for demands in ((node,), ()):
            cloud.writes_left = calls
            try:
                balance(provider, *demands)
            except Stopped:
                cloud.writes_left = None
                balance(provider, *demands)
            cloud.writes_left = None
            numbers = sorted(len(each["PrivateIpSets"]["PrivateIpSet"]) for each in cloud.further())
            assert numbers == ([3, 4] if demands else [])
    assert not cloud.tags("10.89.0.11")


def test_interfaces_of_others_are_not_touched_and_have_room(cloud: AlibabaCloud, options: AlibabaOptions) -> None:
    provider = AlibabaAddresses(SETTINGS, options)
    node = demand(provider, cloud, 1, pods=1)
    routes = AlibabaRouteTables(SETTINGS, options)
    routes.apply(
        plan([CloudNode(name="n", instance=node.instance, networks=PODS)], routes.read({node.instance}), PODS).changes[
            0
        ][0]
    )
    other = cloud.create("10.89.0.90", "Secondary", {}, "InUse", node.instance)
    (own,) = balance(provider, node)["node-1"].interfaces
    assert own.index == 1 and len(own.pods) == 3
    planned = addressplan.plan([replace(node, pods=9)], provider.read({node.instance}), TARGETS)
    assert "its type has 3 interfaces with 4 addresses" in planned.problems["node-1"]
    balance(provider)
    assert [each["NetworkInterfaceId"] for each in cloud.further()] == [other]
    assert cloud.tags("10.89.0.11") == {f"podwire.io/cluster/{CLUSTER}": "routes"}, "another controller's mark"
