"""NetworkPolicy: what a packet pays for it, and what a change costs.

Packets are UDP datagrams between two pods of one node, each new to nobody (the connection is known after the first, and
the original direction is looked up packet by packet), sent in batches from a ring that the kernel empties, so that
little else than the kernel's work is measured. Beside it the same packets without any rule, with connection tracking
alone (which Services need anyway; the aim is 0.6 us above it), through the data plane iptables with rules of both
kinds, and through a chain of iptables with a rule for each policy, the last of which matches. Changes are programmed
in a cluster of 10,000 pods and 1,000 policies, seen from a node with 100 of the pods: from the changed object to the
kernel's answer. Memory is what all of that adds to a process: the objects as the agent keeps them, what is compiled
of them, and the tables. After a change that takes something away the agent looks through the flows of its pods,
beside everything else.

    sudo python -m bench.policy [--quick]
"""

import gc
import mmap
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from bench.alone import ROOT, run_alone
from bench.flows import track
from bench.policy_growth import growth
from bench.table import Row

from podwire.kernel import netns
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.iptables import Kind, find
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from podwire.model.policy import NetworkPolicy
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyDataPlane, PolicyFacts
from podwire.policy.dataplanes.iptables.dataplane import IptablesPolicy
from podwire.policy.dataplanes.nftables.contents import Contents
from podwire.policy.dataplanes.nftables.dataplane import NftablesPolicy
from podwire.policy.dataplanes.nftables.layout import TableLayout
from podwire.policy.flows import forget, verdicts
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.settings import ENCAPSULATION_PORTS
from podwire.policy.trim import trim_pod
from podwire.state.nft_diff import AddElements

FACTS = PolicyFacts(
    pod_ranges=("10.180.0.0/24",),
    addresses=("192.168.99.1",),
    cluster_ranges=("10.180.0.0/16",),
    encapsulation_ports=ENCAPSULATION_PORTS,
)
ONE, TWO = "10.180.0.1", "10.180.0.2"
FRAMES, FRAME = 4096, 256
_PACKET_TX_RING, _HEADER, _SEND_REQUEST = 13, 32, 1
_SOL_PACKET = 263
TRACKED = "connections tracked, no rules"
PLANES: dict[str, Kind] = {"iptables (nft) and ipset": "nft", "iptables (legacy) and ipset": "legacy"}
_TRACK = "table ip t { chain c { type filter hook forward priority 0; ct state new continue; }; }"


def netns_path(name: str) -> Path:
    return Path(f"/run/netns/pwbench-{os.getpid()}-{name}")


def ip(name: str, *lines: str) -> None:
    """Commands of ip(8) in a namespace."""
    arguments = ["ip", "-n", netns_path(name).name, "-batch", "-"]
    subprocess.run(arguments, input="\n".join(lines), text=True, check=True)


@contextmanager
def two_pods() -> Iterator[None]:
    """A node and two pods on it."""
    names = ("node", "one", "two")
    for name in names:
        netns.create(netns_path(name))
    try:
        with netns.inside(netns_path("node")):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number, (name, address) in enumerate((("one", ONE), ("two", TWO)), 1):
            mac = f"02:00:00:00:00:0{number}"
            far = f"peer name eth0 address {mac} netns {netns_path(name).name}"
            ip("node", f"link add {name} address 02:00:00:00:01:00 type veth {far}", f"link set {name} up")
            ip(name, "link set lo up", "link set eth0 up", f"address add {address}/32 dev eth0")
            ip(name, "route add 169.254.1.1 dev eth0", "route add default via 169.254.1.1 dev eth0")
            ip(name, "neigh add 169.254.1.1 lladdr 02:00:00:00:01:00 dev eth0")
            ip("node", f"route add {address} dev {name}", f"neigh add {address} lladdr {mac} dev {name}")
        yield
    finally:
        for name in names:
            netns.delete(netns_path(name))


