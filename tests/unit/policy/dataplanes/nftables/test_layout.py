"""The pieces of the table, as nft prints them."""

from podwire.policy.dataplanes.nftables.fixedchains import FixedChains
from podwire.policy.dataplanes.nftables.layout import TableLayout, comment_of, profile_name, profile_of
from podwire.policy.dataplanes.nftables.podelements import Chains, PodElements
from podwire.policy.dataplanes.nftables.rulechains import RuleChains, ports_name, rule_name
from podwire.policy.ports import PortTableBuilder, Ruling, selection
from podwire.policy.profilenames import ProfileName
from podwire.policy.settings import LogSettings
from podwire.policy.verdicts import RuleIdentity, rule_identity
from podwire.state.nft import Table
from podwire.state.nft_text import parse_table

LAYOUT = TableLayout(
    family="ip", pod_ranges=("10.180.0.0/24",), node_addresses=("192.168.99.1",), log=LogSettings(group=5)
)
SPARED = ["ct state related accept", "ct status dnat oifname . ip saddr @own accept"]
SHOP_DB = '{"namespace":"shop","namespaces":{},"pods":{"matchLabels":{"app":"db"}}}'
"""The selector of the policies, in its JSON form."""
OWNER = ProfileName("Ingress", "0a1b2c")


def test_ports_with_one_ruling_need_no_map() -> None:
    maker = PortTableBuilder()
    maker.decide(selection({"TCP": [(80, 80), (90, 99)], "UDP": [(0, 65535)]}), Ruling(True, "shop/db", 0))
    created = maker.table(Ruling(accept=False))
    name = ports_name(created, OWNER)
    (tcp,) = RuleChains(LAYOUT).ports_sets(name, created, OWNER)
    rulings = (Ruling(True, "shop/db", 0), Ruling(accept=False))
    allowed, denied = (rule_name(rule_identity(OWNER, ruling)) for ruling in rulings)
    assert tcp.name == f"{name}-tcp"
    assert [tcp.element_text(key, tcp.elements[key]) for key in sorted(tcp.elements)] == [
        f"0-79 : goto {denied}",
        f"80 : goto {allowed}",
        f"81-89 : goto {denied}",
        f"90-99 : goto {allowed}",
        f"100-65535 : goto {denied}",
    ]
    assert [str(rule) for rule in RuleChains(LAYOUT).ports_chain(name, created, OWNER).rules] == [
        f"tcp dport vmap @{name}-tcp",
        f"meta l4proto udp goto {allowed}",
        f"goto {denied}",
    ]


def test_single_ports_are_elements_of_their_own() -> None:
    maker = PortTableBuilder()
    maker.decide(selection({"TCP": [(80, 80), (82, 82)], "UDP": [(53, 53)]}), Ruling(True, "shop/db", 0))
    maker.decide(selection({"UDP": [(0, 65535)]}), Ruling(True, "shop/db", 1))
    created = maker.table(Ruling(accept=False))
    name = ports_name(created, OWNER)
    tcp, udp = RuleChains(LAYOUT).ports_sets(name, created, OWNER)
    rulings = (Ruling(True, "shop/db", 0), Ruling(True, "shop/db", 1), Ruling(accept=False))
    first, second, denied = (rule_name(rule_identity(OWNER, ruling)) for ruling in rulings)
    assert [tcp.element_text(*element) for element in tcp.elements.items()] == [
        f"80 : goto {first}",
        f"82 : goto {first}",
    ]
    assert [udp.element_text(*element) for element in udp.elements.items()] == [f"53 : goto {first}"]
    assert (tcp.flags, udp.flags) == ((), ())
    assert [str(rule) for rule in RuleChains(LAYOUT).ports_chain(name, created, OWNER).rules] == [
        f"tcp dport vmap @{name}-tcp",
        f"udp dport vmap @{name}-udp",
        f"meta l4proto udp goto {second}",
        f"goto {denied}",
    ]


