from podwire.policy.dataplanes.iptables import names
from podwire.policy.ports import PortTableBuilder, Ruling
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import RuleIdentity
from podwire.state.chain_marks import POLICY

NAME = ProfileName("Egress", "0a1b2c")


def test_names_fit_into_the_kernels_limits() -> None:
    table = PortTableBuilder().table(Ruling(accept=True))
    chain = names.profile_chain(NAME, ("default", {}))
    ports = names.ports_chain(table, NAME)
    rule = names.rule_chain(RuleIdentity("Egress", Ruling(accept=True)))
    assert chain.startswith("PODWIRE-OUT-") and ports.startswith("PODWIRE-PORTS-") and rule.startswith("PODWIRE-RULE-")
    assert max(len(f"{ports}-t9999"), len(chain), len(rule)) <= 28
    hosts, ranges = names.profile_sets(chain, "ip6")
    assert hosts.startswith("podwire6-out-") and hosts.endswith("-hosts") and ranges.endswith("-ranges")
    assert len(ranges) <= 31


def test_different_meanings_have_different_names() -> None:
    assert names.profile_chain(NAME, 1) != names.profile_chain(NAME, 2)
    assert names.profile_chain(NAME, 1) == names.profile_chain(NAME, 1)
    table = PortTableBuilder().table(Ruling(accept=True))
    assert names.ports_chain(table, NAME) != names.ports_chain(table, NAME, 1)


def test_comments_are_as_iptables_save_prints_them() -> None:
    assert names.comment("one-word") == "-m comment --comment one-word"
    assert names.comment("shop/db ingress 0") == '-m comment --comment "shop/db ingress 0"'
    assert len(names.comment("x" * 300)) == len("-m comment --comment ") + 250
    assert names.comment("ü" * 300).encode().decode().endswith('ü"')


def test_chains_are_known_by_table_and_name() -> None:
    assert POLICY.owns("mangle", names.FORWARD)
    assert not POLICY.owns("nat", "PODWIRE-PROXY")
    assert not POLICY.owns("mangle", "FORWARD")
    assert POLICY.equal(("mangle", names.IN), ["-j DROP"], ("-j DROP",))
    assert POLICY.canonical(("mangle", names.IN), ["b", "a"]) == ("b", "a")


def test_a_chain_tells_the_name_of_its_profile() -> None:
    assert names.profile_of(("-j DROP", f"{names.profile_comment(NAME)} -j MARK --set-xmark 0x0/0xff")) == NAME
    assert names.profile_of(('-m comment --comment "pods profile-in-x of shop" -g PODWIRE-PORTS-X',)) is None
