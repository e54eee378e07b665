"""What a policy data plane owes beside verdicts: nothing leaks while rules change, connections are cut and come back,
unknown devices and borrowed addresses stay out, others' tables stay.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.cases.policy_table import Case
from tests.kernel import policy_checks
from tests.kernel.policy_checks import (
    DB,
    DENY,
    OPEN,
    PORTS,
    RANGES,
    Echo,
    answered,
    begin,
    change,
    client,
    policy,
    reaches,
)
from tests.kernel.policy_namespaces import FACTS, World, inside, load, path
from tests.kernel.test_policy_packets import compilers

from podwire.errors import KernelError
from podwire.kernel.nft import Nft
from podwire.policy.dataplanes.nftables.dataplane import NftablesPolicy, clear
from podwire.policy.dataplanes.nftables.layout import TABLE
from podwire.state.nft_diff import AddElements, DeleteElements

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

echo = policy_checks.echo


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        made.attach_pods(OPEN)
        yield made


@pytest.fixture
def plane(world: World) -> Iterator[NftablesPolicy]:
    made = NftablesPolicy(FACTS["n1"], path("n1"))
    yield made
    made.remove()
    made.close()


def test_policy_change_cuts_a_connection_and_the_next_restores_it(
    world: World, plane: NftablesPolicy, echo: Echo
) -> None:
    policy_checks.cut_and_come_back(world, plane)


def test_answers_pass_where_both_ends_are_isolated(world: World, plane: NftablesPolicy, echo: Echo) -> None:
    only = policy("shop/only", podSelector={}, policyTypes=["Ingress", "Egress"])
    out = policy(
        "shop/out",
        podSelector={"matchLabels": {"app": "web"}},
        policyTypes=["Egress"],
        egress=[{"ports": [{"port": 5432}]}],
    )
    into = policy("shop/into", podSelector={"matchLabels": {"app": "db"}}, ingress=[{"ports": [{"port": 5432}]}])
    begin(plane, world, only=only, out=out, into=into)
    stream = client(socket.SOCK_STREAM)
    stream.connect((DB, 5432))
    assert answered(stream)
    stream.close()


def test_an_unknown_pod_can_neither_send_nor_receive(world: World, plane: NftablesPolicy) -> None:
    policy_checks.shut_off_strangers(world, plane)


def test_a_pod_cannot_send_with_another_pods_address(world: World, plane: NftablesPolicy) -> None:
    policy_checks.stop_borrowed_addresses(world, plane, lambda: counter("forward-egress") + counter("input"))
    assert (counter("forward-egress"), counter("input")) == (2, 1)


def test_forwarded_packets_are_judged_by_their_original_sender(world: World, plane: NftablesPolicy) -> None:
    policy_checks.judge_by_who_sent(world, plane)


def counter(chain: str) -> int:
    """The number of packets that a base chain dropped because of a wrong source address for their device."""
    text = inside("n1", "nft", "list", "chain", "ip", TABLE, chain)
    rule = next(line for line in text.splitlines() if "@pod-devices" in line)
    return int(rule.split("counter packets ")[1].split()[0])


@pytest.mark.parametrize("case", [OPEN, PORTS], ids=lambda case: case.name)
def test_nft_lists_what_is_desired(world: World, plane: NftablesPolicy, case: Case) -> None:
    load(plane, compilers(case)["n1"], world)
    text = "\n".join(str(table) for table in plane.desired())
    words = ["ip", "netns", "exec", path("n2").name, "nft", "-c", "-f", "-"]
    checked = subprocess.run(words, input=text, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    for table in plane.desired():
        listed = inside("n1", "nft", "list", "table", table.family, table.name)
        for chain in table.chains:
            assert f"chain {chain.name} {{" in listed
    with Nft(path("n1")) as nft:
        held = [nft.read(family, TABLE) for family in ("ip", "ip6")]
    assert [table.canonical() for table in held if table is not None] == list(plane.desired())


def test_ranges_change_as_elements_alone(world: World, plane: NftablesPolicy) -> None:
    compiler = compilers(OPEN)["n1"]
    facts = msgspec.structs.replace(FACTS["n1"], encapsulation_ports=(4789,), cluster_ranges=RANGES[-1])
    plane.load(compiler, world.devices("n1"), facts)
    for ranges in RANGES:
        facts = msgspec.structs.replace(facts, cluster_ranges=ranges, pod_ranges=ranges[:1])
        written = plane.update(compiler, world.devices("n1"), compiler.flush(), facts)
        operations = [operation for transaction in written for operation in transaction.operations]
        assert operations
        assert {type(operation) for operation in operations} <= {AddElements, DeleteElements}
        assert not any(plane.heal())
    assert not any(plane.load(compiler, world.devices("n1"), facts))


def test_foreign_tables_stay_and_own_tables_are_restored(world: World, plane: NftablesPolicy) -> None:
    compiler = compilers(PORTS)["n1"]
    load(plane, compiler, world)
    inside("n1", "nft", "add table ip somebody; add chain ip somebody c; add rule ip somebody c counter")
    assert not plane.disturbed()
    inside("n1", "nft", "delete table ip " + TABLE)
    assert plane.disturbed()
    assert any(plane.heal())
    assert not any(plane.heal())
    plane.remove()
    assert "somebody" in inside("n1", "nft", "list", "tables")
    inside("n1", "nft", "delete table ip somebody")
    assert not clear(path("n1"))


def test_a_full_load_follows_a_refused_change(world: World, plane: NftablesPolicy, echo: Echo) -> None:
    compiler = begin(plane, world)
    inside("n1", "nft", "delete table ip " + TABLE)
    change(plane, world, compiler, deny=DENY)
    assert not reaches("shop-web", DB)
    assert not any(plane.heal())


def test_table_owned_by_another_process_is_an_error(world: World, plane: NftablesPolicy) -> None:
    compiler = compilers(PORTS)["n1"]
    words = ["ip", "netns", "exec", path("n1").name, "nft", "-i"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdin is not None
        owner.stdin.write(f"add table ip {TABLE} {{ flags owner; }}\n")
        owner.stdin.flush()
        deadline = time.monotonic() + 30
        while TABLE not in inside("n1", "nft", "list", "tables"):
            assert time.monotonic() < deadline
        with pytest.raises(KernelError):
            load(plane, compiler, world)
        owner.stdin.close()
    load(plane, compiler, world)
    assert not any(plane.heal())
