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
from podwire.state.nft import Table
from podwire.state.nft_diff import AddElements, AddRule, DeleteElements, RestoreElements, Transaction

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

echo = policy_checks.echo


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(OPEN)
        yield created


@pytest.fixture
def plane(world: World) -> Iterator[NftablesPolicy]:
    nftables_policy = NftablesPolicy(FACTS["n1"], path("n1"))
    yield nftables_policy
    nftables_policy.remove()
    nftables_policy.close()


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
    arguments = ["ip", "netns", "exec", path("n2").name, "nft", "-c", "-f", "-"]
    checked = subprocess.run(arguments, input=text, text=True, capture_output=True, check=False)
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
    arguments = ["ip", "netns", "exec", path("n1").name, "nft", "-i"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as owner:
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


def added(written: tuple[Transaction, ...]) -> tuple[int, int]:
    """The rules and the elements that transactions add."""
    operations = [operation for transaction in written for operation in transaction.operations]
    elements = [o.elements for o in operations if isinstance(o, AddElements | RestoreElements)]
    return sum(isinstance(o, AddRule) for o in operations), sum(map(len, elements))


def of_ipv4(plane: NftablesPolicy) -> Table:
    return next(table for table in plane.desired() if table.family == "ip")


@pytest.fixture
def stream(world: World, plane: NftablesPolicy, echo: Echo) -> Iterator[socket.socket]:
    """A connection that policies allow, which goes on in the end."""
    begin(plane, world)
    with client(socket.SOCK_STREAM) as created:
        created.connect((DB, 5432))
        assert answered(created)
        yield created
        assert answered(created)


@pytest.mark.parametrize("name", ["egress", "ingress"])
def test_an_emptied_map_drops_until_its_elements_are_back(
    world: World, plane: NftablesPolicy, stream: socket.socket, name: str
) -> None:
    count = len(of_ipv4(plane).set(name).elements)
    inside("n1", "nft", f"flush map ip {TABLE} {name}")
    assert not reaches("shop-web", DB)
    assert plane.disturbed()
    assert added(plane.restore()) == (0, count)
    assert not any(plane.heal()), "nothing else differs"
    assert reaches("shop-web", DB)


def test_only_deleted_elements_of_policies_are_written(
    world: World, plane: NftablesPolicy, stream: socket.socket
) -> None:
    devices = of_ipv4(plane).set("pod-devices")
    first, *rest = (devices.element_text(key, element) for key, element in devices.elements.items())
    assert rest
    inside("n1", "nft", f"delete element ip {TABLE} pod-devices {{ {first} }}")
    assert plane.disturbed()
    assert added(plane.restore()) == (0, 1)
    assert not any(plane.heal())


@pytest.mark.parametrize("chain", ["forward-egress", "forward-ingress"])
def test_a_flushed_chain_of_policies_is_written_alone(
    world: World, plane: NftablesPolicy, stream: socket.socket, chain: str
) -> None:
    inside("n1", "nft", f"flush chain ip {TABLE} {chain}")
    assert plane.disturbed()
    assert added(plane.restore()) == (len(of_ipv4(plane).chain(chain).rules), 0)
    assert not any(plane.heal())


@pytest.mark.parametrize("command", ["delete table ip {}", "flush ruleset", "flush table ip {}"])
def test_lost_policies_deny_again_without_reading(
    world: World, plane: NftablesPolicy, echo: Echo, command: str
) -> None:
    begin(plane, world, deny=DENY)
    assert not reaches("shop-web", DB)
    inside("n1", "nft", command.format(TABLE))
    assert reaches("shop-web", DB), "no rules, no verdict"
    assert plane.disturbed()
    restored = plane.restore()
    assert not reaches("shop-web", DB)
    table = of_ipv4(plane)
    rules, elements = added(tuple(item for item in restored if item.family == "ip"))
    assert rules == sum(len(chain.rules) for chain in table.chains)
    assert elements == (0 if command.startswith("flush table") else sum(len(held.elements) for held in table.sets))
    assert not any(plane.heal())


def test_changed_ranges_of_a_policy_are_as_desired(world: World, plane: NftablesPolicy) -> None:
    compiler = compilers(PORTS)["n1"]
    load(plane, compiler, world)
    ranges = [held for held in of_ipv4(plane).sets if "interval" in held.flags and held.elements]
    assert any(held.data for held in ranges)
    for held in ranges:
        inside("n1", "nft", f"flush {'map' if held.data else 'set'} ip {TABLE} {held.name}")
        assert plane.disturbed()
        assert added(plane.restore()) == (0, len(held.elements))
        assert not any(plane.heal())
