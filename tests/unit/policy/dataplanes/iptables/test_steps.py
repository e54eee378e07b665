from podwire.policy.dataplanes.iptables.steps import FamilyContents, removal, steps
from podwire.state.ipset import IpSet, plain

JUMPS = (("FORWARD", "-j PODWIRE-FORWARD"),)


def set_of(*keys: str, name: str = "podwire4-own") -> IpSet:
    return IpSet(name=name, kind="hash:ip", elements=plain(keys))


def test_additions_come_first_and_deletions_last() -> None:
    saved = {"mangle": {"FORWARD": ["-j PODWIRE-FORWARD"], "PODWIRE-FORWARD": ["-j PODWIRE-IN"],
                        "PODWIRE-IN": ["-g PODWIRE-IN-OLD", "-j DROP"], "PODWIRE-IN-OLD": ["-j DROP"]}}  # fmt: skip
    have = {"podwire4-own": set_of("10.0.0.1", "10.0.0.2"), "podwire4-old": set_of(name="podwire4-old")}
    want = FamilyContents(
        {"PODWIRE-FORWARD": ("-j PODWIRE-IN",), "PODWIRE-IN": ("-g PODWIRE-IN-NEW", "-j DROP"), "PODWIRE-IN-NEW": ()},
        {"podwire4-own": set_of("10.0.0.2", "10.0.0.3"), "podwire4-new": set_of("10.0.0.9", name="podwire4-new")},
        JUMPS,
    )
    both = {"PODWIRE-IN": ("-g PODWIRE-IN-OLD", "-g PODWIRE-IN-NEW", "-j DROP")}
    created = steps(saved, have, want, both)
    assert str(created).splitlines() == [
        "create podwire4-new hash:ip family inet hashsize 1024 maxelem 65536",
        "add podwire4-new 10.0.0.9",
        "*mangle",
        ":PODWIRE-IN - [0:0]",
        ":PODWIRE-IN-NEW - [0:0]",
        "-A PODWIRE-IN -g PODWIRE-IN-OLD",
        "-A PODWIRE-IN -g PODWIRE-IN-NEW",
        "-A PODWIRE-IN -j DROP",
        "COMMIT",
        "add podwire4-own 10.0.0.3",
        "del podwire4-own 10.0.0.1",
        "*mangle",
        ":PODWIRE-IN - [0:0]",
        ":PODWIRE-IN-OLD - [0:0]",
        "-A PODWIRE-IN -g PODWIRE-IN-NEW",
        "-A PODWIRE-IN -j DROP",
        "-X PODWIRE-IN-OLD",
        "COMMIT",
        "destroy podwire4-old",
    ]


def test_jumps_are_added_with_their_chains() -> None:
    want = FamilyContents({"PODWIRE-FORWARD": ("-j DROP",)}, {}, JUMPS)
    created = steps({"mangle": {"FORWARD": ["-j OTHER"]}}, {}, want, {})
    assert created.enter.splitlines()[1:4] == [
        ":PODWIRE-FORWARD - [0:0]", "-A PODWIRE-FORWARD -j DROP", "-I FORWARD -j PODWIRE-FORWARD",
    ]  # fmt: skip
    assert not created.leave
    assert not steps({"mangle": {"FORWARD": ["-j PODWIRE-FORWARD"], "PODWIRE-FORWARD": ["-j DROP"]}}, {}, want, {})


def test_sets_are_taken_away_by_name() -> None:
    assert list(map(str, removal(["a", "b"]))) == ["destroy a", "destroy b"]
