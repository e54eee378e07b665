"""The BPF program ``dns_answers`` against the server's own functions: the same bytes, or the query is left alone."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel import dns_frames
from tests.unit.dns.test_zone import endpoints, service

from podwire.dns import wire
from podwire.dns.bpf.decision import KernelZone, decide
from podwire.dns.bpf.entries import EntryPlan, client_key, key_of
from podwire.dns.bpf.table import DnsMaps, DnsTable, possible_processors
from podwire.dns.names import encode_name
from podwire.dns.respond import Reply, respond
from podwire.dns.wire import DnsMessage, Edns
from podwire.dns.zone import Zone, ZoneOptions
from podwire.kernel import bpf_objects, bpf_syscall
from podwire.kernel.bpf_syscall import BpfMapTable, ProgramRun
from podwire.model.service import Service

DEVICE = 1
"""The interface index of lo, with which the kernel runs a program that no device has."""
UDP_SIZE = 1232
TC_ACT_REDIRECT, TC_ACT_UNSPEC = 7, 0xFFFFFFFF


def with_addresses(name: str, *addresses: str) -> Service:
    plain = service(name, addresses[0])
    return replace(plain, spec=replace(plain.spec, cluster_ips=addresses))


class Program:
    """The loaded program with its maps, a zone, and the table between them."""

    def __init__(self) -> None:
        self.program, descriptors = bpf_objects.load("dns_answers", {})
        self.open = {name: BpfMapTable(fd, name) for name, fd in descriptors.items()}
        self.maps = DnsMaps(*(self.open[f"dns_{field}"] for field in DnsMaps._fields))
        self.options = ZoneOptions()
        self.zone = Zone(self.options)
        self.plan = EntryPlan(self.options)
        self.table = DnsTable(self.plan, self.zone.index, ("kube-system", "kube-dns"), UDP_SIZE)
        self.table.use(self.maps)
        for address in dns_frames.CLIENT.values():
            self.maps.clients.write(client_key(DEVICE, address), b"\x01\0\0\0")
        self.fill()
        index = self.zone.index
        self.entries = self.plan.everything(index.namespaces, index.records)

    def fill(self) -> None:
        index = self.zone.index
        for name in ("shop", "kube-system", "default"):
            index.set_namespace(name, present=True)
        index.set_service("kube-system/kube-dns", with_addresses("kube-dns", "10.96.0.10", "fd96::10"), 5)
        for at in range(20):
            addresses = ("10.96.1.1", "fd96::1:1") if at % 3 == 0 else (f"10.96.1.{at}",)
            index.set_service(f"shop/web-{at}", with_addresses(f"web-{at}", *addresses), 5)
        for name, count in (("few", 3), ("many", 12), ("too-many", 40), ("empty", 0)):
            index.set_service(f"shop/{name}", service(name, "None"), 5)
            ips = [f"10.244.{count}.{at}" for at in range(count)]
            hosts = tuple(f"{name}-{at}" for at in range(count))
            index.set_slice(f"shop/{name}-x", endpoints(name, *ips, hostnames=hosts), 5)
        for name, count in (("six", 3), ("most", 12)):
            index.set_service(f"shop/{name}", service(name, "None"), 5)
            index.set_slice(f"shop/{name}-x", endpoints(name, *(f"fd44::{count}:{at}" for at in range(count))), 5)
            index.set_slice(f"shop/{name}-y", endpoints(name, f"10.245.{count}.1"), 5)
        index.set_service("shop/alias", service("alias", "", "ExternalName", "example.com"), 5)
        index.set_service("shop/inner", service("inner", "", "ExternalName", "few.shop.svc.cluster.local"), 5)
        index.mark_synced()
        self.table.follow()

    def run(self, query: bytes, **frame: object) -> ProgramRun:
        return bpf_syscall.run_program(self.program, dns_frames.frame(query, **frame), DEVICE)  # type: ignore[arg-type]

    def close(self) -> None:
        os.close(self.program)
        for table in self.open.values():
            table.close()


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with pytest.MonkeyPatch.context() as patch:
        # No process renews the lease here, and a busy machine may need minutes for the tests.
        patch.setattr("podwire.dns.bpf.table.LEASE_S", 3600.0)
        loaded = Program()
        yield loaded
        loaded.close()


def request(
    name: bytes, qtype: int = wire.A, edns: Edns | None = None, flags: int = wire.RD, ident: int = 0x1234
) -> bytes:
    return wire.encode(DnsMessage(ident, flags, name, qtype, edns=edns))


def named(text: str) -> bytes:
    return encode_name(text)


def rotated(reply: Reply, data: bytes) -> bool:
    """Whether ``data`` is the reply, beginning with any of its addresses."""
    step = reply.step
    if not step:
        return data == reply.data
    ring = reply.data[reply.start : reply.end]
    turns = [ring[at:] + ring[:at] for at in range(0, len(ring), step)]
    return data in [reply.data[: reply.start] + turn + reply.data[reply.end :] for turn in turns]


def generated(chance: random.Random) -> tuple[bytes, int | None]:
    """A query as programs send it, or a slightly broken one with the place where it is cut."""
    host = chance.choice(["", "", "few-1.", "many-11.", "_http._tcp.", "x.", "a.b.", "10-96-1-1."])
    own = chance.choice(
        ["web-1", "web-3", "few", "many", "six", "most", "too-many", "empty", "alias", "inner", "gone", "kube-dns"]
    )
    space = chance.choice(["shop", "shop", "default", "kube-system", "gone"])
    kind = chance.choice(["svc", "svc", "svc", "pod", "dns", "other"])
    text = chance.choice(
        [
            *[f"{own}.shop.svc.cluster.local", f"{host}{own}.{space}.{kind}.cluster.local"] * 6,
            f"{own}.{space}.svc.cluster.local.{space}.svc.cluster.local",
            f"{own}.{space}.svc.cluster.local.svc.cluster.local",
            f"example.com.{space}.svc.cluster.local",
            f"{own}.cluster.local",
            f"{space}.{kind}.cluster.local",
            f"{kind}.cluster.local",
            "cluster.local",
            "ns.dns.cluster.local",
            "dns-version.cluster.local",
            "example.com",
            "notcluster.local",
            "local",
            "a" * 63 + "." + "b" * 40 + ".shop.svc.cluster.local",
            "a" * 63 + "." + "b" * 20 + ".cluster.local",
            ".".join("abcdefghijklmnopq") + ".cluster.local",
        ]
    )
    text = "".join(chance.choice((c.lower(), c.upper())) for c in text) if chance.random() < 0.4 else text
    sizes = (0, 100, 512, 600, 1232, 4096, 65535)
    edns = Edns(chance.choice(sizes), dnssec_ok=chance.random() < 0.3) if chance.random() < 0.6 else None
    if edns is not None and chance.random() < 0.3:
        edns = Edns(edns.size, options=bytes.fromhex("000a00080102030405060708"))
    flags = chance.choice((wire.RD, 0, wire.RD | wire.AD, wire.RD | wire.CD, wire.RD | wire.TC, 0x0040))
    qtype = chance.choice((1, 1, 1, 1, 1, 1, 28, 28, 28, 28, 33, 16, 5, 6, 255, 252, 65))
    data = request(named(text), qtype, edns, flags, chance.getrandbits(16))
    if chance.random() < 0.1:
        broken = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            broken[chance.randrange(2, len(broken))] = chance.randrange(256)
        cut = chance.randint(12, len(broken))
        return bytes(broken)[:cut], cut
    return data, None


def test_answers_are_those_of_the_server_byte_for_byte(program: Program) -> None:
    chance = random.Random(5)
    answered: Counter[int] = Counter()
    before = program.table.counters()
    for _ in range(12_000):
        query, broken_at = generated(chance)
        family, checksum = chance.choice((4, 6)), chance.choice(("whole", "whole", "partial"))
        if broken_at is None and chance.random() < 0.01:
            query = dns_frames.with_ambiguous_checksum(query, family)
        sent = dns_frames.frame(query, family=family, checksum=checksum)
        run = bpf_syscall.run_program(program.program, sent, DEVICE)
        if broken_at is None:
            question = wire.parse_query(query)
            text = decide(question.name, question.qtype, KernelZone(program.plan.domain, program.entries))
            expected_verdict = TC_ACT_REDIRECT if text and not dns_frames.is_ambiguous(sent) else TC_ACT_UNSPEC
            assert run.verdict == expected_verdict, (query, text, Counter(program.table.counters()) - Counter(before))
        if run.verdict == TC_ACT_UNSPEC:
            assert run.packet == sent
            answered[-1] += 1
            continue
        assert run.verdict == TC_ACT_REDIRECT
        reply = dns_frames.read(run.packet, partial=checksum == "partial")
        assert (reply.source, reply.target) == (dns_frames.SERVER[family], dns_frames.CLIENT[family])
        assert reply.ports == (53, 40000)
        assert run.packet[:12] == dns_frames.MAC + dns_frames.GATEWAY
        expected = respond(program.zone, query, udp_ceiling=UDP_SIZE)
        assert isinstance(expected, Reply)
        assert rotated(expected, reply.payload), (query, expected.data, reply.payload)
        answered[expected.rcode] += 1
    assert min(answered[0], answered[3], answered[-1]) > 800, answered


@pytest.mark.parametrize(
    ("text", "qtype"),
    [
        ("web-1.shop.svc.cluster.local", 1),
        ("web-3.shop.svc.cluster.local", 28),
        ("WEB-1.shop.SVC.cluster.local", 28),
        ("few.shop.svc.cluster.local", 1),
        ("few-2.few.shop.svc.cluster.local", 1),
        ("six.shop.svc.cluster.local", 28),
        ("most.shop.svc.cluster.local", 28),
        ("empty.shop.svc.cluster.local", 1),
        ("gone.shop.svc.cluster.local", 33),
        ("shop.svc.cluster.local", 1),
        ("example.com.cluster.local", 1),
        ("web-1.shop.svc.cluster.local.shop.svc.cluster.local", 1),
        ("web-1.shop.svc.cluster.local.svc.cluster.local", 28),
        ("web-1.shop.svc.cluster.local.cluster.local", 1),
    ],
)
def test_kernel_answers_what_pods_ask_most(program: Program, text: str, qtype: int) -> None:
    for family in (4, 6):
        assert program.run(request(named(text), qtype), family=family).verdict == TC_ACT_REDIRECT


@pytest.mark.parametrize(
    "text",
    [
        "example.com",
        "alias.shop.svc.cluster.local",
        "too-many.shop.svc.cluster.local",
        "10-1-2-3.shop.pod.cluster.local",
        "_http._tcp.web-1.shop.svc.cluster.local",
        "cluster.local",
    ],
)
def test_server_answers_what_the_kernel_does_not_know(program: Program, text: str) -> None:
    assert program.run(request(named(text))).verdict == TC_ACT_UNSPEC


@pytest.mark.parametrize("checksum", ["whole", "partial"])
@pytest.mark.parametrize("family", [4, 6])
def test_query_whose_checksum_has_two_meanings_goes_to_the_server(program: Program, family: int, checksum: str) -> None:
    clear = request(named("web-1.shop.svc.cluster.local"))
    query = dns_frames.with_ambiguous_checksum(clear, family)
    before = program.table.counters()["checksum"]
    assert dns_frames.is_ambiguous(dns_frames.frame(query, family=family, checksum=checksum))
    assert program.run(query, family=family, checksum=checksum).verdict == TC_ACT_UNSPEC
    assert program.table.counters()["checksum"] == before + 1
    assert program.run(clear, family=family, checksum=checksum).verdict == TC_ACT_REDIRECT


def test_addresses_are_spread_evenly(program: Program) -> None:
    first: Counter[bytes] = Counter()
    for _ in range(3000):
        run = program.run(request(named("few.shop.svc.cluster.local")))
        first[wire.parse_message(dns_frames.read(run.packet).payload).answer[0].tail] += 1
    assert len(first) == 3
    assert sum((count - 1000) ** 2 / 1000 for count in first.values()) < 20, first


def test_other_packets_are_left_alone(program: Program) -> None:
    query = request(named("web-1.shop.svc.cluster.local"))
    assert program.run(query, port=5353).verdict == TC_ACT_UNSPEC
    assert program.run(query, source=bytes((10, 244, 1, 6))).verdict == TC_ACT_UNSPEC, "not the pod's own address"
    wrong = bytearray(dns_frames.frame(query))
    wrong[-1] ^= 1
    assert bpf_syscall.run_program(program.program, bytes(wrong), DEVICE).verdict == TC_ACT_UNSPEC
    fragment = bytearray(dns_frames.frame(query))
    fragment[20] = 0x20
    assert bpf_syscall.run_program(program.program, bytes(fragment), DEVICE).verdict == TC_ACT_UNSPEC
    assert program.run(query, checksum="none").verdict == TC_ACT_REDIRECT


def test_changes_are_answered_at_once(program: Program) -> None:
    index, query = program.zone.index, request(named("late.shop.svc.cluster.local"))
    for serial in range(100, 130):
        index.set_service("shop/late", service("late", f"10.96.7.{serial}") if serial % 3 else None, serial)
        program.table.follow()
        reply = respond(program.zone, query, udp_ceiling=UDP_SIZE)
        assert isinstance(reply, Reply)
        assert dns_frames.read(program.run(query).packet).payload == reply.data
    index.set_namespace("late", present=True)
    program.table.follow()
    assert dns_frames.read(program.run(request(named("late.svc.cluster.local"))).packet).payload[3] & 0xF == 0


def test_further_addresses_follow_their_name(program: Program) -> None:
    index, query = program.zone.index, request(named("grow.shop.svc.cluster.local"), wire.AAAA)
    index.set_service("shop/grow", service("grow", "None"), 300)
    for count in (1, 4, 12, 2, 1, 13, 3, 0):
        if count:
            ips = (f"fd44::9:{at:x}" for at in range(count))
            index.set_slice("shop/grow-x", endpoints("grow", *ips), 300 + count)
        else:
            index.set_slice("shop/grow-x", None, 400)
        program.table.follow()
        run = program.run(query)
        expected = respond(program.zone, query, udp_ceiling=UDP_SIZE)
        assert isinstance(expected, Reply)
        assert run.verdict == (TC_ACT_UNSPEC if count == 13 else TC_ACT_REDIRECT)
        assert count == 13 or rotated(expected, dns_frames.read(run.packet).payload)
        held = key_of(("grow", "shop", "svc"), program.plan.domain) in set(program.maps.more6)
        assert held == (1 < count < 13)
    index.set_service("shop/grow", None, 401)
    program.table.follow()


def test_query_between_writes_of_an_entry_goes_up(program: Program) -> None:
    key, query = key_of(("six", "shop", "svc"), program.plan.domain), request(named("six.shop.svc.cluster.local"), 28)
    names, more = program.maps.names.read(key), program.maps.more6.read(key)
    assert names is not None and more is not None
    for changed in (b"\x01\x02\x03\x04" + more[4:], more[:184] + bytes(8), None):
        if changed is None:
            program.maps.more6.delete(key)
        else:
            program.maps.more6.write(key, changed)
        before = program.table.counters()["changed"]
        assert program.run(query).verdict == TC_ACT_UNSPEC
        assert program.table.counters()["changed"] == before + 1
    program.maps.more6.write(key, more)
    assert program.run(query).verdict == TC_ACT_REDIRECT


def test_query_that_interrupts_another_one_goes_to_the_server(program: Program) -> None:
    query, zero, scratch = request(named("web-1.shop.svc.cluster.local")), bytes(4), program.open["dns_scratch"]
    size = scratch.shape.value + 7 & ~7
    before = program.table.counters()["busy"]
    scratch.write(zero, (b"\x01".ljust(size, b"\0")) * possible_processors())
    assert program.run(query).verdict == TC_ACT_UNSPEC
    assert program.table.counters()["busy"] == before + 1
    scratch.write(zero, bytes(size * possible_processors()))
    for _ in range(2):
        assert program.run(query).verdict == TC_ACT_REDIRECT


def test_long_names_go_to_the_server_while_there_are_some(program: Program) -> None:
    index, owner = program.zone.index, "a" * 50
    own, missing = (request(named(f"{name}.shop.svc.cluster.local")) for name in (owner, "b" * 50))
    assert program.run(own).verdict == program.run(missing).verdict == TC_ACT_REDIRECT, "both do not exist"
    index.set_service(f"shop/{owner}", service(owner, "10.96.7.1"), 200)
    program.table.follow()
    assert program.run(own).verdict == program.run(missing).verdict == TC_ACT_UNSPEC
    assert program.run(request(named("gone.shop.svc.cluster.local"))).verdict == TC_ACT_REDIRECT
    index.set_service(f"shop/{owner}", None, 201)
    program.table.follow()
    assert program.run(own).verdict == TC_ACT_REDIRECT
    reply = respond(program.zone, own, udp_ceiling=UDP_SIZE)
    assert isinstance(reply, Reply)
    assert dns_frames.read(program.run(own).packet).payload == reply.data


def test_answers_end_with_the_lease(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    query = request(named("web-1.shop.svc.cluster.local"))
    monkeypatch.setattr("podwire.dns.bpf.table.LEASE_S", -1.0)
    program.table.renew()
    assert program.run(query).verdict == TC_ACT_UNSPEC
    assert program.table.counters()["lease"] >= 1
    monkeypatch.undo()
    program.table.renew()
    assert program.run(query).verdict == TC_ACT_REDIRECT


def test_new_process_keeps_right_entries_and_deletes_the_rest(program: Program) -> None:
    stale = key_of(("stale", "shop", "svc"), program.plan.domain)
    program.maps.names.write(stale, program.maps.names.read(next(iter(program.maps.names))) or b"")
    further = next(iter(program.maps.more6))
    program.maps.more6.write(stale, program.maps.more6.read(further) or b"")
    before = {key: program.maps.names.read(key) for key in program.maps.names if key != stale}
    before6 = {key: program.maps.more6.read(key) for key in program.maps.more6 if key != stale}
    following = DnsTable(EntryPlan(program.options), program.zone.index, ("kube-system", "kube-dns"), UDP_SIZE)
    following.use(program.maps)
    following.follow()
    assert {key: program.maps.names.read(key) for key in program.maps.names} == before
    assert {key: program.maps.more6.read(key) for key in program.maps.more6} == before6
    program.zone.index.on_service, program.zone.index.on_namespace = (
        program.table._changed.add,
        program.table._namespaces.add,
    )


def test_object_carries_no_path_of_the_machine_that_compiled_it() -> None:
    assert str(Path.cwd()).encode() not in bpf_objects.compiled("dns_answers")
