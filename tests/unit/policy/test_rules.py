"""Policies as rules that are ready to be matched."""

import msgspec

from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.model.selector import LabelSelector
from podwire.policy.ports import EVERYTHING, selection
from podwire.policy.rules import cluster_network_policy, network_policy, node_selector
from podwire.policy.selectors import SelectorIndex


def index() -> SelectorIndex:
    return SelectorIndex(lambda _: {})


def test_directions_that_are_no_type_have_no_rules() -> None:
    spec = {"policyTypes": ["Egress"], "ingress": [{}], "egress": []}
    policy = msgspec.convert({"metadata": {"name": "a", "namespace": "shop"}, "spec": spec}, NetworkPolicy)
    created = network_policy(policy, index())
    assert created.rules == {"Egress": ()}
    assert created.key == "shop/a"


def test_ports_are_numbers_and_names() -> None:
    ports = [{"port": 80}, {"port": 90, "endPort": 99, "protocol": "UDP"}, {"port": "http"}, {"protocol": "SCTP"}]
    policy = msgspec.convert({"spec": {"ingress": [{"ports": ports}, {}]}}, NetworkPolicy)
    first, second = network_policy(policy, index()).rules["Ingress"]
    assert first.ports == selection({"TCP": [(80, 80)], "UDP": [(90, 99)], "SCTP": [(0, 65535)]})
    assert first.names == (("http", "TCP"),)
    assert first.ports_for((("http", "TCP", 8080),)).ports[0] == ("TCP", ((80, 80), (8080, 8080)))
    assert second.ports == EVERYTHING
    assert second.everyone


def test_selectors_are_released() -> None:
    known = index()
    policy = msgspec.convert(
        {"metadata": {"namespace": "shop"}, "spec": {"ingress": [{"from": [{"podSelector": {}}]}]}}, NetworkPolicy
    )
    created = network_policy(policy, known)
    assert created.subject in known.matching("shop", {})
    created.release(known)
    again = network_policy(policy, known)
    assert again.subject != created.subject


def cluster(*egress: dict[str, object]) -> ClusterNetworkPolicy:
    spec = {"tier": "Admin", "priority": 3, "subject": {"namespaces": {}}, "egress": list(egress)}
    return msgspec.convert({"metadata": {"name": "x"}, "spec": spec}, ClusterNetworkPolicy)


def test_kinds_of_cluster_peers() -> None:
    policy = cluster(
        {
            "action": "Deny",
            "to": [{"networks": ["10.0.0.0/8"]}, {"nodes": {"matchLabels": {"a": "b"}}}, {"namespaces": {}}],
        }
    )
    (rule,) = cluster_network_policy(policy, index()).rules["Egress"]
    assert [block.cidr for block in rule.blocks] == ["10.0.0.0/8"]
    assert node_selector(rule.nodes[0]) == LabelSelector(match_labels={"a": "b"})
    assert len(rule.selectors) == 1
    assert not rule.everyone


def test_unknown_fields_fail_closed() -> None:
    newer = [{"domainNames": ["example.com"]}]
    policy = cluster(
        {"action": "Accept", "to": newer}, {"action": "Pass", "to": newer}, {"action": "Deny", "to": newer}
    )
    accept, passing, deny = cluster_network_policy(policy, index()).rules["Egress"]
    assert (accept.action, accept.everyone) == ("Accept", False)
    assert (passing.action, passing.everyone) == ("Deny", True)
    assert (deny.action, deny.everyone, deny.ports) == ("Deny", True, EVERYTHING)
