"""Repairs of what a kernel holds, as text; the kernel's side is what iptables-save would print."""

from tests.unit.proxy.dataplanes.iptables.test_compile import FACTS, SEP_ONE, SVC, port

from podwire.proxy.dataplanes.iptables.contents import Contents
from podwire.proxy.dataplanes.iptables.layout import SERVICES, IptablesLayout
from podwire.proxy.dataplanes.iptables.restore import CHAINS_PER_TEXT, split_repair
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables import parse_save
from podwire.state.iptables_diff import Saved, count_tables, removal, repair


def contents(*names: str) -> Contents:
    created = Contents(IptablesLayout("ip", FACTS))
    for number, name in enumerate(names):
        created.change({name: (port(service=name, cluster_ip=f"172.30.0.{41 + number}"),)})
    return created


def in_kernel(created: Contents, *more: str) -> Saved:
    """As iptables-save prints it: the kernel's own chains, then ours; ``more`` are lines of ``nat``."""
    lines: list[str] = []
    for ruleset in created.rulesets():
        own = "PREROUTING OUTPUT POSTROUTING" if ruleset.table == "nat" else "INPUT FORWARD OUTPUT"
        lines += [f"*{ruleset.table}", *(f":{chain} ACCEPT [0:0]" for chain in own.split())]
        lines += [f":{chain} - [0:0]" for chain in ruleset.chains]
        lines += [line for line in more if line.startswith(":") and ruleset.table == "nat"]
        lines += [line for line in ruleset.lines() if line.startswith("-A")]
        lines += [line for line in more if line.startswith("-A") and ruleset.table == "nat"]
        lines += ["COMMIT", "# Completed"]
    return parse_save("\n".join(lines))


def test_correct_rules_are_not_written() -> None:
    created = contents("default/web")
    assert repair(in_kernel(created), created.rulesets(), PROXY_IPTABLES) == ""


def test_an_empty_kernel_translates_before_it_refuses() -> None:
    text = repair({}, contents("default/web").rulesets(), PROXY_IPTABLES)
    assert text.index("*nat") < text.index("*filter")
    assert count_tables(text) == 2
    lines = text.splitlines()
    head = [line for line in lines if line.startswith("-I INPUT ")]
    assert head[-1].endswith("-j KUBE-INVALID"), "inserted last, so it stands first"


def test_a_chain_that_differs_is_written_alone() -> None:
    created = contents("default/web", "default/other")
    saved = in_kernel(created)
    saved["nat"][SVC].pop()  # type: ignore[attr-defined]
    lines = repair(saved, created.rulesets(), PROXY_IPTABLES).splitlines()
    assert lines[:2] == ["*nat", f":{SVC} - [0:0]"]
    assert all(line.startswith(f"-A {SVC} ") for line in lines[2:-1])


