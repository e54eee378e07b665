"""Both kinds of policies in one form."""

from tests.unit.policy.check.clusters import index, policy

from podwire.policy.check.finding import Finding
from podwire.policy.check.outline import outline


def test_paths_name_the_fields_of_the_manifest() -> None:
    spec = (
        "podSelector: {}, policyTypes: [Egress], ingress: [{}], egress: [{}, {to: [{ipBlock: {cidr: 192.0.2.0/24}}, "
        "{namespaceSelector: {}, podSelector: {}}], ports: [{port: http}, {port: 80, endPort: 90}]}]"
    )
    result = outline(index(policy("shop/p", spec)).world.policies[0])
    assert [rule.path for rule in result.rules] == ["spec.egress[0]", "spec.egress[1]"]
    rule = result.rules[1]
    assert rule.peers[0].blocks[0][0] == "spec.egress[1].to[0].ipBlock"
    assert rule.peers[1].pods_path == "spec.egress[1].to[1].podSelector"
    assert rule.peers[1].namespaces_path == "spec.egress[1].to[1].namespaceSelector"
    assert [port.path for port in rule.ports] == ["spec.egress[1].ports[0]", "spec.egress[1].ports[1]"]
    assert rule.names == {("http", "TCP")}
    assert rule.numbers.ports == (("TCP", ((80, 90),)),)


def test_a_finding_is_printed_as_one_line() -> None:
    finding = Finding(
        id="no-dns", severity="warning", kind="NetworkPolicy", name="shop/p", field="spec.egress", text="t", where="f:3"
    )
    assert str(finding) == "f:3: warning: NetworkPolicy shop/p spec.egress: t [no-dns]"
