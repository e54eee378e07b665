"""Changes of Services as the text that iptables-restore gets."""

import msgspec
from tests.unit.proxy.dataplanes.iptables.test_compile import EXT, FACTS, ONE, SEP_ONE, SEP_TWO, SVC, TWO, port

from podwire.proxy.dataplanes.iptables.contents import Contents
from podwire.proxy.dataplanes.iptables.layout import IptablesLayout

WEB = "default/web"


def contents() -> Contents:
    return Contents(IptablesLayout("ip", FACTS))


def test_a_new_service_is_written_and_nothing_else() -> None:
    created = contents()
    created.change({"default/other": (port(service="default/other", cluster_ip="172.30.0.42"),)})
    text = created.change({WEB: (port(),)}).text()
    assert text.splitlines()[:5] == [
        "*filter",
        '-I KUBE-CLUSTER-IPS -d 172.30.0.41/32 -m comment --comment "default/web" -g KUBE-REFUSE',
        "COMMIT",
        "*nat",
        f":{SEP_ONE} - [0:0]",
    ]
    assert "-I KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m tcp --dport 80 -m comment --comment " in text
    assert "other" not in text


def test_an_endpoint_that_goes_costs_two_chains() -> None:
    created = contents()
    created.change({WEB: (port(),)})
    text = created.change({WEB: (port(cluster_endpoints=(ONE,)),)}).text()
    assert text.count("COMMIT") == 1
    assert [line for line in text.splitlines() if line[0] == ":"] == [f":{SVC} - [0:0]", f":{SEP_TWO} - [0:0]"]
    assert text.splitlines()[-2] == f"-X {SEP_TWO}"


def test_refusing_rule_is_added_first_and_removed_last() -> None:
    created = contents()
    created.change({WEB: (port(),)})
    gone = port(cluster_endpoints=(), local_endpoints=(), has_endpoints=False)
    text = created.change({WEB: (gone,)}).text()
    assert text.index("-I KUBE-SERVICES -d 172.30.0.41/32 -p tcp") < text.index("*nat") < text.index("-D KUBE-SERVICES")
    back = created.change({WEB: (port(),)}).text()
    assert back.index("*nat") < back.index("-D KUBE-SERVICES") > back.index("-I KUBE-SERVICES")
    assert back.splitlines()[0] == "*nat" and "*filter" in back


def test_a_service_that_goes_leaves_nothing() -> None:
    created = contents()
    empty = [str(ruleset) for ruleset in created.rulesets()]
    created.change({WEB: (port(node_port=30080, external_ips=("203.0.113.7",)),)})
    text = created.change({WEB: ()}).text()
    assert {f"-X {chain}" for chain in (SVC, EXT, SEP_ONE, SEP_TWO)} <= set(text.splitlines())
    assert [str(ruleset) for ruleset in created.rulesets()] == empty


def test_equal_rules_are_not_written_again() -> None:
    created = contents()
    created.change({WEB: (port(),)})
    assert created.change({WEB: (port(serving=frozenset(("10.180.0.1:8080",))),)}).text() == ""


def test_many_rules_are_written_as_a_chain() -> None:
    created = contents()
    many = {f"default/s{n}": (port(service=f"default/s{n}", cluster_ip=f"172.30.1.{n}"),) for n in range(20)}
    whole = created.change(many).text()
    assert ":KUBE-SERVICES - [0:0]" in whole and "-I KUBE-SERVICES" not in whole
    assert whole.count("NOTE: this must be the last rule") == 1, "with what stands at its end"
    fewer = created.change(dict.fromkeys(list(many)[:10], ())).text()
    assert "-D KUBE-SERVICES" not in fewer and fewer.count("-A KUBE-SERVICES") == 11


def test_a_frontend_belongs_to_the_first_until_it_lets_go() -> None:
    created = contents()
    mine = port(external_ips=("203.0.113.7",))
    created.change({WEB: (mine,)})
    other = msgspec.structs.replace(mine, service="default/other", cluster_ip="172.30.0.42", cluster_endpoints=(TWO,))
    assert "203.0.113.7" not in created.change({"default/other": (other,)}).text()
    assert created.claims.waiting() == ("default/other",)
    freed = created.change({WEB: ()}).text()
    assert '"default/other:http external IP"' in freed
    assert created.claims.waiting() == ()


def test_sizes_are_those_of_own_chains_alone() -> None:
    created = contents()
    created.change({WEB: (port(),)})
    sizes = created.sizes("nat", ("KUBE-SERVICES", SVC, "KUBE-MARK-MASQ", "PREROUTING", "KUBE-FIREWALL"))
    by_table = {ruleset.table: ruleset.chains for ruleset in created.rulesets()}
    assert sizes.keys() == {"KUBE-SERVICES", SVC, "KUBE-MARK-MASQ"}
    assert {name: size.rules for name, size in sizes.items()} == {name: len(by_table["nat"][name]) for name in sizes}
    assert sizes[SVC].last is None and sizes["KUBE-SERVICES"].last
