"""BPF programs, maps and attachments as state: read, apply, heal, replace without a gap, leave foreign ones alone."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernel import dns_frames
from tests.kernel.dns_pod import CLIENT, CLIENT6, DEVICE, SERVER, SERVER6, WEB, DnsPod, inside

from podwire.dns import wire
from podwire.dns.bpf.runner import DnsAnswers
from podwire.dns.names import encode_name
from podwire.dns.zone import Zone, ZoneOptions
from podwire.errors import KernelError
from podwire.kernel import bpf_objects, bpf_state, bpf_syscall, ethtool, netns
from podwire.kernel.features import Features
from podwire.kernel.kinds import KERNEL_KINDS
from podwire.runtime.clock import SystemClock
from podwire.state import share
from podwire.state.bpf import BpfAttachment, BpfFolder
from podwire.state.kinds import KINDS
from podwire.state.offload import Offload
from podwire.state.share import Share


@pytest.fixture
def make_pod(tmp_path: Path) -> Iterator[Callable[..., DnsPod]]:
    made: list[DnsPod] = []

    def make(**options: bool) -> DnsPod:
        made.append(DnsPod(tmp_path, **options))
        return made[-1]

    yield make
    for pod in made:
        pod.close()


@pytest.fixture(params=[True, False], ids=["tcx", "clsact"])
def pod(request: pytest.FixtureRequest, make_pod: Callable[..., DnsPod]) -> DnsPod:
    return make_pod(tcx=request.param)


def test_applied_folder_reads_back_and_answers(pod: DnsPod) -> None:
    assert pod.ask() is None
    pod.answer()
    reply = pod.ask()
    assert reply is not None
    assert [record.tail for record in reply.answer] == [bytes((10, 96, 0, 77))]
    assert pod.read() == pod.desired()
    assert pod.apply() == ()
    missing = pod.ask(f"{WEB}.shop.svc.cluster.local")
    assert missing is not None
    assert missing.rcode == wire.NXDOMAIN


@pytest.mark.parametrize("offload", ["on", "off"])
def test_both_families_are_answered_with_right_checksums(make_pod: Callable[..., DnsPod], offload: str) -> None:
    """Without offload the pod's kernel checks every checksum; a packet socket shows what is on the wire."""
    pod = make_pod()
    with netns.inside(pod.pod):
        ethtool.apply(None, ("eth0",), [Offload("eth0", offload)])
    with netns.inside(pod.node):
        ethtool.apply(None, (DEVICE,), [Offload(DEVICE, offload)])
        seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    pod.answer()
    with seen:
        seen.bind((DEVICE, 3))
        seen.settimeout(10)
        for server in (SERVER, SERVER6):
            assert pod.ask(server=server) is not None
            while (data := seen.recv(2048))[-16:-4] != b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4":
                pass
            dns_frames.read(data, partial=offload == "on")


def test_detached_program_is_attached_again(pod: DnsPod) -> None:
    pod.answer()
    links = list((bpf_state.BPF_FILE_SYSTEM / "podwire" / pod.folder / "links").iterdir())
    for path in links:
        path.unlink()
    if not links:
        inside(pod.node, "tc", "filter", "delete", "dev", DEVICE, "ingress")
    while pod.ask() is not None:
        pass  # The kernel ends a link some moments after its last name is gone.
    assert [line[:12] for line in pod.apply()] == ["+ bpf-attach"]
    assert pod.ask() is not None


def test_device_that_comes_back_is_attached_again(pod: DnsPod) -> None:
    pod.answer()
    inside(pod.node, "ip", "link", "delete", DEVICE)
    assert pod.read() != pod.desired()
    pod.apply()
    pod.add_device()
    pod.apply()
    pod.admit()
    assert pod.ask() is not None
    assert pod.read() == pod.desired()


def test_maps_keep_their_contents_when_the_program_is_loaded_again(pod: DnsPod) -> None:
    pod.answer()
    for path in (bpf_state.BPF_FILE_SYSTEM / "podwire" / pod.folder / "programs").iterdir():
        path.unlink()
    pod.apply()
    assert pod.ask() is not None


def test_map_of_another_shape_is_made_anew(pod: DnsPod) -> None:
    pod.answer()
    maps = bpf_state.BPF_FILE_SYSTEM / "podwire" / pod.folder / "maps"
    (maps / "dns_names").unlink()
    other = bpf_syscall.open_pin(str(maps / "dns_counters"))
    bpf_syscall.pin(other, str(maps / "dns_names"))
    os.close(other)
    (maps / "dns_clients").unlink()
    assert "+ bpf-map" in {line[:9] for line in pod.apply()}
    assert pod.read() == pod.desired()
    assert pod.ask() is None, "the new maps are empty"


def test_empty_map_of_names_makes_no_name_missing(make_pod: Callable[..., DnsPod]) -> None:
    pod = make_pod()
    pod.answer()
    (bpf_state.BPF_FILE_SYSTEM / "podwire" / pod.folder / "maps" / "dns_names").unlink()
    service, clock = ("kube-system", "kube-dns"), SystemClock()
    answers = DnsAnswers(Zone(ZoneOptions()), ZoneOptions(), service, pod.folder, clock)
    answers.widen({DEVICE: (CLIENT, CLIENT6)})

    async def follow_until_made_anew() -> None:
        following = asyncio.create_task(answers.run())
        while not (pod.pins.path / "maps" / "dns_names").exists() or not answers.desired:
            await clock.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    with netns.inside(pod.node):
        asyncio.run(follow_until_made_anew())
        assert pod.pins.read() == answers.desired
    assert pod.ask() is None, "the lists are not complete, so the server answers"