class Ring:
    """Frames in memory that the kernel sends when it is told to."""

    def __init__(self) -> None:
        with netns.inside(netns_path("one")):
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        block = FRAMES * FRAME
        request = struct.pack("IIII", block, 1, FRAME, FRAMES)
        self._sock.setsockopt(_SOL_PACKET, _PACKET_TX_RING, request)
        self._sock.bind(("eth0", 0x0800))
        self._ring = mmap.mmap(self._sock.fileno(), block)
        frame = datagram()
        for number in range(FRAMES):
            at = number * FRAME
            struct.pack_into("I", self._ring, at + 8, len(frame))
            self._ring[at + _HEADER : at + _HEADER + len(frame)] = frame

    def send(self) -> float:
        """Sends all frames once; microseconds for each."""
        for number in range(FRAMES):
            struct.pack_into("Q", self._ring, number * FRAME, _SEND_REQUEST)
        started = time.perf_counter()
        self._sock.sendto(b"", ("eth0", 0x0800))
        return (time.perf_counter() - started) / FRAMES * 1e6

    def close(self) -> None:
        self._ring.close()
        self._sock.close()


def datagram() -> bytes:
    """A whole frame from the first pod to the second one's port 9."""
    addresses = socket.inet_aton(ONE) + socket.inet_aton(TWO)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 36, 0, 0, 64, 17, 0) + addresses
    arguments = sum(struct.unpack("!10H", head))
    checksum = ~((arguments & 0xFFFF) + (arguments >> 16)) & 0xFFFF
    head = head[:10] + struct.pack("!H", checksum) + head[12:]
    ethernet = bytes.fromhex("020000000100020000000001") + struct.pack("!H", 0x0800)
    return ethernet + head + struct.pack("!HHHH", 40000, 9, 16, 0) + b"12345678"


@contextmanager
def sink() -> Iterator[None]:
    """Takes what comes to port 9, and reads nothing of it."""
    with netns.inside(netns_path("two")):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.bind((TWO, 9))
        yield


def pod(namespace: str, name: str, node: str, address: str, **labels: str) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, labels=labels),
        spec=PodSpec(
            node_name=node,
            containers=(Container(name="c", ports=(ContainerPort(container_port=8080, name="http"),)),),
        ),
        status=PodStatus(phase="Running", pod_ip=address),
    )


def policy(name: str, **spec: object) -> NetworkPolicy:
    namespace, _, short = name.partition("/")
    return msgspec.convert({"metadata": {"name": short, "namespace": namespace}, "spec": spec}, NetworkPolicy)


def compiler_for(policies: int, peers: int, blocks: int) -> Compiler:
    """Two pods, so many policies that select both, so many other pods and CIDRs among their peers."""
    compiler = Compiler("node")
    compiler.set_pod("shop/one", pod("shop", "one", "node", ONE, app="client"))
    compiler.set_pod("shop/two", pod("shop", "two", "node", TWO, app="server"))
    for number in range(peers):
        address = f"10.181.{number >> 8}.{number & 255}"
        compiler.set_pod(f"shop/p{number}", pod("shop", f"p{number}", "other", address, app=f"a{number % 40}"))
    for number in range(policies - 1):
        peer = {"podSelector": {"matchLabels": {"app": f"a{number % 40}"}}}
        rule = {"from": [peer], "ports": [{"port": 1000 + number, "protocol": "UDP"}]}
        compiler.set_policy(f"shop/p{number}", policy(f"shop/p{number}", podSelector={}, ingress=[rule]))
    if policies:
        peer = {"podSelector": {"matchLabels": {"app": "client"}}}
        ranges = [{"ipBlock": {"cidr": f"11.{n >> 8}.{n & 255}.0/25"}} for n in range(blocks)]
        rule = {"from": [peer, *ranges], "ports": [{"port": 9, "protocol": "UDP"}]}
        compiler.set_policy("shop/last", policy("shop/last", podSelector={}, ingress=[rule]))
    compiler.flush()
    return compiler


def iptables_rules(count: int) -> str:
    """A chain with a rule for each policy, as a straightforward translation has it."""
    lines = [f"-A FORWARD -s 10.182.0.{n % 250} -p udp --dport {1000 + n} -j ACCEPT" for n in range(count - 1)]
    last = [f"-A FORWARD -s {ONE} -p udp --dport 9 -j ACCEPT", "-A FORWARD -j DROP"] if count else []
    return "\n".join(("*filter", *lines, *last, "COMMIT", ""))


