"""What a policy data plane owes beside verdicts: nothing leaks while rules change, connections are cut and come back,
unknown devices and borrowed addresses stay out, others' tables stay.
"""

import contextlib
import os
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.kernel.policyworld import FACTS, World, batch, inside, load, path
from tests.kernel.test_policy_packets import CASES, compilers

from podwire.errors import KernelError
from podwire.kernel import netns
from podwire.kernel.nft import Nft
from podwire.model.meta import key_of
from podwire.model.policy import NetworkPolicy
from podwire.policy.compile import Compiler
from podwire.policy.dataplanes.nftables.dataplane import NftablesPolicy, clear
from podwire.policy.dataplanes.nftables.layout import TABLE
from podwire.state.nft_diff import AddElements, DeleteElements
from podwire.testing.policycases import Case

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

OPEN = next(case for case in CASES if case.name == "without a policy everything passes")
PORTS = next(case for case in CASES if case.name == "ports, protocols and ranges")
WEB, DB = "10.180.0.1", "10.180.0.2"
_IP_TRANSPARENT = 19


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        for pod in OPEN.world.pods:
            if not pod.spec.host_network:
                made.attach(key_of(pod.metadata), pod.spec.node_name, pod.addresses)
        yield made


@pytest.fixture
def plane(world: World) -> Iterator[NftablesPolicy]:
    made = NftablesPolicy(FACTS["n1"], path("n1"))
    yield made
    made.remove()
    made.close()


def policy(name: str, **spec: object) -> NetworkPolicy:
    namespace, _, short = name.partition("/")
    return msgspec.convert({"metadata": {"name": short, "namespace": namespace}, "spec": spec}, NetworkPolicy)


DENY = policy("shop/deny", podSelector={"matchLabels": {"app": "db"}}, policyTypes=["Ingress"])
ALLOW = policy("shop/allow", podSelector={"matchLabels": {"app": "db"}}, ingress=[{"from": [{"podSelector": {}}]}])


def change(plane: NftablesPolicy, world: World, compiler: Compiler, **policies: NetworkPolicy | None) -> None:
    for name, made in policies.items():
        compiler.set_policy(f"shop/{name}", made)
    plane.update(compiler, world.devices("n1"), compiler.flush())


class Echo(threading.Thread):
    """Echoes TCP and UDP on port 5432 of a namespace."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        with netns.inside(path(name)):
            self.listener = socket.create_server(("", 5432), backlog=64)
            self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(("", 5432))
        self.selector = selectors.DefaultSelector()
        for sock in (self.listener, self.datagrams):
            sock.setblocking(False)
            self.selector.register(sock, selectors.EVENT_READ)
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            for ready, _ in self.selector.select(0.1):
                with contextlib.suppress(OSError):
                    self.answer(ready.fileobj)  # type: ignore[arg-type]

    def answer(self, sock: socket.socket) -> None:
        if sock is self.listener:
            connection, _ = sock.accept()
            self.selector.register(connection, selectors.EVENT_READ)
        elif sock is self.datagrams:
            data, sender = sock.recvfrom(4096)
            sock.sendto(data, sender)
        elif data := sock.recv(4096):
            sock.sendall(data)
        else:
            self.selector.unregister(sock)
            sock.close()

    def close(self) -> None:
        self.stopping = True
        self.join()
        for entry in tuple(self.selector.get_map().values()):
            entry.fileobj.close()  # type: ignore[union-attr]
        self.selector.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo("shop-db")
    made.start()
    yield made
    made.close()


def client(kind: int, seconds: float = 0.3) -> socket.socket:
    with netns.inside(path("shop-web")):
        made = socket.socket(socket.AF_INET, kind)
    made.settimeout(seconds)
    return made


def answered(sock: socket.socket) -> bool:
    try:
        sock.send(b"x")
        return sock.recv(100) != b""
    except OSError:
        return False


def test_a_connection_is_cut_by_the_change_and_comes_back_with_the_next(
    world: World, plane: NftablesPolicy, echo: Echo
) -> None:
    compiler = compilers(OPEN)["n1"]
    load(plane, compiler, world)
    stream, datagrams = client(socket.SOCK_STREAM, 5.0), client(socket.SOCK_DGRAM)
    stream.connect((DB, 5432))
    datagrams.connect((DB, 5432))
    assert answered(stream)
    assert answered(datagrams)
    change(plane, world, compiler, deny=DENY)
    assert not answered(datagrams)
    stream.settimeout(0.3)
    assert not answered(stream)
    change(plane, world, compiler, allow=ALLOW)
    assert answered(datagrams)
    stream.settimeout(5.0)
    assert stream.recv(100) == b"x"
    stream.close()
    datagrams.close()


def test_answers_pass_where_both_ends_are_isolated(world: World, plane: NftablesPolicy, echo: Echo) -> None:
    compiler = compilers(OPEN)["n1"]
    only = policy("shop/only", podSelector={}, policyTypes=["Ingress", "Egress"])
    out = policy(
        "shop/out",
        podSelector={"matchLabels": {"app": "web"}},
        policyTypes=["Egress"],
        egress=[{"ports": [{"port": 5432}]}],
    )
    into = policy("shop/into", podSelector={"matchLabels": {"app": "db"}}, ingress=[{"ports": [{"port": 5432}]}])
    change_all = {"only": only, "out": out, "into": into}
    for name, made in change_all.items():
        compiler.set_policy(f"shop/{name}", made)
    compiler.flush()
    load(plane, compiler, world)
    stream = client(socket.SOCK_STREAM)
    stream.connect((DB, 5432))
    assert answered(stream)
    stream.close()


def arrived() -> int:
    """Datagrams that the pod's kernel saw, whether somebody listens or not."""
    words = inside("shop-db", "cat", "/proc/net/snmp").splitlines()
    names, values = (line.split() for line in words if line.startswith("Udp:"))
    counts = dict(zip(names, values, strict=True))
    return int(counts["InDatagrams"]) + int(counts["NoPorts"])


