"""The state of EgressPolicies as text: on the node of the pods, on the node with the address, and without a node."""

from ipaddress import ip_address, ip_interface, ip_network

from podwire.routing.egress.holder import EgressAssignment
from podwire.routing.egress.plan import MARKS, TABLE, marks_of, set_name, with_egress
from podwire.routing.nodes import LocalNode, Peer, Underlay
from podwire.routing.plan import Plan, plan
from podwire.routing.settings import RoutingSettings
from podwire.state.iptables import Ruleset
from podwire.state.network import parse
from podwire.state.nft import Table
from podwire.state.nft_text import parse_table

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"),),
    pod_cidrs=(ip_network("10.244.0.0/24"),),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
)
PEERS = (
    Peer(name="node-2", addresses=(ip_address("10.89.0.12"),), pod_cidrs=(ip_network("10.244.1.0/24"),)),
    Peer(name="node-3", addresses=(ip_address("10.89.0.13"),), pod_cidrs=(ip_network("10.244.2.0/24"),)),
)


def assignment(node: str, problem: str = "") -> EgressAssignment:
    return EgressAssignment(
        name="out",
        pods=("10.244.0.2", "10.244.1.2"),
        destinations=(),
        excluded=(ip_network("198.51.100.0/24"),),
        addresses=(ip_address("10.89.0.200"),),
        node=node,
        problem=problem,
    )


def planned(*assignments: EgressAssignment, settings: RoutingSettings | None = None) -> Plan:
    settings = settings or RoutingSettings(backend="hostgw")
    backends = settings.load()
    return with_egress(plan(ME, PEERS, settings, backends), ME, PEERS, assignments, backends)


def table_of(plan_: Plan) -> Table:
    return next(value for value in plan_.values if isinstance(value, Table) and value.name == TABLE)


def texts(plan_: Plan, chain: str) -> list[str]:
    return [str(rule) for rule in table_of(plan_).chain(chain).rules if "does not show" not in rule.comment]


MATCH = "ip saddr @pods4-out ip daddr != @cluster4 ip daddr != @except4-out"


def test_without_policies_nothing_is_added() -> None:
    settings = RoutingSettings(backend="hostgw")
    base = plan(ME, PEERS, settings, settings.load())
    assert with_egress(base, ME, PEERS, (), settings.load()) is base


def test_packets_of_own_pods_are_led_to_the_node() -> None:
    got = planned(assignment("node-2"))
    mark = marks_of(["node-2"])["node-2"]
    assert texts(got, "route") == [
        "ct direction reply accept",
        f"{MATCH} ip saddr != @own4 counter packets 0 bytes 0 drop comment "
        '"EgressPolicy out: node-2 has the address, not this node"',
        f'{MATCH} meta mark set 0x{mark:08x} accept comment "EgressPolicy out: through node-2"',
    ]
    assert texts(got, "translate") == []
    lines = str(got.state).splitlines()
    assert f"route default via 10.89.0.12 dev eth0 table {11300 + mark}" in lines
    assert f"rule 1130 fwmark 0x{mark:x} mask 0x3f table {11300 + mark}" in lines
    assert sum("type unreachable" in line and line.startswith("rule 1131") for line in lines) == 6
    assert parse(str(got.state)) == got.state
    assert parse_table(str(table_of(got))) == table_of(got).canonical()


def test_the_node_with_the_address_translates() -> None:
    got = planned(assignment("node-1"))
    assert texts(got, "route")[1:] == [f'{MATCH} accept comment "EgressPolicy out: this node has 10.89.0.200"']
    assert texts(got, "translate") == [f'{MATCH} snat to 10.89.0.200 comment "EgressPolicy out"']
    assert (
        texts(got, "guard")[0] == f'{MATCH} counter packets 0 bytes 0 drop comment "EgressPolicy out: not translated"'
    )
    assert "address 10.89.0.200/32 dev eth0" in str(got.state).splitlines()


def test_without_a_node_packets_are_dropped_with_the_reason() -> None:
    got = planned(assignment("", "no node has the address"))
    assert texts(got, "route")[1:] == [
        f'{MATCH} counter packets 0 bytes 0 drop comment "EgressPolicy out: no node has the address"'
    ]


def test_masquerade_lets_marked_packets_pass_in_both_forms() -> None:
    tables = [v for v in planned(assignment("node-2")).values if isinstance(v, Table) and v.name != TABLE]
    assert str(tables[0].chain("postrouting").rules[0]).startswith("meta mark & 0x0000003f != 0x00000000 return")
    settings = RoutingSettings(backend="hostgw", masquerade_rules="iptables")
    (ruleset,) = (v for v in planned(assignment("node-2"), settings=settings).values if isinstance(v, Ruleset))
    assert ruleset.chains["PODWIRE-MASQUERADE"][0] == "-m mark ! --mark 0x0/0x3f -j RETURN"


def test_marks_differ_and_end() -> None:
    marks = marks_of(f"node-{number}" for number in range(100))
    assert len(marks) == len(set(marks.values())) == MARKS and set(marks.values()) == set(range(1, MARKS + 1))


def test_names_of_sets_stay_short() -> None:
    assert set_name("out") == "out"
    assert len(set_name("x" * 253)) < 210 and set_name("x" * 253) != set_name("x" * 252 + "y")


def test_pods_that_the_api_does_not_show_are_dropped() -> None:
    last = table_of(planned(assignment("node-2"))).chain("route").rules[-1]
    assert str(last) == (
        "ip saddr @pods4 ip saddr != @known4 ip daddr != @cluster4 fib daddr type != local "
        'counter packets 0 bytes 0 drop comment "the API does not show the pod yet"'
    )


def test_geneve_and_ovs_lead_packets_to_the_egress_node() -> None:
    geneve = planned(assignment("node-3"), settings=RoutingSettings(backend="geneve"))
    ovs = planned(assignment("node-3"), settings=RoutingSettings(backend="ovs"))
    mark = marks_of(["node-3"])["node-3"]
    encap = "encap ip id 4096 dst 10.89.0.13 ttl 64"
    end = f"onlink table {11300 + mark}"
    assert f"route default {encap} via 10.244.2.1 dev podwire-geneve {end}" in str(geneve.state).splitlines()
    assert f"route default via 10.244.2.1 dev podwire-ovs {end}" in str(ovs.state).splitlines()
