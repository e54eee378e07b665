"""Peers in two items instead of one."""

from tests.unit.policy.check.clusters import ids, index, policy

from podwire.policy.check.finding import NOTE, WARNING
from podwire.policy.check.peers import check

_OF = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [%s]}]"


def test_either_where_both_were_meant() -> None:
    two = policy(
        "shop/p",
        _OF % "{namespaceSelector: {matchLabels: {team: press}}}, {podSelector: {matchLabels: {role: reader}}}",
    )
    assert ids(check, two) == [("peers-or", "spec.ingress[0].from[1]")]
    assert [item.severity for item in check(index(two))] == [WARNING]


def test_finding_is_milder_when_own_namespace_has_matching_pods() -> None:
    two = policy(
        "shop/p", _OF % "{podSelector: {matchLabels: {app: web}}}, {namespaceSelector: {matchLabels: {team: press}}}"
    )
    assert [item.severity for item in check(index(two))] == [NOTE]


def test_single_item_or_disjoint_peers_give_no_finding() -> None:
    item = "{namespaceSelector: {matchLabels: {team: press}}, podSelector: {matchLabels: {app: web}}}"
    apart = "{namespaceSelector: {matchLabels: {team: press}}}, {podSelector: {matchLabels: {tier: front}}}"
    for peers in (item, apart, "{podSelector: {}}, {namespaceSelector: {}}"):
        assert ids(check, policy("shop/p", _OF % peers)) == []
