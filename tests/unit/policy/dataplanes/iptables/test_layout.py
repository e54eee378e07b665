"""The pieces, as iptables-save and ipset save print them."""

import pytest

from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.fixedchains import FixedChains
from podwire.policy.dataplanes.iptables.layout import ChainLayout
from podwire.policy.dataplanes.iptables.numbers import MarkBits
from podwire.policy.dataplanes.iptables.rulechains import RuleChains
from podwire.policy.ports import PortTableBuilder, Ruling, selection
from podwire.policy.profilenames import ProfileName
from podwire.policy.settings import LogSettings
from podwire.policy.verdicts import RuleIdentity, rule_identity
from podwire.trace.bytecode import same_ends

LAYOUT = ChainLayout(
    family="ip",
    marks=MarkBits(0xFFF00000),
    pod_ranges=("10.180.0.0/24",),
    node_addresses=("192.168.99.1",),
    log=LogSettings(group=5),
    cluster_ranges=("10.180.0.0/16",),
    encapsulation_ports=(8472, 4789),
    uplinks=("eth0",),
)
SIX = ChainLayout(family="ip6", marks=MarkBits(0xFF), bridges=("cni0",))
TELL = "-m limit --limit 10/sec --limit-burst 50 -j NFLOG --nflog-prefix {} --nflog-group 5"
SHOP_DB = '{"namespace":"shop","namespaces":{},"pods":{"matchLabels":{"app":"db"}}}'
"""The selector of the policies, in its JSON form."""
OWNER = ProfileName("Ingress", "0a1b2c")
ALLOWED, DENIED = (
    names.rule_chain(rule_identity(OWNER, item)) for item in (Ruling(True, "shop/db", 0), Ruling(accept=False))
)


def test_forwarded_packets() -> None:
    assert FixedChains(LAYOUT).chains(1)[names.FORWARD] == (
        "-j MARK --set-xmark 0x0/0xfff00000",
        "-j SET --map-set podwire4-egress src,src --map-mark",
        "-m mark --mark 0x0/0xfff00000 -j PODWIRE-STRANGER",
        "-m mark --mark 0x200000/0xfff00000 -m set --match-set podwire4-pod-ranges src -j PODWIRE-STRANGER",
        "-m mark ! --mark 0x0/0xffc00000 -j PODWIRE-OUT",
        "-j MARK --set-xmark 0x0/0xfff00000",
        "-j SET --map-set podwire4-ingress dst,dst --map-mark",
        "-m mark --mark 0x0/0xfff00000 -j PODWIRE-NOBODY",
        "-m mark --mark 0x200000/0xfff00000 -m set --match-set podwire4-pod-ranges dst -j PODWIRE-NOWHERE",
        "! -p tcp -m mark --mark 0x0/0xffd00000 -j PODWIRE-ENCAPSULATION",
        "-m mark ! --mark 0x0/0xffc00000 -j PODWIRE-IN",
        "-j MARK --set-xmark 0x80000000/0xfff00000",
    )
    assert FixedChains(SIX).chains(0)[names.FORWARD][0] == "-o cni0 -p ipv6-icmp -m icmp6 --icmpv6-type 135 -j RETURN"


def test_unknown_addresses_are_looked_up_by_device() -> None:
    chains = FixedChains(LAYOUT).chains(2)
    assert chains[names.STRANGER] == (
        f"-m set --match-set podwire4-devices-0 src,src {TELL.format('podwire-borrowed')}",
        "-m set --match-set podwire4-devices-0 src,src -j DROP",
        f"-m set --match-set podwire4-devices-1 src,src {TELL.format('podwire-borrowed')}",
        "-m set --match-set podwire4-devices-1 src,src -j DROP",
        f"-m set --match-set podwire4-pod-ranges src {TELL.format('podwire-unknown')}",
        "-m set --match-set podwire4-pod-ranges src -j DROP",
    )
    assert chains[names.NOBODY][2:] == (
        "-m mark ! --mark 0x0/0xfff00000 -j RETURN",
        "-j PODWIRE-NOWHERE",
    )
    assert chains[names.NOWHERE] == (
        f"-m set --match-set podwire4-pod-ranges dst {TELL.format('podwire-nobody')}",
        "-m set --match-set podwire4-pod-ranges dst -j DROP",
    )
    assert chains[names.INTRUDER] == chains[names.STRANGER][:4]
    assert FixedChains(SIX).chains(1)[names.INTRUDER] == (
        "! -s fe80::/10 -m set --match-set podwire6-devices-0 src,src -j DROP",
    )


