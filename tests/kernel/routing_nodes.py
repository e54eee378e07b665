"""Nodes as namespaces on a bridge, each with CNI and routing, driven by a test step by step."""

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel.pod_servers import TcpService, serving

from podwire.cluster.names import POD_NETWORK
from podwire.cluster.podnetworks import DEFAULT_NETWORK
from podwire.cni.attachments import Attachments
from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Ledger
from podwire.cni.node import PodNetwork
from podwire.cni.plumbing import KernelPlumber
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.cni.repair import AttachmentRepair
from podwire.cni.spec import NetConf, RuntimeConfig, parse_result
from podwire.cni.wiring import WiringFacts, wiring_facts
from podwire.kernel import netns, sysctl
from podwire.kernel.features import Features
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.backend import Backend
from podwire.routing.keys import KeyStore
from podwire.routing.machine import KernelMachine
from podwire.routing.registry import BACKENDS
from podwire.routing.router import Router
from podwire.routing.settings import RoutingSettings
from podwire.runtime.childrecord import read_record
from podwire.runtime.children import Children, spawn_program
from podwire.runtime.clock import Clock, SystemClock
from podwire.runtime.process import send_signal
from podwire.runtime.program import Child
from podwire.runtime.registry import Registry
from podwire.runtime.supervise import Supervisor

ECHO_SERVER = TcpService(7, echoes=True)
SOURCE_REPLY_SERVER = TcpService(8)


def inside(place: Path, *command: str) -> str:
    with netns.inside(place):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ip_batch(place: Path, *commands: str) -> None:
    """Runs commands of ip(8) in one process: in user-mode Linux each process takes a while to start."""
    lines = "".join(f"{command}\n" for command in commands)
    with netns.inside(place):
        subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)


def connect(place: Path, address: str, port: int) -> socket.socket:
    with netns.inside(place):
        item = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    item.settimeout(20)
    try:
        item.connect((address, port))
    except OSError:
        item.close()
        raise
    return item


def sent_again(sock: socket.socket) -> int:
    """The number of lost segments of a connection: sent again, without duplicates that the receiver already had.

    On a busy machine an answer may come so late that a segment is sent again although nothing was lost. Then
    the receiver says that it had the segment already, which may take a moment too.
    """
    deadline = time.monotonic() + 3
    while True:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 220)
        (again,), (duplicates,) = struct.unpack_from("=I", info, 100), struct.unpack_from("=I", info, 216)
        if again <= duplicates or time.monotonic() > deadline:
            return int(again - duplicates)  # linux/tcp.h: tcpi_total_retrans, tcpi_dsack_dups
        time.sleep(0.05)


def source_seen(place: Path, address: str) -> str:
    with connect(place, address, 8) as item:
        return item.recv(100).decode().removeprefix("::ffff:")


class _Crash(Exception):
    """Ends the keeper of child processes as the crash of an agent does: the processes stay."""


