"""Pods that cannot look names up."""

import pytest
from tests.unit.policy.check.clusters import CLUSTER, findings_of, ids, index, policy

from podwire.policy.check.lookups import check

_DB = "{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 5432}]}"
_SYSTEM = "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}"
_DNS = """
---
apiVersion: v1
kind: Pod
metadata: {name: names, namespace: kube-system, labels: {app: names}}
spec: {containers: [{name: c, image: i, ports: [{containerPort: 1053, name: dns, protocol: UDP}]}]}
status: {podIP: 10.244.0.53, phase: Running}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.10, selector: {app: names}, ports: [{port: 53, protocol: UDP, targetPort: 1053}]}
"""


_SHOP = f"podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Egress], egress: [{_DB}]"


def out(*rules: str) -> dict[str, object]:
    return policy(
        "shop/p", f"podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Egress], egress: [{','.join(rules)}]"
    )


@pytest.mark.parametrize(
    "rule", ["{ports: [{port: 443}]}", "{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{port: 443}]}"]
)
def test_egress_to_the_outside_alone(rule: str) -> None:
    assert ids(check, out(rule)) == [("no-dns", "spec.egress")]


def test_all_but_private_addresses() -> None:
    rule = "{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]}"
    details = {"pod_cidrs": ("10.244.0.0/16",)}
    assert ids(check, out(rule), **details) == [("no-dns", "spec.egress")]
    assert ids(check, out(rule), pod_cidrs=("172.30.0.0/16",)) == []
    assert ids(check, out("{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}"), **details) == []
    there = {"cluster": CLUSTER + _DNS, "pod_cidrs": ("172.30.0.0/16",)}
    assert ids(check, out(rule), **there) == [("no-dns", "spec.egress")], "cluster DNS has 10.244.0.53"


def test_egress_to_pods_alone() -> None:
    result = findings_of(check, out(_DB))
    assert [item[:2] for item in result] == [("no-dns", "spec.egress")]
    assert "1 pod (shop/web) may connect only where this policy allows" in result[0][2]


@pytest.mark.parametrize(
    "rule",
    [
        f"{{to: [{{{_SYSTEM}}}], ports: [{{port: 53, protocol: UDP}}]}}",
        f"{{to: [{{{_SYSTEM}, podSelector: {{matchLabels: {{k8s-app: kube-dns}}}}}}]}}",
        "{to: [{namespaceSelector: {}}], ports: [{port: 53, protocol: UDP}]}",
        "{ports: [{port: 53, protocol: UDP}]}",
        "{to: [{ipBlock: {cidr: 169.254.20.10/32}}], ports: [{port: 53, protocol: UDP}]}",
        "{}",
    ],
)
def test_rules_that_reach_the_dns_server(rule: str) -> None:
    assert ids(check, out(_DB, rule)) == []


@pytest.mark.parametrize(
    "rule",
    [
        f"{{to: [{{{_SYSTEM}}}], ports: [{{port: 53}}]}}",
        f"{{to: [{{{_SYSTEM}, podSelector: {{matchLabels: {{app: dns}}}}}}]}}",
        "{to: [{podSelector: {}}], ports: [{port: 53, protocol: UDP}]}",
    ],
)
def test_rules_that_do_not_reach_the_dns_server(rule: str) -> None:
    assert ids(check, out(_DB, rule)) == [("no-dns", "spec.egress")]


def test_the_pods_of_cluster_dns_are_those_of_its_service() -> None:
    there = {"cluster": CLUSTER + _DNS}
    by_name = f"{{to: [{{{_SYSTEM}}}], ports: [{{port: dns, protocol: UDP}}]}}"
    by_number = (
        f"{{to: [{{{_SYSTEM}, podSelector: {{matchLabels: {{app: names}}}}}}], ports: [{{port: 1053, protocol: UDP}}]}}"
    )
    other = f"{{to: [{{{_SYSTEM}, podSelector: {{matchLabels: {{k8s-app: kube-dns}}}}}}]}}"
    assert ids(check, out(_DB, by_name), **there) == []
    assert ids(check, out(_DB, by_number), **there) == []
    assert ids(check, out(_DB, other), **there) == [("no-dns", "spec.egress")]


def test_another_policy_may_allow_dns() -> None:
    more = policy("shop/q", f"podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{{{_SYSTEM}}}]}}]")
    names = "protocols: [{udp: {destinationPort: {number: 53}}}]"
    admin = policy("p", f"egress: [{{action: Accept, to: [{{namespaces: {{}}}}], {names}}}]")
    assert ids(check, out(_DB), more) == []
    assert ids(check, out(_DB), admin) == []


def test_a_pod_without_peers_needs_no_dns() -> None:
    assert ids(check, out()) == []
    assert ids(check, out("{to: [{ipBlock: {cidr: 192.0.2.0/24}}]}")) == []


def test_policies_without_their_pods() -> None:
    spec = f"podSelector: {{matchLabels: {{app: till}}}}, policyTypes: [Egress], egress: [{_DB}]"
    dns = f"{{to: [{{{_SYSTEM}}}], ports: [{{port: 53, protocol: UDP}}]}}"
    names = f"podSelector: {{}}, policyTypes: [Egress], egress: [{dns}]"
    details = {"complete": False}
    assert ids(check, policy("till/p", spec), **details) == [("no-dns", "spec.egress")]
    assert ids(check, policy("till/p", spec), policy("till/names", names), **details) == []
    assert ids(check, policy("till/p", spec), policy("other/names", names), **details) == [("no-dns", "spec.egress")]
    assert ids(check, policy("till/p", spec)) == [], "nobody is there"


def test_audited_policy_opens_nothing_and_isolates_once_enforced() -> None:
    names = f"podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{{{_SYSTEM}}}]}}]"
    assert ids(check, out(_DB), policy("shop/q", names, mode="audit")) == [("no-dns", "spec.egress")]
    assert ids(check, policy("shop/p", _SHOP, mode="audit"), policy("shop/q", names, mode="audit")) == []
    (only,) = check(index(policy("shop/p", _SHOP, mode="audit")))
    assert (only.id, only.name) == ("no-dns", "shop/p")
    assert ids(check, policy("shop/p", _SHOP, mode="audit"), policy("shop/q", names)) == []
    accept = "egress: [{action: Accept, to: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 53}}}]}]"
    assert ids(check, out(_DB), policy("a", accept, mode="audit")) == [("no-dns", "spec.egress")]
    assert ids(check, policy("shop/p", _SHOP, mode="audit"), policy("a", accept, mode="audit")) == []