def test_on_a_bridge_addresses_identify_pods() -> None:
    itself = f'-m bpf --bytecode "{same_ends("ip6")}" -j RETURN'
    assert itself in FixedChains(SIX).chains(1)[names.SENT]
    denied = RuleChains(SIX).rule(rule_identity(OWNER, Ruling(accept=False)), "", "")
    assert f"-m conntrack --ctstate DNAT {itself}" in denied
    assert not any("bpf" in rule for rules in FixedChains(LAYOUT).chains(1).values() for rule in rules)


def test_every_set_and_chain_named_by_a_rule_exists() -> None:
    for layout in (LAYOUT, SIX):
        fixed = FixedChains(layout)
        chains = fixed.chains(1) | dict.fromkeys((names.OUT, names.IN), fixed.root())
        arguments = [word for rules in chains.values() for rule in rules for word in rule.split()]
        sets = {item.name for item in layout.sets()} | {layout.device_set(0).name}
        assert {word for word in arguments if word.startswith(("podwire4-", "podwire6-"))} <= sets
        assert {word for word in arguments if word.startswith("PODWIRE-")} <= chains.keys()
        for declared in layout.sets():
            declared.check()


def test_uplinks_and_pods_have_elements_that_give_numbers() -> None:
    (uplink,) = (LAYOUT.sets()[0].lines(),)
    assert list(uplink)[1:] == ["add podwire4-egress 0.0.0.0/0,eth0 skbmark 0x200000/0xfff00000"]
    assert LAYOUT.device_set(63).name == "podwire4-devices-0"
    assert LAYOUT.device_set(64).name == "podwire4-devices-1"
    assert SIX.of_device("web") == "::/0,web"


def test_few_port_ranges_are_compared_in_sequence() -> None:
    maker = PortTableBuilder()
    maker.decide(selection({"TCP": [(80, 80), (90, 99)], "UDP": [(0, 65535)]}), Ruling(True, "shop/db", 0))
    created = RuleChains(LAYOUT).ports("PODWIRE-PORTS-X", maker.table(Ruling(accept=False)), OWNER)
    assert created == {
        "PODWIRE-PORTS-X": ("-p tcp -g PODWIRE-PORTS-X-t", f"-p udp -g {ALLOWED}", f"-g {DENIED}"),
        "PODWIRE-PORTS-X-t": (
            f"-p tcp -m tcp --dport 0:79 -g {DENIED}",
            f"-p tcp -m tcp --dport 80 -g {ALLOWED}",
            f"-p tcp -m tcp --dport 81:89 -g {DENIED}",
            f"-p tcp -m tcp --dport 90:99 -g {ALLOWED}",
            f"-g {DENIED}",
        ),
    }