def test_a_denial_names_the_pods_and_is_logged() -> None:
    hit = rule_identity(OWNER, Ruling(accept=False))
    chain = RuleChains(LAYOUT).rule_chain(hit, hit.text((SHOP_DB,)))
    assert not chain.comment, "the comment of a chain cannot be changed, and other selectors may select the pods later"
    comment = 'comment "no ingress rule for pods app=db of shop"'
    assert [str(rule) for rule in chain.rules] == [
        *SPARED,
        f'limit rate 10/second burst 50 packets log prefix "{chain.name}" group 5',
        f"counter packets 0 bytes 0 drop {comment}",
    ]
    quiet = RuleChains(TableLayout(family="ip")).rule_chain(hit, hit.text((SHOP_DB,)))
    assert [str(rule) for rule in quiet.rules] == [*SPARED, f"counter packets 0 bytes 0 drop {comment}"]


def test_audited_packets_are_logged_first_and_then_occasionally() -> None:
    hit = rule_identity(OWNER, Ruling(accept=True, audit=True))
    chain = RuleChains(LAYOUT).rule_chain(hit, hit.text((SHOP_DB,)))
    tell = f'log prefix "{chain.name}" group 5'
    assert [str(rule) for rule in chain.rules] == [
        *SPARED,
        f"ct state new limit rate 10/second burst 50 packets {tell}",
        f"ct state != new limit rate 1/second {tell}",
        'counter packets 0 bytes 0 accept comment "audit: no ingress rule for pods app=db of shop"',
    ]


def test_first_packets_of_allowed_connections_are_logged_on_request() -> None:
    chain = RuleChains(LAYOUT).rule_chain(RuleIdentity("Egress", Ruling(True, "shop/web", 2, log="all")), "")
    limit = "limit rate 10/second burst 50 packets"
    assert [str(rule) for rule in chain.rules] == [
        f'ct state new {limit} log prefix "{chain.name}" group 5',
        "counter packets 0 bytes 0 accept",
    ]


def test_a_rule_that_allows_counts() -> None:
    hit = RuleIdentity("Egress", Ruling(True, "shop/web", 2))
    chain = RuleChains(LAYOUT).rule_chain(hit, hit.text())
    assert chain.comment == "shop/web egress 2"
    assert [str(rule) for rule in chain.rules] == ["counter packets 0 bytes 0 accept"]


def test_long_comments_are_cut() -> None:
    assert len(comment_of((SHOP_DB,) * 100)) == 127
    hit = rule_identity(OWNER, Ruling(accept=False))
    chain = RuleChains(LAYOUT).rule_chain(hit, hit.text((SHOP_DB,) * 100))
    assert len(chain.rules[-1].comment) == 127


def test_names_differ_where_meanings_differ() -> None:
    item, other = (ProfileName("Ingress", text) for text in ("a", "b"))
    assert profile_name(item) != profile_name(other)
    assert profile_name(item, "pods of shop") != profile_name(item, "pods of blog")
    created = PortTableBuilder().table(Ruling(accept=False))
    assert len({ports_name(created, item), ports_name(created, other), ports_name(created, item, 1)}) == 3


def test_the_constant_part_reads_back() -> None:
    for family in ("ip", "ip6"):
        layout = TableLayout(family=family)
        table = Table(family=family, name="podwire-policy", chains=FixedChains(layout).chains(), sets=layout.sets())
        assert parse_table(str(table)).canonical() == table.canonical()