def test_large_load_is_split_and_each_jump_target_exists() -> None:
    names = [f"default/s{number:03}" for number in range(CHAINS_PER_TEXT // 3 + 10)]
    created = Contents(IptablesLayout("ip", FACTS))
    many = {n: (port(service=n, cluster_ip=f"172.30.{i // 250}.{i % 250}", node_port=30000 + i),)
            for i, n in enumerate(names)}  # fmt: skip
    created.change(many)
    texts = list(split_repair({}, created.rulesets()))
    assert len(texts) == 3
    there: set[str] = set()
    for text in texts[:-1]:
        assert "PREROUTING" not in text and "KUBE-SERVICES" not in text
        there |= {line[1:].split()[0] for line in text.splitlines() if line.startswith(":")}
        targets = {line.rpartition(" -j ")[2].split()[0] for line in text.splitlines() if line.startswith("-A")}
        assert {target for target in targets if target.startswith("KUBE-")} <= there
    assert there | {"KUBE-SERVICES", "KUBE-NODEPORTS"} == set(created.rulesets()[1].chains)
    written = {line for text in texts for line in text.splitlines() if line[0] in ":-"}
    assert written == {line for line in repair({}, created.rulesets(), PROXY_IPTABLES).splitlines() if line[0] in ":-"}


def test_little_is_one_text() -> None:
    created = contents("default/web")
    assert list(split_repair({}, created.rulesets())) == [repair({}, created.rulesets(), PROXY_IPTABLES)]
    assert list(split_repair(in_kernel(created), created.rulesets())) == []


def test_stale_chains_go_and_those_of_others_stay() -> None:
    created = contents("default/web")
    saved = in_kernel(created, ":KUBE-SVC-STALE - [0:0]", ":KUBE-KUBELET-CANARY - [0:0]", "-A KUBE-SVC-STALE -j RETURN")
    assert (
        repair(saved, created.rulesets(), PROXY_IPTABLES)
        == "*nat\n:KUBE-SVC-STALE - [0:0]\n-X KUBE-SVC-STALE\nCOMMIT\n"
    )


def test_jumps_are_put_back_once() -> None:
    created = contents("default/web")
    saved = in_kernel(created, '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES')
    (jump,) = [line for line in repair(saved, created.rulesets(), PROXY_IPTABLES).splitlines() if line.startswith("-")]
    assert jump == '-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
    saved["nat"]["PREROUTING"].clear()  # type: ignore[attr-defined]
    (jump,) = [line for line in repair(saved, created.rulesets(), PROXY_IPTABLES).splitlines() if line.startswith("-")]
    assert jump == '-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'


def test_removal_leaves_what_others_have() -> None:
    created = contents("default/web")
    saved = in_kernel(created, ":DOCKER - [0:0]", "-A PREROUTING -j DOCKER", "-A DOCKER -j RETURN")
    text = removal(saved, PROXY_IPTABLES)
    assert "DOCKER" not in text
    assert {f"-X {SVC}", f"-X {SEP_ONE}", "-X PODWIRE-PROXY"} <= set(text.splitlines())
    assert text.count("-D ") == sum(len(ruleset.jumps) for ruleset in created.rulesets())
    chains = sum(len(ruleset.chains) for ruleset in contents().rulesets())
    assert removal(in_kernel(contents()), PROXY_IPTABLES).count("-X") == chains
    assert removal({}, PROXY_IPTABLES) == ""


def test_order_in_shared_chains_is_free_except_the_end() -> None:
    tail = '-d 192.168.99.1/32 -m comment --comment "last" -j KUBE-NODEPORTS'
    assert PROXY_IPTABLES.equal(SERVICES, ["a", "b", tail], ["b", "a", tail])
    assert not PROXY_IPTABLES.equal(SERVICES, ["a", tail, "b"], ["a", "b", tail])
    assert not PROXY_IPTABLES.equal(("nat", SVC), ["a", "b"], ["b", "a"])


def test_ownership_is_by_name() -> None:
    ours = PROXY_IPTABLES.owns
    assert ours("nat", "KUBE-SEP-7WW7JE3MKVJF5U6Q") and ours("filter", "KUBE-FORWARD")
    assert not ours("filter", "KUBE-FIREWALL") and not ours("mangle", "KUBE-SERVICES") and not ours("nat", "KUBE-FOO")


def test_chains_shared_with_another_mode_are_left_to_it() -> None:
    both = frozenset(("PODWIRE-PROXY", "PODWIRE-IPVS"))
    alone, beside = PROXY_IPTABLES.beside(frozenset(("PODWIRE-PROXY",))), PROXY_IPTABLES.beside(both)
    assert alone.owns("nat", "KUBE-SERVICES") and not beside.owns("nat", "KUBE-SERVICES")
    assert beside.owns("filter", "KUBE-SERVICES") and beside.owns("nat", "KUBE-NODEPORTS")
    saved = in_kernel(contents("default/web"))
    remaining = removal(saved, beside)
    assert "-X KUBE-SERVICES" not in remaining[: remaining.index("*filter")] and "-D PREROUTING" not in remaining
    assert f"-X {SVC}" in remaining
