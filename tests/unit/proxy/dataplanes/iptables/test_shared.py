"""Chains that Services share, divided into parts; a model of iptables-restore applies the texts of changes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.proxy.dataplanes.iptables.test_compile import FACTS, ONE, port

from podwire.proxy.dataplanes.iptables import shared
from podwire.proxy.dataplanes.iptables.contents import Contents
from podwire.proxy.dataplanes.iptables.layout import IptablesLayout
from podwire.proxy.dataplanes.iptables.restore import split_repair
from podwire.proxy.dataplanes.iptables.shared import part_of_address, part_of_port
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables_diff import repair, target_of

Tables = dict[str, dict[str, list[str]]]
OWN_CHAINS = {"nat": ("PREROUTING", "OUTPUT", "POSTROUTING"), "filter": ("INPUT", "FORWARD", "OUTPUT")}


def empty_kernel() -> Tables:
    return {table: {chain: [] for chain in chains} for table, chains in OWN_CHAINS.items()}


def restore(tables: Tables, text: str) -> None:
    """Applies a text as ``iptables-restore --noflush`` does: each line needs what it names."""
    chains: dict[str, list[str]] = {}
    for line in text.splitlines():
        command, _, rest = line.partition(" ")
        chain, _, rule = rest.partition(" ")
        if command.startswith("*"):
            chains = tables[command[1:]]
        elif command.startswith(":"):
            chains[command[1:]] = []
        elif command == "-A":
            chains[chain].append(rule)
        elif command == "-I":
            chains[chain].insert(0, rule)
        elif command == "-D":
            chains[chain].remove(rule)
        elif command == "-X":
            assert not chains.pop(chain), f"{chain} has rules"
            assert chain not in {target_of(rule) for rules in chains.values() for rule in rules}, f"{chain} is in use"
        else:
            assert command == "COMMIT", line
            leads = {target_of(rule) for rules in chains.values() for rule in rules}
            assert {name for name in leads if name.startswith("KUBE-")} <= chains.keys(), "a chain is missing"


def assert_holds(tables: Tables, contents: Contents) -> None:
    for ruleset in contents.rulesets():
        held = {name: rules for name, rules in tables[ruleset.table].items() if name not in OWN_CHAINS[ruleset.table]}
        assert held.keys() == ruleset.chains.keys()
        for name, rules in ruleset.chains.items():
            assert PROXY_IPTABLES.equal((ruleset.table, name), held[name], rules), name
        names = {name: len(rules) for name, rules in ruleset.chains.items()}
        sizes = contents.sizes(ruleset.table, names)
        assert {name: size.rules for name, size in sizes.items()} == names


def service(number: int, kind: str) -> Any:
    """The ports of one of many Services: addresses and node ports share some parts."""
    without = {"cluster_endpoints": (), "local_endpoints": (), "has_endpoints": False}
    return (
        port(
            service=f"default/s{number}",
            cluster_ip=f"10.96.{number % 3}.{number}",
            node_port=30000 + 20 * number if kind != "internal" else 0,
            external_ips=(f"203.0.113.{number}",) if kind == "external" else (),
            health_check_node_port=32000 + number if kind == "external" else 0,
            **(without if kind == "empty" else {"cluster_endpoints": (ONE,)}),
        ),
    )


CHANGES = st.dictionaries(
    st.integers(1, 40), st.sampled_from(("gone", "internal", "node port", "external", "empty")), max_size=25
)


@settings(max_examples=120, deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=8))
def test_texts_of_changes_lead_to_the_desired_chains(changes: list[dict[int, str]]) -> None:
    """A chain is divided and made whole again while Services come and go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "MOST_RULES", 12)
        contents, tables = Contents(IptablesLayout("ip", FACTS)), empty_kernel()
        restore(tables, repair({}, contents.rulesets(), PROXY_IPTABLES))
        for change in changes:
            ports = {f"default/s{n}": () if kind == "gone" else service(n, kind) for n, kind in change.items()}
            restore(tables, contents.change(ports).text())
            assert_holds(tables, contents)
            assert not repair(tables, contents.rulesets(), PROXY_IPTABLES)


def many(count: int) -> Contents:
    contents = Contents(IptablesLayout("ip", FACTS))
    contents.change({f"default/s{n}": (numbered(n),) for n in range(count)})
    return contents


def numbered(number: int) -> Any:
    address = f"10.96.{number // 250}.{number % 250 + 1}"
    return port(service=f"default/s{number}", cluster_ip=address, node_port=30000 + number)


def test_a_packet_passes_few_rules_of_a_thousand_services() -> None:
    nat = next(ruleset.chains for ruleset in many(1000).rulesets() if ruleset.table == "nat")
    parts = {name: rules for name, rules in nat.items() if name.startswith("KUBE-SVC-ADDRESSES-")}
    assert len(parts) == 64 and len(nat["KUBE-SERVICES"]) == 65
    assert max(map(len, parts.values())) <= 20
    assert "-d 0.0.0.5/0.0.0.63 -j KUBE-SVC-ADDRESSES-05" in nat["KUBE-SERVICES"]
    assert "-p tcp -m tcp --dport 30080:30143 -j KUBE-SVC-NODEPORTS-T1D6" in nat["KUBE-NODEPORTS"]
    assert len(nat["KUBE-NODEPORTS"]) == 17
    assert sum(map(len, parts.values())) == 1000


def test_a_change_in_a_divided_chain_names_its_part_alone() -> None:
    contents = many(1000)
    text = contents.change({"default/s7": ()}).text()
    assert "-D KUBE-SVC-ADDRESSES-08 -d 10.96.0.8/32" in text and "-D KUBE-SVC-NODEPORTS-T1D4 " in text
    assert "-D KUBE-CLUSTER-IPS-08 " in text
    assert " KUBE-SERVICES " not in text and ":KUBE-SERVICES" not in text


def test_few_rules_stay_in_the_chain_that_kube_proxy_has() -> None:
    names = {name for ruleset in many(shared.MOST_RULES).rulesets() for name in ruleset.chains}
    assert not any("ADDRESSES" in name or "NODEPORTS-" in name for name in names)


def test_parts_are_written_before_the_rules_that_lead_to_them() -> None:
    contents = many(1000)
    tables = empty_kernel()
    for text in split_repair({}, contents.rulesets()):
        restore(tables, text)
    assert_holds(tables, contents)


@pytest.mark.parametrize(
    ("part", "name", "match"),
    [
        (part_of_address("10.96.1.64"), "00", "-d 0.0.0.0/0.0.0.63"),
        (part_of_address("10.96.1.255"), "3F", "-d 0.0.0.63/0.0.0.63"),
        (part_of_address("fd96::1:4a"), "0A", "-d ::a/::3f"),
        (part_of_port("tcp", 30080), "T1D6", "-p tcp -m tcp --dport 30080:30143"),
        (part_of_port("udp", 1), "U000", "-p udp -m udp --dport 0:63"),
        (part_of_port("sctp", 65535), "S3FF", "-p sctp -m sctp --dport 65472:65535"),
    ],
)
def test_parts_by_bits_of_addresses_and_ranges_of_ports(part: shared.Part, name: str, match: str) -> None:
    assert part == (name, match)


def test_names_of_chains_fit_the_kernel() -> None:
    longest = "KUBE-EXTERNAL-SERVICES"  # XT_EXTENSION_MAXNAMELEN, linux/netfilter/x_tables.h
    assert len(f"{longest}-{part_of_port('tcp', 65535).name}") <= 28