def test_pods_of_a_bridge_are_known_by_their_addresses() -> None:
    chains = Chains(ingress="in-1", egress="", to_node="")
    alone, shared = (
        PodElements(TableLayout(family="ip6", bridges=bridges)).of_device("cni0", ("10.0.0.1", "fd00::1"), chains)
        for bridges in ((), ("cni0",))
    )
    assert {name for name, elements in alone.items() if elements} == {
        "egress",
        "egress-sources",
        "to-node",
        "ingress",
        "pod-devices",
        "own",
    }
    assert {name for name, elements in shared.items() if elements} == {
        "egress",
        "egress-sources",
        "to-node",
        "bridged",
        "self",
    }
    layout = TableLayout(family="ip6", bridges=("cni0",))
    sets = {declared.name: declared for declared in layout.sets()}
    (into,) = sets["ingress"].elements.items()
    assert sets["ingress"].element_text(*into) == '"cni0" : goto on-bridge'
    rules = {chain.name: [str(rule) for rule in chain.rules] for chain in FixedChains(layout).chains()}
    assert rules["on-bridge"] == ["ip6 daddr vmap @bridged", "counter packets 0 bytes 0 drop"]
    result = 'oifname "cni0" icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept'
    assert rules["forward-egress"][0] == rules["forward-ingress"][0] == result
    judged = [str(rule) for rule in RuleChains(layout).rule_chain(rule_identity(OWNER, Ruling(accept=False)), "").rules]
    assert "ct status dnat ip6 saddr . ip6 daddr @self accept" in judged


def test_encapsulated_packets_reach_only_pods() -> None:
    layout = TableLayout(
        family="ip", cluster_ranges=("10.0.0.0/8",), encapsulation_ports=(8472, 4789, 4789), bridges=("cni0",)
    )
    chains = {chain.name: [str(rule) for rule in chain.rules] for chain in FixedChains(layout).chains()}
    assert chains["forward-ingress"][-1] == chains["input"][0] == "meta l4proto != tcp jump encapsulation"
    assert chains["encapsulation"] == [
        "udp dport != 4789-8472 return",
        "udp dport { 4789, 8472 } goto encapsulated",
        "meta l4proto { 4, 41, gre } goto encapsulated",
    ]
    output = 'counter packets 0 bytes 0 drop comment "policy.encapsulation: drop"'
    assert chains["encapsulated"] == [
        "ip daddr @cluster-ranges fib daddr type != local return",
        "ct direction reply ct state established return",
        f"iifname @pod-devices {output}",
        f'iifname "cni0" {output}',
        f"ip saddr @cluster-ranges {output}",
    ]
    allowed = TableLayout(family="ip", cluster_ranges=("10.0.0.0/8",))
    assert not any("encapsul" in chain.name for chain in FixedChains(allowed).chains())
    assert "cluster-ranges" not in {declared.name for declared in allowed.sets()}


def test_connections_that_are_kept_pass_in_both_directions() -> None:
    first = [
        str(TableLayout(family="ip", keep=keep).profile_chain("in-x", OWNER, "in-x-ranges", "ports-x", "").rules[0])
        for keep in (False, True)
    ]
    assert first == ["ct direction reply ct state established accept", "ct state established accept"]


def test_drops_independent_of_policies_are_logged() -> None:
    def rules(log: LogSettings) -> list[str]:
        layout = TableLayout(family="ip", pod_ranges=("10.180.0.0/24",), log=log)
        return [
            str(rule)
            for chain in FixedChains(layout).chains()
            if chain.name.startswith("forward-")
            for rule in chain.rules
        ]

    counted = "counter packets 0 bytes 0 drop"
    limit = "limit rate 10/second burst 50 packets"
    assert rules(LogSettings(group=5)) == [
        "iifname . ip saddr vmap @egress",
        f'iifname @pod-devices {limit} log prefix "podwire-borrowed" group 5',
        f"iifname @pod-devices {counted}",
        f'ip saddr @pod-ranges {limit} log prefix "podwire-unknown" group 5',
        f"ip saddr @pod-ranges {counted}",
        "oifname vmap @ingress",
        f'ip daddr @pod-ranges {limit} log prefix "podwire-nobody" group 5',
        f"ip daddr @pod-ranges {counted}",
    ]
    quiet = rules(LogSettings(drops=False))
    assert quiet == [text for text in rules(LogSettings(group=5)) if "log" not in text]


def test_a_chain_tells_the_name_of_its_profile() -> None:
    for direction in ("Ingress", "Egress"):
        name = ProfileName(direction, "0a1b2c")
        assert profile_of(LAYOUT.profile_chain("in-x", name, "in-x-ranges", "ports-x", "")) == name
    assert profile_of(FixedChains(LAYOUT).chains()[0]) is None
