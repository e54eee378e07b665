"""The constant part, as iptables-save prints it."""

import pytest
from msgspec.structs import replace
from tests.unit.proxy.dataplanes.ipvs.test_compile import FACTS

from podwire.proxy.dataplanes.ipvs.layout import IpvsLayout
from podwire.proxy.dataplanes.ipvs.names import CLUSTER_IP, SETS, SOURCE_CIDR, declare, set_name
from podwire.proxy.servicemap import NodeFacts
from podwire.state.chain_marks import PROXY_IPVS


def layout(facts: NodeFacts = FACTS, family: str = "ip") -> IpvsLayout:
    return IpvsLayout(family, facts, facts.addresses)


def chain(name: str, facts: NodeFacts = FACTS, table: str = "nat") -> list[str]:
    return [rule.replace("-m comment --comment ", "") for rule in layout(facts).chains().get((table, name), ())]


def test_every_chain_is_ours_and_every_jump_leads_to_one() -> None:
    created = layout(replace(FACTS, pod_cidrs=("10.180.0.0/16", "10.181.0.0/16")))
    chains = created.chains()
    assert all(PROXY_IPVS.owns(table, name) for table, name in chains)
    named = {(table, name) for table, names in PROXY_IPVS.constant.items() for name in names}
    assert named == chains.keys() | {("nat", "KUBE-LOCAL-INSIDE"), ("nat", "KUBE-LOCAL-OUTSIDE")}
    jumps = created.jumps()
    assert jumps.keys() == set(PROXY_IPVS.tables)
    targets = {(table, rule.split()[-1]) for table, pairs in jumps.items() for _, rule in pairs}
    assert targets <= named


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        (FACTS, '! -s 10.180.0.0/16 "cluster addresses" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ'),
        (replace(FACTS, masquerade_all=True),
         '"cluster addresses" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ'),
        (replace(FACTS, pod_cidrs=()), '"cluster addresses" -m set --match-set KUBE-CLUSTER-IP dst,dst '
                                       "-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ"),
        (replace(FACTS, pod_interface="veth*"),
         '! -i veth+ "cluster addresses" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ'),
        (replace(FACTS, pod_cidrs=("10.180.0.0/16", "10.181.0.0/16")),
         '"cluster addresses" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-OUTSIDE-PODS'),
    ],
)  # fmt: skip
def test_clients_masqueraded_to_cluster_addresses(facts: NodeFacts, rule: str) -> None:
    assert rule in chain("KUBE-SERVICES", facts)


def test_with_several_pod_ranges_each_returns() -> None:
    facts = replace(FACTS, pod_cidrs=("10.180.0.0/16", "10.181.0.0/16"))
    assert chain("KUBE-MARK-OUTSIDE-PODS", facts) == [
        "-s 10.180.0.0/16 -j RETURN", "-s 10.181.0.0/16 -j RETURN", "-j KUBE-MARK-MASQ",
    ]  # fmt: skip
    assert chain("KUBE-MARK-OUTSIDE-PODS") == []


def test_unknown_pod_ranges_make_local_treat_pods_as_outside() -> None:
    assert layout().pod_sources() and not layout(replace(FACTS, pod_cidrs=())).pod_sources()
    assert chain("KUBE-EXTERNAL-LOCAL", replace(FACTS, pod_cidrs=())) == chain("KUBE-EXTERNAL-LOCAL")[1:]


def test_node_ports_answer_at_their_addresses_alone() -> None:
    rules = [rule for rule in chain("KUBE-SERVICES") if rule.endswith("KUBE-NODE-PORT")]
    assert rules == ['-d 192.168.99.1/32 "node ports" -j KUBE-NODE-PORT']


def test_addresses_of_no_service_are_dropped_first() -> None:
    assert chain("KUBE-PROXY-FIREWALL", table="mangle")[0] == (
        '-d 172.30.0.0/16 "addresses of no service" -m set ! --match-set KUBE-IPVS-IPS dst -j DROP'
    )
    assert "addresses of no service" not in str(chain("KUBE-PROXY-FIREWALL", NodeFacts(name="n1"), "mangle"))


def test_names_of_sets() -> None:
    assert set_name(CLUSTER_IP, "ip") == "KUBE-CLUSTER-IP"
    assert set_name(SOURCE_CIDR, "ip6") == "KUBE-6-LOAD-BALANCER-SOURCE-CID", "cut, as kube-proxy cuts it"
    names = [set_name(kind, family) for family in ("ip", "ip6") for kind in SETS]
    assert len(set(names)) == len(names)
    for family in ("ip", "ip6"):
        for kind in SETS:
            declare(kind, family).check()


@pytest.mark.parametrize("facts", [FACTS, replace(FACTS, pod_interface="veth*")], ids=["ranges", "device"])
def test_protocol_stands_before_the_comment_as_in_the_kernel(facts: NodeFacts) -> None:
    """Else what is written is never what is read, and is put right for ever."""
    rules = [(name, rule) for (_, name), rules in layout(facts).chains().items() for rule in rules if "-p " in rule]
    assert any(name == "KUBE-IPVS-INVALID" for name, _ in rules)
    assert [rule for rule in rules if "--comment" in rule[1].partition("-p ")[0]] == []