@pytest.mark.parametrize("count", [8, 9, 100, 1500])
def test_many_ranges_of_ports_are_found_by_halving(count: int) -> None:
    maker = PortTableBuilder()
    maker.decide(
        selection({"TCP": [(port, port) for port in range(10, 10 + 2 * count, 2)]}), Ruling(True, "shop/db", 0)
    )
    table = maker.table(Ruling(accept=False))
    created = RuleChains(LAYOUT).ports(names.ports_chain(table, OWNER), table, OWNER)
    root = f"{names.ports_chain(table, OWNER)}-t"
    assert max(map(len, created)) <= 28
    for port in (0, 9, 10, 11, 10 + count // 2 * 2, 9 + 2 * count, 65535):
        result, asked = lead(created, root, port)
        assert result == (ALLOWED if table.ruling("TCP", port).accept else DENIED)
        assert asked <= 8 * 4


def lead(chains: dict[str, tuple[str, ...]], chain: str, port: int) -> tuple[str, int]:
    """Where a port leads, and after how many rules."""
    asked = 0
    while chain in chains:
        for rule in chains[chain]:
            asked += 1
            fields = rule.split()
            first, _, last = (
                fields[fields.index("--dport") + 1].partition(":") if "--dport" in fields else ("0", "", "65535")
            )
            if int(first) <= port <= int(last or first):
                chain = fields[-1]
                break
    return chain, asked


def test_a_rule_counts_logs_and_decides() -> None:
    denied = rule_identity(OWNER, Ruling(accept=False))
    assert RuleChains(LAYOUT).rule(denied, "rule-x", denied.text((SHOP_DB,))) == (
        "-m conntrack --ctstate RELATED -j RETURN",
        "-m conntrack --ctstate DNAT -m set --match-set podwire4-own src,dst -j RETURN",
        "-m limit --limit 10/sec --limit-burst 50 -j NFLOG --nflog-prefix rule-x --nflog-group 5",
        '-m comment --comment "no ingress rule for pods app=db of shop" -j DROP',
    )
    quiet = RuleIdentity("Ingress", Ruling(True, "shop/db", 0))
    assert RuleChains(LAYOUT).rule(quiet, "rule-x", quiet.text()) == (
        '-m comment --comment "shop/db ingress 0" -j RETURN',
    )
    audited = rule_identity(OWNER, Ruling(accept=True, audit=True, audit_policy="shop/new", audit_rule=1))
    logged = RuleChains(LAYOUT).rule(audited, "rule-x", audited.text())
    assert [rule.split(" -j NFLOG")[0] for rule in logged[2:]] == [
        "-m conntrack --ctstate NEW -m limit --limit 10/sec --limit-burst 50",
        "-m conntrack ! --ctstate NEW -m limit --limit 1/sec",
        '-m comment --comment "audit: shop/new ingress 1" -j RETURN',
    ]


def test_connections_are_kept_on_request() -> None:
    keeping = ChainLayout(family="ip", marks=MarkBits(0xFF), keep=True)
    assert FixedChains(keeping).root()[0] == "-m conntrack --ctstate ESTABLISHED -j RETURN"
    assert FixedChains(LAYOUT).root()[0] == "-m conntrack --ctstate ESTABLISHED --ctdir REPLY -j RETURN"


def test_a_profile_looks_up_addresses_then_networks_then_default() -> None:
    rules = LAYOUT.profile("PODWIRE-IN-X", OWNER, "PODWIRE-PORTS-Y", "pods app=db of shop", ranged=True)
    assert rules == (
        "-m comment --comment profile-in-0a1b2c -j MARK --set-xmark 0x0/0xfff00000",
        "-j SET --map-set podwire4-in-x-hosts src --map-mark",
        "-m mark ! --mark 0x0/0xfff00000 -g PODWIRE-TABLES",
        "-j SET --map-set podwire4-in-x-ranges src --map-mark",
        "-m mark ! --mark 0x0/0xfff00000 -g PODWIRE-TABLES",
        '-m comment --comment "pods app=db of shop" -g PODWIRE-PORTS-Y',
    )
    assert LAYOUT.commented(rules, "other pods") == (
        *rules[:-1],
        '-m comment --comment "other pods" -g PODWIRE-PORTS-Y',
    )
    assert len(LAYOUT.profile("PODWIRE-IN-X", OWNER, "PODWIRE-PORTS-Y", "", ranged=False)) == 4