def test_removed_folder_leaves_nothing_behind(pod: DnsPod) -> None:
    pod.answer()
    with netns.inside(pod.node):
        pod.pins.remove()
    while pod.ask() is not None:
        pass  # As above.
    assert pod.folder not in bpf_state.folders()
    assert "podwire" not in inside(pod.node, "tc", "filter", "show", "dev", DEVICE, "ingress")


def test_no_query_is_lost_while_the_program_is_replaced(pod: DnsPod) -> None:
    pod.answer()
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            for path in (bpf_state.BPF_FILE_SYSTEM / "podwire" / pod.folder / "programs").iterdir():
                path.unlink()
            pod.apply()

    worker = threading.Thread(target=replace)
    worker.start()
    try:
        with pod.client() as link:
            query = wire.encode(wire.DnsMessage(7, wire.RD, encode_name(WEB), wire.A))
            for _ in range(3000):
                link.send(query)
                link.recv(512)
    finally:
        done.set()
        worker.join()


def test_filters_of_others_stay(pod: DnsPod) -> None:
    inside(pod.node, "tc", "qdisc", "add", "dev", DEVICE, "clsact")
    foreign = f"tc filter add dev {DEVICE} ingress pref 7 protocol ip bpf flowid 1:1 bytecode"
    inside(pod.node, *foreign.split(), "1,6 0 0 0")
    before = inside(pod.node, "tc", "filter", "show", "dev", DEVICE, "ingress")
    pod.answer()
    with netns.inside(pod.node):
        pod.pins.remove()
    assert inside(pod.node, "tc", "filter", "show", "dev", DEVICE, "ingress") == before


def test_xdp_program_of_another_owner_stays(make_pod: Callable[..., DnsPod]) -> None:
    pod = make_pod()
    described = bpf_objects.describe("dns_answers", pod.folder)
    with netns.inside(pod.node):
        index = socket.if_nametoindex(DEVICE)
        foreign = bpf_syscall.load_program(6, b"\xb7\x00\x00\x00\x02\x00\x00\x00\x95" + bytes(7))
        link = bpf_syscall.create_link(foreign, index, bpf_syscall.BPF_XDP, 2, DEVICE)
        ours = bpf_state.BpfPins(pod.folder)
        (ours.path / "links").mkdir(parents=True)
        with pytest.raises(KernelError) as refused:
            ours._attachments.attach(DEVICE, "xdp", foreign)
        assert refused.value.errno == 16
        os.close(link)
        ours._attachments.attach(DEVICE, "xdp", foreign)
        held = ours.read().attachments
        assert [(a.device, a.hook) for a in held] == [(DEVICE, "xdp")]
        ours.apply(BpfFolder(pod.folder))
        assert ours.read().attachments == ()
        os.close(foreign)
    assert described.attachments == ()


def test_kind_of_state_shows_and_heals_differences(make_pod: Callable[..., DnsPod]) -> None:
    pod = make_pod()
    kind, kernel = KINDS["bpf"], KERNEL_KINDS["bpf"]
    part = Share(part="dns", netns=str(pod.node), desired=(pod.desired(),))
    parsed = share.parse([*share.render([part])])
    assert parsed == [part]
    mark = part.mark(kind)
    assert kernel.read(pod.node, mark) == ()
    assert [d.sign for d in part.compare(kind, ())] == ["+"] * len([*pod.desired().lines()])
    assert kernel.apply(pod.node, mark, part.desired)
    assert not list(part.compare(kind, kernel.read(pod.node, mark)))
    assert kernel.differs is not None
    assert not kernel.differs(pod.node, part.desired)
    surplus = BpfAttachment(DEVICE, "egress", "dns_answers")
    pod.apply(BpfFolder(pod.folder, pod.desired().programs, pod.desired().maps, (*pod.desired().attachments, surplus)))
    assert [(d.sign, d.text) for d in part.compare(kind, kernel.read(pod.node, mark))] == [
        ("-", f"bpf-attach {pod.folder} {DEVICE} hook egress program dns_answers")
    ]
    kernel.apply(pod.node, mark, part.desired)
    assert not kernel.differs(pod.node, part.desired)


def test_probes_say_what_the_kernel_has() -> None:
    features = Features()
    for name in ("bpf", "bpffs", "tcx", "libbpf"):
        assert features.probe(name).verdict == "yes", name


def test_a_missing_file_system_is_mounted_once() -> None:
    script = """
import ctypes
from podwire.kernel import bpf_state
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, 16384 | 1 << 18, None) == 0
while libc.umount2(b"/sys/fs/bpf", 2) == 0:
    pass
try:
    bpf_state.check_file_system()
except Exception as missing:
    print(missing)
print(bpf_state.mount_file_system(), bpf_state.mount_file_system())
bpf_state.check_file_system()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no BPF file system is mounted on /sys/fs/bpf" in done.stdout and done.stdout.endswith("True False\n")
