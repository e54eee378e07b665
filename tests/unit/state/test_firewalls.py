"""Firewalls of other programs: whether they refuse packets that they do not know."""

from ipaddress import ip_network

from podwire.state.firewalls import FirewallChain, ForeignChain

PODS = (ip_network("10.244.0.0/16"),)


def test_a_policy_or_a_last_rule_refuses_the_rest() -> None:
    assert FirewallChain("DROP", {}).refuses
    assert FirewallChain("ACCEPT", {"FORWARD": ("-j REJECT",)}).refuses
    assert not FirewallChain("ACCEPT", {"FORWARD": ("-i eth0 -j DROP",), "USER": ("-j DROP",)}).refuses
    assert not FirewallChain("ACCEPT", {"FORWARD": ("-j REJECT",)}, "INPUT").refuses


def test_a_table_that_names_the_pods_is_trusted() -> None:
    chain = ForeignChain(family="inet", table="host", name="fwd", policy="drop")
    assert chain.refuses(PODS) and str(chain) == "chain fwd of table inet host"
    named = ForeignChain(family="inet", table="host", name="fwd", policy="drop", text="ip daddr 10.244.0.0/16 accept")
    assert not named.refuses(PODS)
    assert not ForeignChain(family="ip", table="t", name="f", policy="accept", last_rule="accept").refuses(PODS)