class StepPrograms:
    """Runs the child processes of a node for a step of a test; each step adopts those of the step before."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder = folder
        self._place = place

    async def apply(self, desired: Iterable[Child]) -> None:
        def start(child: Child) -> int:
            return spawn_program(replace(child, netns=str(self._place)))

        try:
            async with Supervisor(SystemClock(), lambda name, failure: pytest.fail(f"{name}: {failure}")) as supervisor:
                await Children(self.folder, start, supervisor, SystemClock(), lambda _: None).apply(desired)
                raise _Crash
        except* _Crash:
            pass


class ClusterNode:
    """A node namespace with CNI and routing, driven by the test step by step."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.name = f"node-{number}"
        self.number = number
        self.segment = number % cluster.segments
        self.labels: dict[str, str] = {}
        self.features: Features | None = None
        """What the kernel has for the next agent; None: what it has indeed."""
        self._further: dict[str, tuple[IPv4Network | IPv6Network, ...]] = {}
        self.shares: dict[str, tuple[str, ...]] = {}
        """Ranges of pod networks that no backend has made."""
        self.annotations: dict[str, str] = {}
        """Those that others write to the Node."""
        self.place = cluster.root / self.name
        self.cluster = cluster
        netns.create(self.place)
        sysctl.write("net/ipv6/conf/default/accept_dad", "0", self.place)
        ip_batch(self.place, "link set lo up")
        self.add_card()
        self.plumber = KernelPlumber(self.place)
        self.leases = Leases(Ledger(cluster.root / f"{self.name}.db"), SystemClock().now)
        self.leases.serve([ip_network(cidr) for cidr in self.cidrs])
        self.mtus = {4: 1500}
        attachments = Attachments(self.leases, self.plumber)
        self.start_agent()
        self.repair = AttachmentRepair(attachments, self.wiring_facts, self.plumber.lost, self.plumber.sysctls)
        self.pods = PodNetwork(attachments, self.wiring_facts, str)

    def add_card(self) -> None:
        """Gives the node its first card, eth0, with the addresses of its Node."""
        ip_batch(
            self.cluster.fabric,
            f"link add n{self.number} type veth peer name eth0 netns {self.place}",
            f"link set n{self.number} master br{self.segment} up",
        )
        ip_batch(
            self.place,
            "link set eth0 up",
            f"address add {self.ip}/24 dev eth0",
            f"route add default via 10.89.{self.segment}.1",
            *([f"address add {self.ip6}/64 dev eth0 nodad"] if self.cluster.v6 else []),
        )

    def join(self, segment: int) -> None:
        """Gives the node a card in another segment, and the address there as that of its Node; the first card stays."""
        card = f"n{self.number}s{segment}"
        ip_batch(
            self.cluster.fabric,
            f"link add {card} type veth peer name eth{segment + 1} netns {self.place}",
            f"link set {card} master br{segment} up",
        )
        self.segment = segment
        ip_batch(
            self.place,
            f"link set eth{segment + 1} up",
            f"address add {self.ip}/24 dev eth{segment + 1}",
            f"route replace default via 10.89.{segment}.1",
        )
        self.cluster.nodes[self.name] = self.object(self.cluster.nodes[self.name].metadata.annotations)

    def start_agent(self) -> None:
        """Starts routing with empty memory, as a new agent does."""
        self.machine = KernelMachine(self.place, self.features)
        nodes, registry = self.cluster.nodes, self.cluster.registry
        self.router = Router(self.name, lambda: nodes, self.machine, self.cluster.clock, registry)
        self.router.cidrs = (ip_network("10.244.0.0/16"),)
        self.router.own.run_dir = str(self.cluster.root / f"{self.name}-run")
        self.router.programs.children = StepPrograms(Path(self.router.own.run_dir, "children"), self.place)
        self.router.keys = KeyStore(self.cluster.root / f"{self.name}-keys")

    def wiring_facts(self) -> WiringFacts:
        leg = self.router.plan.leg if self.router.plan is not None else None
        networks = self.router.plan.pod_networks if self.router.plan is not None else ()
        further = {network.name: network.cidrs for network in networks if network.name != DEFAULT_NETWORK}
        further |= self.shares
        return replace(wiring_facts(self.mtus, (), (), leg, networks=further), sources={4: self.ip})

    @property
    def mtu(self) -> int:
        return max(self.mtus.values())

    @property
    def ip(self) -> str:
        return f"10.89.{self.segment}.{10 + self.number}"

    @property
    def ip6(self) -> str:
        return f"fd89::{10 + self.number}"

    @property
    def cidr(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def cidrs(self) -> tuple[str, ...]:
        return (self.cidr, f"fd00:0:0:{self.number}::/64") if self.cluster.v6 else (self.cidr,)

    def object(self, annotations: dict[str, str] | None = None) -> Node:
        addresses: tuple[str, ...] = (self.ip6, self.ip) if self.cluster.v6_first else (self.ip, self.ip6)
        addresses = addresses if self.cluster.v6 else (self.ip,)
        return Node(
            metadata=ObjectMeta(name=self.name, annotations=self.annotations | (annotations or {}), labels=self.labels),
            spec=NodeSpec(pod_cidr=self.cidr, pod_cidrs=self.cidrs),
            status=NodeStatus(addresses=tuple(NodeAddress(type="InternalIP", address=a) for a in addresses)),
        )

    def reconcile(self) -> None:
        self.router.reconcile()
        if isinstance(self.router.programs.children, StepPrograms) and self.router.plan is not None:
            self._run_programs()
        assert self.router.problem == "", self.router.problem
        assert self.router.plan is not None
        self.mtus = dict(self.router.plan.pod_mtus)
        further = {each.name: each.networks for each in self.router.plan.pod_networks if each.name != DEFAULT_NETWORK}
        if further != self._further:
            self._further = further
            self.leases.serve([ip_network(cidr) for cidr in self.cidrs], further=further)
        assert not self.repair.node_changed()
        if self.name in self.cluster.nodes:
            self.cluster.nodes[self.name] = self.object(self.router.plan.facts.annotations())

    @property
    def _records(self) -> list[Path]:
        return sorted(Path(self.router.own.run_dir, "children").glob("*.json"))

    def _run_programs(self) -> None:
        """Runs the child processes that packets pass, and waits until they are configured."""
        assert self.router.plan is not None
        deadline = time.monotonic() + 60
        while self.router.plan.program_values or self._records:
            asyncio.run(self.router.run_programs())
            if not self.router.problem or time.monotonic() > deadline:
                return
            time.sleep(0.02)

    def children(self) -> dict[str, int]:
        """The process numbers of the child processes that run, by name."""
        records = {file.stem: read_record(file) for file in self._records}
        return {name: record.pid for name, record in records.items() if record is not None and record.running}

    def pod(self, name: str, network: str = DEFAULT_NETWORK) -> "Pod":
        place = self.cluster.root / "pods" / name
        netns.create(place)
        request = CniRequest(
            command="ADD",
            conf=NetConf(
                cni_version="1.0.0",
                name="podwire",
                runtime_config=RuntimeConfig(annotations={POD_NETWORK: network}),
            ),
            key=AttachmentKey("podwire", f"c-{name}", "eth0"),
            netns=str(place),
            namespace="shop",
            pod=name,
        )
        result = parse_result(json.loads(self.pods.handle(request, str(place))))
        late, deadline = self.pods.take_not_ready(request), time.monotonic() + 20
        while late is not None and not self.plumber.is_ready(late, str(place)):
            assert time.monotonic() < deadline, "no packet passes"
        addresses = [ip.address.partition("/")[0] for ip in result.ips]
        return Pod(place, addresses[0], addresses[-1])

    def shows(self, *command: str) -> str:
        return inside(self.place, *command)

    def close(self) -> None:
        asyncio.run(StepPrograms(Path(self.router.own.run_dir, "children"), self.place).apply(()))
        for pid in self.children().values():
            send_signal(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.plumber.close()
        self.leases.close()
        self.machine.close()
        netns.delete(self.place)


class Pod:
    """A pod's namespace and address."""

    def __init__(self, place: Path, address: str, address6: str = "") -> None:
        self.place = place
        self.address = address
        self.address6 = address6

    def running(self, service: TcpService) -> AbstractContextManager[None]:
        """Runs a server in the pod."""
        return serving(self.place, service)


class Cluster:
    """A bridge and nodes on it; ``nodes`` are the Node objects that the API would have."""

    def __init__(
        self,
        root: Path,
        count: int,
        segments: int = 1,
        families: str = "4",
        registry: Registry[type[Backend]] = BACKENDS,
        clock: Clock | None = None,
    ) -> None:
        """``clock`` is that of the routers; None: the machine's."""
        self.root = root
        self.clock = clock or SystemClock()
        self.segments = segments
        self.registry = registry
        self.v6 = "6" in families
        self.v6_first = families.startswith("6")
        self.fabric = root / "fabric"
        self.nodes: dict[str, Node] = {}
        netns.create(self.fabric)
        sysctl.write("net/ipv4/ip_forward", "1", self.fabric)
        for segment in range(segments):
            ip_batch(
                self.fabric,
                # a bridge without an address of its own takes that of a port, another one after a node joins
                f"link add br{segment} address 02:00:00:00:00:{segment:02x} type bridge",
                f"link set br{segment} up",
                f"address add 10.89.{segment}.1/24 dev br{segment}",
            )
        ip_batch(self.fabric, "address add 192.0.2.1/32 dev br0")
        self.all = [ClusterNode(self, number + 1) for number in range(count)]
        self.nodes.update({node.name: node.object() for node in self.all})

    def configure(self, settings: RoutingSettings) -> None:
        """Gives all nodes the settings."""
        self.need(settings.backend)
        for node in self.all:
            node.router.configure(settings)

    def need(self, backend: str) -> None:
        """Skips the test by name where this kernel lacks the backend's feature; the tier ``uml`` has it."""
        feature = RoutingSettings().load(self.registry)[backend].feature
        if feature and (lacks := self.all[0].machine.lacks(feature)):
            pytest.skip(lacks)

    def settle(self) -> None:
        for _ in range(3):
            for node in self.all:
                node.reconcile()

    def close(self) -> None:
        for node in self.all:
            node.close()
        for place in (self.root / "pods").glob("*"):
            netns.delete(place)
        netns.delete(self.fabric)


class Talk(threading.Thread):
    """One TCP connection that echoes all the time, after a pause of ``every_s``; ``failure`` when it broke."""

    def __init__(self, client: Pod, server: Pod, every_s: float = 0.002) -> None:
        super().__init__()
        self._every_s = every_s
        self.connection = connect(client.place, server.address, 7)
        self.rounds, self.failure, self._end = 0, "", threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._end.is_set():
                self.connection.sendall(b"x" * 4000)
                got = 0
                while got < 4000:
                    piece = self.connection.recv(4000 - got)
                    assert piece, "closed"
                    got += len(piece)
                self.rounds += 1
                time.sleep(self._every_s)
        except (OSError, AssertionError) as failure:
            self.failure = repr(failure)

    def end(self) -> int:
        """How many segments were sent again."""
        self._end.set()
        self.join()
        again = sent_again(self.connection)
        self.connection.close()
        assert not self.failure and self.rounds
        return again
