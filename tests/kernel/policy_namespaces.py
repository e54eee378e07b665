"""Namespaces for real packets through a policy data plane: two nodes with their pods, and an outside host.

The nodes and ``outside`` share a segment. All attempts of a case are made at once: a packet that arrives at the other
end counts as let through, whatever its protocol, so SCTP needs no sockets of its own in the kernel.
"""

import contextlib
import selectors
import socket
import struct
import subprocess
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from tests.cases.policy_table import Case, Check
from tests.kernel.checksums import checksum, crc32c
from tests.kernel.marked_namespaces import MarkedNamespaces

from podwire.kernel import netns
from podwire.model.meta import key_of
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts

RANGES = {"n1": ("10.180.0.0/24", "fd18::/64"), "n2": ("10.180.1.0/24", "fd18:1::/64")}
ADDRESSES = {"n1": ("192.168.99.1", "fd99::1"), "n2": ("192.168.99.2", "fd99::2")}
FACTS = {node: PolicyFacts(pod_ranges=RANGES[node], addresses=ADDRESSES[node]) for node in RANGES}
MACS = {"n1": "02:00:00:02:00:01", "n2": "02:00:00:02:00:02", "outside": "02:00:00:02:00:09"}
OUTSIDE = ("192.168.99.9", "fd99::9")
_PATIENCE_S = 10.0
"""The time limit for allowed packets."""
_REST_S = 0.06
"""How long to wait for denied packets after all allowed packets have arrived."""
_PORT = 40_000


_NAMESPACES = MarkedNamespaces("pwt-policy")
path, inside = _NAMESPACES.path, _NAMESPACES.inside


def batch(name: str, lines: list[str]) -> None:
    """Runs commands of ip(8) in a namespace."""
    _NAMESPACES.ip(name, *lines)


def device(pod: str) -> str:
    """The name of the node's end of a pod's link."""
    return pod.replace("/", "-")[-15:]