def packets(runs: int, policies: int, peers: int, blocks: int) -> Row:
    """Microseconds for each packet: with policies, without any rule, with iptables; in turns."""
    arguments = "nftables", "no rules", TRACKED, *PLANES, "a rule for each (iptables)"
    result: dict[str, list[float]] = {word: [] for word in arguments}
    compiler = compiler_for(policies, peers, blocks)
    devices = {"shop/one": "one", "shop/two": "two"}
    with sink():
        ring = Ring()
        for _ in range(runs):
            result["no rules"].append(best(ring))
            nft(_TRACK)
            result[TRACKED].append(best(ring))
            nft("flush ruleset")
            for word in ("nftables", *PLANES):
                plane = opened(word)
                plane.load(compiler, devices)
                result[word].append(best(ring))
                plane.remove()
                plane.close()
            restore(iptables_rules(policies))
            result["a rule for each (iptables)"].append(best(ring))
            restore("*filter\nCOMMIT\n")
            nft("flush ruleset")
        ring.close()
    subject = f"a packet, {policies:,} policies, {peers:,} pods, {blocks:,} ranges"
    rest = tuple((name, tuple(values)) for name, values in result.items() if name != "nftables")
    tracked = statistics.median(result[TRACKED])
    return Row(subject, "us", tuple(result["nftables"]), rest, aim=tracked + 0.6)


def opened(word: str) -> PolicyDataPlane:
    """A data plane on the node."""
    if word in PLANES:
        return IptablesPolicy(FACTS, netns_path("node"), find(PLANES[word]))
    return NftablesPolicy(FACTS, netns_path("node"))


def nft(text: str) -> None:
    arguments = ["ip", "netns", "exec", netns_path("node").name, "nft", "-f", "-"]
    subprocess.run(arguments, input=text, text=True, check=True)


def restore(text: str) -> None:
    arguments = ["ip", "netns", "exec", netns_path("node").name, "iptables-nft-restore"]
    subprocess.run(arguments, input=text, text=True, check=True)


def best(ring: Ring) -> float:
    """The least of some batches: what else the machine does only adds."""
    return min(ring.send() for _ in range(30))


def large(pods: int, policies: int) -> Compiler:
    """A large cluster, as one of its nodes knows it."""
    compiler = Compiler("n0")
    for number in range(50):
        compiler.set_namespace(f"ns{number}", {"team": f"x{number % 7}"})
    for number in range(pods):
        compiler.set_pod(f"ns{number % 50}/p{number}", trim_pod(member(number)))
    for number in range(policies):
        compiler.set_policy(f"ns{number % 50}/pol{number}", wide(number))
    return compiler