def test_a_pod_that_nobody_told_of_is_shut_off(world: World, plane: NftablesPolicy) -> None:
    compiler = compilers(OPEN)["n1"]
    load(plane, compiler, world)
    world.attach("shop/new", "n1", ("10.180.0.9",))
    try:
        before = arrived()
        assert not reaches("shop-new", DB)
        assert arrived() == before
        assert not reaches("shop-web", "10.180.0.9")
    finally:
        world.detach("shop/new")


def reaches(name: str, address: str) -> bool:
    """Whether a datagram is answered, be it by a refusal."""
    with netns.inside(path(name)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.settimeout(0.3)
        sock.connect((address, 9))
        try:
            sock.send(b"x")
            sock.recv(10)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return True


def test_a_pod_cannot_send_from_another_ones_address(world: World, plane: NftablesPolicy) -> None:
    compiler = compilers(OPEN)["n1"]
    load(plane, compiler, world)
    batch("blog-db", [f"address add {WEB}/32 dev eth0"])
    try:
        before = arrived()
        with netns.inside(path("blog-db")):
            thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with thief:
            thief.bind((WEB, 0))
            for target in (DB, "192.168.99.1", "192.168.99.9"):
                thief.sendto(b"x", (target, 5432))
        time.sleep(0.1)
        assert arrived() == before
        assert counter("forward-egress") == 2
        assert counter("input") == 1
    finally:
        batch("blog-db", [f"address delete {WEB}/32 dev eth0"])


def counter(chain: str) -> int:
    """Packets that a base chain dropped because their source is not that of their device."""
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


RANGES = (
    ("10.180.0.0/24", "10.180.1.0/24", "fd18::/64"),
    ("10.180.0.0/23", "10.180.4.0/24", "fd18::/63"),
    ("10.180.0.0/22", "10.180.4.0/24"),
    ("10.180.1.0/24", "10.180.2.0/23", "fd18::/64", "fd18:0:0:2::/64"),
)
"""One after the other those of a cluster whose nodes come and go: next to each other, in each other, others."""


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


def test_tables_of_others_stay_and_our_own_come_back(world: World, plane: NftablesPolicy) -> None:
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


def test_a_refused_change_is_answered_by_a_full_load(world: World, plane: NftablesPolicy, echo: Echo) -> None:
    compiler = compilers(OPEN)["n1"]
    load(plane, compiler, world)
    inside("n1", "nft", "delete table ip " + TABLE)
    change(plane, world, compiler, deny=DENY)
    assert not reaches("shop-web", DB)
    assert not any(plane.heal())


def test_a_table_that_somebody_else_owns_is_an_error_until_it_is_free(world: World, plane: NftablesPolicy) -> None:
    compiler = compilers(PORTS)["n1"]
    words = ["ip", "netns", "exec", path("n1").name, "nft", "-i"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdin is not None
        owner.stdin.write(f"add table ip {TABLE} {{ flags owner; }}\n")
        owner.stdin.flush()
        deadline = time.monotonic() + 5
        while TABLE not in inside("n1", "nft", "list", "tables"):
            assert time.monotonic() < deadline
        with pytest.raises(KernelError):
            load(plane, compiler, world)
        owner.stdin.close()
    load(plane, compiler, world)
    assert not any(plane.heal())


def arrives(source: str) -> bool:
    """Whether a datagram comes to the pod that its node sends from an address, as IPVS sends on what it carries."""
    with netns.inside(path("n1")):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    before = arrived()
    with sock:
        sock.setsockopt(socket.SOL_IP, _IP_TRANSPARENT, 1)
        sock.bind((source, 0))
        with contextlib.suppress(PermissionError):  # what a drop in the output hook is to who sends
            sock.sendto(b"x", (DB, 5432))
    time.sleep(0.05)
    return arrived() > before


def test_what_is_sent_on_by_the_node_is_judged_by_who_sent_it(world: World, plane: NftablesPolicy) -> None:
    compiler = compilers(OPEN)["n1"]
    into = policy("shop/into", podSelector={"matchLabels": {"app": "db"}}, ingress=[{"from": [{"podSelector": {}}]}])
    compiler.set_policy("shop/into", into)
    compiler.flush()
    load(plane, compiler, world)
    assert arrives("192.168.99.1"), "the node itself"
    assert arrives(WEB), "a pod that may come in"
    assert not arrives("10.180.1.2"), "a pod of another namespace"
    assert not arrives("203.0.113.9"), "somebody outside"
    out = policy("shop/out", podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Egress"])
    change(plane, world, compiler, out=out)
    assert not arrives(WEB), "a pod that may not go out"
