"""A pod's network namespace behind a veth of a node's namespace, where the kernel answers DNS queries."""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from msgspec.structs import replace
from tests.unit.dns.test_zone import service

from podwire.dns import wire
from podwire.dns.bpf.entries import EntryPlan, client_key
from podwire.dns.bpf.table import DnsMaps, DnsTable
from podwire.dns.names import encode_name
from podwire.dns.wire import DnsMessage
from podwire.dns.zone import Zone, ZoneOptions
from podwire.kernel import bpf_objects, bpf_state, netns
from podwire.kernel.bpf_state import BpfPins
from podwire.model.service import Service
from podwire.state.bpf import BpfAttachment, BpfFolder

DEVICE = "pod1"
SERVER, CLIENT, GATEWAY = "10.96.0.10", "10.244.1.5", "10.244.1.1"
SERVER6, CLIENT6, GATEWAY6 = "fd96::10", "fd44::5", "fd44::1"
WEB = "web.shop.svc.cluster.local"


def inside(place: Path, *command: str) -> str:
    done = subprocess.run(["nsenter", f"--net={place}", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class DnsPod:
    """The two namespaces, and the owner's folder of pins."""

    def __init__(self, root: Path, *, tcx: bool | None = None) -> None:
        self.node, self.pod = root / "node", root / "pod"
        self.folder = f"test-{os.getpid()}-{root.name}"
        for place in (self.node, self.pod):
            netns.create(place)
            inside(place, "ip", "link", "set", "lo", "up")
        inside(self.node, "ip", "address", "add", f"{SERVER}/32", "dev", "lo")
        with netns.inside(self.node):
            self._server = socket.socket(type=socket.SOCK_DGRAM)
        self._server.bind((SERVER, 53))
        self._thread = threading.Thread(target=self._refuse, daemon=True)
        self._thread.start()
        self._maps: DnsMaps | None = None
        self.add_device()
        self.pins = BpfPins(self.folder, tcx=tcx)
        self.zone = Zone(ZoneOptions())
        index = self.zone.index
        index.set_namespace("shop", present=True)
        index.set_service("kube-system/kube-dns", service_in("kube-system", "kube-dns", SERVER, SERVER6), 1)
        index.set_service("shop/web", service("web", "10.96.0.77"), 1)
        index.mark_synced()
        self.table = DnsTable(EntryPlan(ZoneOptions()), index, ("kube-system", "kube-dns"), 1232)

    def _refuse(self) -> None:
        """The server behind the kernel: answers every query with REFUSED."""
        while True:
            data, peer = self._server.recvfrom(512)
            if not data:
                return
            self._server.sendto(data[:2] + b"\x81\x05" + data[4:], peer)

    def add_device(self) -> None:
        inside(self.node, "ip", "link", "add", DEVICE, "type", "veth", "peer", "name", "eth0", "netns", str(self.pod))
        inside(self.node, "ip", "address", "add", f"{GATEWAY}/24", "dev", DEVICE)
        inside(self.node, "ip", "link", "set", DEVICE, "up")
        inside(self.node, "ip", "address", "add", f"{GATEWAY6}/64", "dev", DEVICE, "nodad")
        for command in (
            f"address add {CLIENT}/24 dev eth0",
            f"address add {CLIENT6}/64 dev eth0 nodad",
            "link set eth0 up",
            f"route add default via {GATEWAY}",
            f"-6 route add default via {GATEWAY6}",
        ):
            inside(self.pod, "ip", *command.split())

    def desired(self, hook: str = "ingress") -> BpfFolder:
        described = bpf_objects.describe("dns_answers", self.folder)
        attachment = BpfAttachment(DEVICE, hook, "dns_answers")
        return BpfFolder(self.folder, described.programs, described.maps, (attachment,))

    def apply(self, desired: BpfFolder | None = None) -> tuple[str, ...]:
        with netns.inside(self.node):
            return self.pins.apply(desired or self.desired())

    def read(self) -> BpfFolder:
        with netns.inside(self.node):
            return self.pins.read()

    def answer(self) -> None:
        """Attaches the program and fills its maps."""
        self.apply()
        self._maps = DnsMaps(*(self.pins.open_map(f"dns_{field}") for field in DnsMaps._fields))
        self.table.use(self._maps)
        self.admit()
        self.table.follow()
        assert self.table.answering, self.table.problem

    def admit(self) -> None:
        with netns.inside(self.node):
            index = socket.if_nametoindex(DEVICE)
        clients = self.pins.open_map("dns_clients")
        for address in (CLIENT, CLIENT6):
            clients.write(client_key(index, ip_address(address).packed), b"\x01\0\0\0")
        clients.close()

    @contextlib.contextmanager
    def client(self, server: str = SERVER) -> Iterator[socket.socket]:
        with netns.inside(self.pod):
            link = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
        with link:
            link.settimeout(10)
            link.connect((server, 53))
            yield link

    def ask(self, name: str = WEB, server: str = SERVER) -> DnsMessage | None:
        """The kernel's reply; None: the query went up the stack, and the server replied."""
        with self.client(server) as link:
            link.send(wire.encode(DnsMessage(7, wire.RD, encode_name(name), wire.A)))
            reply = wire.parse_message(link.recv(512))
            return reply if reply.rcode != wire.REFUSED else None

    def close(self) -> None:
        bpf_state.remove_folder(self.folder)
        with netns.inside(self.node), socket.socket(type=socket.SOCK_DGRAM) as link:
            link.sendto(b"", (SERVER, 53))
        self._thread.join()
        self._server.close()
        if self._maps is not None:
            self._maps.close()
        for place in (self.node, self.pod):
            netns.delete(place)


def service_in(namespace: str, name: str, *addresses: str) -> Service:
    plain = service(name, addresses[0])
    spec = replace(plain.spec, cluster_ips=addresses)
    return replace(plain, metadata=replace(plain.metadata, namespace=namespace), spec=spec)