class World:
    """The namespaces of one cluster; pods come and go by :meth:`attach` and :meth:`detach`."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}

    def __enter__(self) -> "World":
        for name in ("segment", "n1", "n2", "outside"):
            netns.create(path(name))
            batch(name, ["link set lo up"])
        batch("segment", ["link add bridge type bridge", "link set bridge up"])
        for name, mac in MACS.items():
            inside(name, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
            far = f"type veth peer name eth0 address {mac} netns {_NAMESPACES.mark}-{name}"
            batch("segment", [f"link add {name} {far}", f"link set {name} master bridge up"])
        for node, other in (("n1", "n2"), ("n2", "n1")):
            self.addresses(node, ADDRESSES[node])
            lines = [f"route add {RANGES[other][family]} via {ADDRESSES[other][family]}" for family in (0, 1)]
            lines += [f"route add default via {address}" for address in OUTSIDE]
            batch(node, lines)
            settings = "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.rp_filter=0"
            inside(node, "sysctl", "-qw", *settings)
        self.addresses("outside", OUTSIDE)
        strangers = ("203.0.113.9", "203.0.113.1", "2001:db8::9", "2001:db8:1::1")
        lines = [f"address add {address} dev lo" for address in strangers]
        lines += [
            f"route add {RANGES[node][family]} via {ADDRESSES[node][family]}" for node in RANGES for family in (0, 1)
        ]
        batch("outside", lines)
        self.introduce()
        return self

    def introduce(self) -> None:
        """Adds permanent neighbour entries, so that no first packet waits for ARP or neighbour discovery."""
        pairs = {**ADDRESSES, "outside": OUTSIDE}
        for name in pairs:
            rest = [(other, address) for other in pairs if other != name for address in pairs[other]]
            batch(name, [f"neigh replace {address} lladdr {MACS[other]} dev eth0" for other, address in rest])

    def addresses(self, name: str, pair: tuple[str, str]) -> None:
        batch(
            name, ["link set eth0 up", f"address add {pair[0]}/24 dev eth0", f"address add {pair[1]}/64 dev eth0 nodad"]
        )

    def attach(self, pod: str, node: str, addresses: tuple[str, ...]) -> None:
        """Wires a pod: a device on the node, addresses and a default route."""
        name, place = device(pod), f"{_NAMESPACES.mark}-{device(pod)}"
        self.pods[pod] = node
        netns.create(path(name))
        number = zlib.crc32(pod.encode()) & 0xFFFF
        mac = f"02:00:00:01:{number >> 8:02x}:{number & 255:02x}"
        far = f"type veth peer name eth0 address {mac} netns {place}"
        ends, paths = ["link set lo up", "link set eth0 up"], []
        for address in addresses:
            six = ":" in address
            gateway = "fe80::99" if six else "169.254.1.1"
            nodad = " nodad" if six else ""
            ends += [
                f"address add {address}/{128 if six else 32} dev eth0{nodad}",
                f"route add {gateway} dev eth0",
                f"route add default via {gateway} dev eth0",
                f"neigh add {gateway} lladdr 02:00:00:00:00:01 dev eth0",
            ]
            paths += [f"route add {address} dev {name}", f"neigh add {address} lladdr {mac} dev {name}"]
        batch(node, [f"link add {name} address 02:00:00:00:00:01 {far}", f"link set {name} up"])
        batch(name, ends)
        batch(node, paths)

    def attach_pods(self, case: Case) -> None:
        """Wires the pods of a case that have a network of their own."""
        for pod in case.world.pods:
            if not pod.spec.host_network:
                self.attach(key_of(pod.metadata), pod.spec.node_name, pod.addresses)

    def detach(self, pod: str) -> None:
        """Removes a pod with its device at once: a device that goes with its namespace goes some time later."""
        node = self.pods.pop(pod)
        delete = ["ip", "-n", f"{_NAMESPACES.mark}-{node}", "link", "delete", device(pod)]
        subprocess.run(delete, capture_output=True, check=False)  # A plugin has removed its device itself.
        netns.delete(path(device(pod)))

    def __exit__(self, *failure: object) -> None:
        for pod in tuple(self.pods):
            self.detach(pod)
        for name in ("outside", "n1", "n2", "segment"):
            netns.delete(path(name))

    def devices(self, node: str) -> dict[str, str]:
        """The devices of the pods of a node."""
        return {pod: device(pod) for pod, at in self.pods.items() if at == node}


def place_of(case: Case, end: str) -> str:
    """The namespace of one end of a check."""
    kind, _, rest = end.partition("/")
    if kind == "node":
        return rest
    for pod in case.world.pods:
        if f"{pod.metadata.namespace}/{pod.metadata.name}" == end:
            return pod.spec.node_name if pod.spec.host_network else device(end)
    for pod in case.world.pods:
        if end in pod.addresses:
            return device(f"{pod.metadata.namespace}/{pod.metadata.name}")
    return "outside"


class Attempt:
    """One packet of a check; its source port, or its ICMP identifier, is unique."""

    def __init__(self, case: Case, check: Check, family: int, number: int) -> None:
        self.check, self.family, self.number = check, family, number
        self.source, self.target = case.address(check.source, family), case.address(check.target, family)
        self.places = place_of(case, check.source), place_of(case, check.target)
        text, _, self.protocol = check.port.rpartition("/")
        self.port = int(text or 0)
        self.arrived = False

    def __str__(self) -> str:
        return f"{self.check} (IPv{self.family})"

    @property
    def kind(self) -> int:
        """The IP protocol."""
        icmp = socket.IPPROTO_ICMP if self.family == 4 else socket.IPPROTO_ICMPV6
        return {"TCP": 6, "UDP": 17, "SCTP": 132, "ICMP": icmp}[self.protocol]

    def payload(self) -> bytes:
        """The payload of the IP packet, with checksums where the path checks them."""
        match self.protocol:
            case "TCP":
                body = struct.pack("!HHIIBBHHH", self.number, self.port, 7, 0, 0x50, 0x02, 64240, 0, 0)
                return self._summed(body, 16)
            case "UDP":
                return self._summed(struct.pack("!HHHH", self.number, self.port, 8, 0), 6)
            case "SCTP":
                chunk = struct.pack("!BBHIIHHI", 1, 0, 20, self.number, 65535, 1, 1, 7)
                head = struct.pack("!HHI", self.number, self.port, 0)
                return head + struct.pack("<I", crc32c(head + b"\0\0\0\0" + chunk)) + chunk
            case _:
                body = struct.pack("!BBHHH", 8 if self.family == 4 else 128, 0, 0, self.number, 1)
                return body if self.family == 6 else body[:2] + struct.pack("!H", checksum(body)) + body[4:]

    def _summed(self, body: bytes, place: int) -> bytes:
        family = socket.AF_INET if self.family == 4 else socket.AF_INET6
        pair = socket.inet_pton(family, self.source) + socket.inet_pton(family, self.target)
        result = checksum(pair + struct.pack("!II", len(body), self.kind) + body)
        return body[:place] + struct.pack("!H", result) + body[place + 2 :]

    def send(self) -> None:
        """Sends the packet from the namespace of its source."""
        family = socket.AF_INET if self.family == 4 else socket.AF_INET6
        with netns.inside(path(self.places[0])), socket.socket(family, socket.SOCK_RAW, self.kind) as sock:
            sock.bind((self.source, 0))
            with contextlib.suppress(OSError):
                sock.sendto(self.payload(), (self.target, 0))


class Watch:
    """Records the packets that reach their target: one raw socket for each namespace, family and protocol."""

    def __init__(self, attempts: list[Attempt]) -> None:
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[tuple[str, int, int, int], Attempt] = {}
        for attempt in attempts:
            key = (attempt.places[1], attempt.family, attempt.kind)
            self._waiting[*key, attempt.number] = attempt
            if key not in {entry.data for entry in self._selector.get_map().values()}:
                family = socket.AF_INET if attempt.family == 4 else socket.AF_INET6
                with netns.inside(path(key[0])):
                    sock = socket.socket(family, socket.SOCK_RAW, attempt.kind)
                sock.setblocking(False)
                self._selector.register(sock, selectors.EVENT_READ, key)

    def wait(self, seconds: float, expected: Iterable[Attempt] = ()) -> None:
        """Records arriving packets until all expected ones have arrived or the time is over."""
        until, missing = time.monotonic() + seconds, list(expected)
        while (remaining := until - time.monotonic()) > 0:
            if expected and all(attempt.arrived for attempt in missing):
                return
            for ready, _ in self._selector.select(remaining):
                self._note(ready.fileobj, ready.data)

    def _note(self, sock: Any, key: tuple[str, int, int]) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, sender = sock.recvfrom(2048)
                if key[1] == 4:
                    data = data[(data[0] & 15) * 4 :]
                echo = key[2] in (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6)
                if echo and data[0] not in (8, 128):
                    continue
                number = struct.unpack_from("!H", data, 4 if echo else 0)[0]
                attempt = self._waiting.get((*key, number))
                if attempt is not None and attempt.source == sender[0].partition("%")[0]:
                    attempt.arrived = True

    def close(self) -> None:
        for entry in tuple(self._selector.get_map().values()):
            entry.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


def attempts_of(case: Case) -> Iterator[Attempt]:
    """The attempts of a case: each check in each of its families, except those of a pod with itself."""
    number = _PORT
    for check in case.checks:
        for family in check.families:
            if check.source != check.target:
                number += 1
                yield Attempt(case, check, family, number)


def failures_of(case: Case) -> list[str]:
    """The attempts of a case whose result differs from the expected verdict."""
    attempts = list(attempts_of(case))
    watch = Watch(attempts)
    try:
        for attempt in attempts:
            attempt.send()
        if allowed := [attempt for attempt in attempts if attempt.check.allowed]:
            watch.wait(_PATIENCE_S, allowed)
        watch.wait(_REST_S)
    finally:
        watch.close()
    return [str(attempt) for attempt in attempts if attempt.arrived != attempt.check.allowed]


def load(plane: Any, compiler: Compiler, world: World) -> Any:
    """Loads the policies of a compiler into a data plane."""
    return plane.load(compiler, world.devices(compiler.node))
