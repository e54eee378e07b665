"""EgressPolicies as values, and the errors that name the wrong field."""

from ipaddress import ip_address, ip_network

import msgspec
import pytest

from podwire.errors import ConfigError
from podwire.model.egress import EgressPolicy, read_egress_policy
from podwire.model.selector import LabelSelector


def policy(**spec: object) -> EgressPolicy:
    return msgspec.convert({"metadata": {"name": "out"}, "spec": {"egressIPs": ["192.0.2.7"]} | spec}, EgressPolicy)


def test_values_of_a_policy() -> None:
    scope = read_egress_policy(
        policy(
            podSelector={"matchLabels": {"app": "web"}},
            destinationCIDRs=["198.51.100.0/24"],
            excludedCIDRs=["198.51.100.7/32"],
            egressIPs=["192.0.2.7", "2001:db8::7"],
        )
    )
    assert scope.pods == LabelSelector(match_labels={"app": "web"}) and scope.nodes == LabelSelector()
    assert scope.destinations == (ip_network("198.51.100.0/24"),)
    assert scope.excluded == (ip_network("198.51.100.7/32"),)
    assert scope.address(4) == ip_address("192.0.2.7") and scope.address(6) == ip_address("2001:db8::7")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"egressIPs": []}, "spec.egressIPs: is empty; expected one address of each family, or of one"),
        ({"egressIPs": ["1.2.3"]}, "spec.egressIPs[0]: '1.2.3' does not appear to be an IPv4 or IPv6 address"),
        (
            {"egressIPs": ["192.0.2.7", "192.0.2.8"]},
            "spec.egressIPs[1]: 192.0.2.8 is the second IPv4 address; expected one",
        ),
        ({"egressIPs": ["127.0.0.1"]}, "spec.egressIPs[0]: 127.0.0.1 is not an address that other machines can answer"),
        ({"egressIPs": ["ff02::1"]}, "spec.egressIPs[0]: ff02::1 is not an address that other machines can answer"),
        ({"destinationCIDRs": ["10.0.0.1/8"]}, "spec.destinationCIDRs[0]: 10.0.0.1/8 has host bits set"),
        ({"excludedCIDRs": ["x"]}, "spec.excludedCIDRs[0]: 'x' does not appear to be an IPv4 or IPv6 network"),
        (
            {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
            "spec.nodeSelector.matchExpressions[0].operator: 'Near' is none of In, NotIn, Exists, DoesNotExist",
        ),
    ],
)
def test_wrong_policies_are_refused_with_their_field(spec: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_egress_policy(policy(**spec))
    assert str(refused.value) == f"EgressPolicy out: {problem}"