def resident() -> float:
    """Memory of this process, in MB."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def grown(pods: int, policies: int) -> float:
    """What a large cluster adds to this process, in MB."""
    before = resident()
    created = large(pods, policies)
    created.flush()
    held = []
    for family in ("ip", "ip6"):
        contents = Contents(TableLayout(family=family, cluster_ranges=(), encapsulation_ports=ENCAPSULATION_PORTS))
        contents.follow(created.profiles, PolicyDelta(new_profiles=set(created.profiles)))
        for key, profiles in created.pods.items():
            contents.place(key, key.replace("/", "-"), profiles)
        contents.commit()
        held.append(contents)
    return resident() - before


def memory(runs: int, pods: int, policies: int) -> Row:
    """The same in processes of their own."""
    code = f"from bench.policy import grown; print(grown({pods}, {policies}))"
    arguments = [sys.executable, "-c", code]
    results = [
        subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT).stdout for _ in range(runs)
    ]
    return Row(f"{pods:,} pods, {policies:,} policies: memory", "MB", tuple(float(text) for text in results))


def looking_through(runs: int, flows: int) -> Row:
    """Looking for flows that are denied, of a hundred pods among the flows of others."""
    where = netns_path("node")
    track(where, range(flows))
    created = compiler_for(1, 0, 0)
    addresses = [f"10.250.{number}.1" for number in range(100)]
    walls = []
    for _ in range(runs):
        started = time.perf_counter()
        forget(lambda local: verdicts(created, local), addresses, where)
        walls.append((time.perf_counter() - started) * 1000)
    with Conntrack(where) as conntrack:
        conntrack.forget(lambda _flow: True)
    return Row(f"looking through {flows:,} flows after a change, beside everything else", "ms", tuple(walls))


def changes(quick: bool) -> list[Row]:
    """A large cluster, seen from one node."""
    pods, policies = (1_000, 100) if quick else (10_000, 1_000)
    created = large(pods, policies)
    devices = {f"ns{number % 50}/p{number}": f"dev{number}" for number in range(0, pods, 100)}
    where = netns_path("node")
    plane = NftablesPolicy(FACTS, where)
    gc.freeze()
    started = time.perf_counter()
    created.flush()
    plane.load(created, devices)
    cold = (time.perf_counter() - started) * 1000
    rows = [Row(f"{pods:,} pods, {policies:,} policies: first load", "ms", (cold,))]

    def timed(subject: str, change: Callable[[int], None], aim: float) -> None:
        walls = []
        for step in range(30 if quick else 200):
            started = time.perf_counter()
            change(step)
            plane.update(created, devices, created.flush())
            walls.append((time.perf_counter() - started) * 1000)
        walls.sort()
        title = f"{pods:,} pods, {policies:,} policies: {subject}"
        rows.append(Row(f"{title}, median", "ms", (statistics.median(walls),)))
        rows.append(Row(f"{title}, p99", "ms", (walls[len(walls) * 99 // 100],), aim=aim))

    timed(
        "a pod elsewhere comes",
        lambda step: created.set_pod(f"ns1/new{step}", member(pods + 100 * step + 1, f"new{step}")),
        50,
    )
    timed("a policy changes", lambda step: created.set_policy("ns0/pol0", wide(0, 2000 + step)), 50)
    created.set_pod("ns1/last", member(pods + 7, "last"))
    written = plane.update(created, devices, created.flush())
    count = sum(len(o.elements) for item in written for o in item.operations if isinstance(o, AddElements))
    rows.append(
        Row(f"{pods:,} pods, {policies:,} policies: elements written for a pod that comes elsewhere", "", (count,))
    )
    plane.remove()
    plane.close()
    return rows


def member(number: int, name: str = "") -> Pod:
    namespace = "ns1" if name else f"ns{number % 50}"
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    labels = {"app": f"a{number % 40}", "tier": f"t{number % 3}"}
    return pod(namespace, name or f"p{number}", f"n{number % 100}", address, **labels)


def wide(number: int, port: int = 0) -> NetworkPolicy:
    peers = [
        {"podSelector": {"matchLabels": {"app": f"a{number * 7 % 40}"}}},
        {"namespaceSelector": {"matchLabels": {"team": f"x{number % 7}"}}},
    ]
    rule = {"from": peers, "ports": [{"port": port or 8080 + number % 5}, {"port": "http"}]}
    out = {"to": [{"namespaceSelector": {}}], "ports": [{"port": 53, "protocol": "UDP"}]}
    return policy(
        f"ns{number % 50}/pol{number}",
        podSelector={"matchLabels": {"app": f"a{number % 40}"}},
        policyTypes=["Ingress", "Egress"],
        ingress=[rule],
        egress=[out],
    )


def run(quick: bool) -> list[Row]:
    """The rows."""
    sizes = [(0, 0, 0), (10, 0, 0), (100, 1_000, 0)]
    if not quick:
        sizes += [(1_000, 10_000, 0), (1_000, 10_000, 10_000)]
    with two_pods():
        rows = [packets(1 if quick else 3, *size) for size in sizes]
        rows += changes(quick)
        rows += growth(quick, opened)
        rows.append(looking_through(3 if quick else 10, 2_000 if quick else 20_000))
    return [*rows, memory(1 if quick else 3, *((1_000, 100) if quick else (10_000, 1_000)))]


if __name__ == "__main__":
    run_alone("policy", __doc__, run)
