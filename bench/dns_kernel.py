"""DNS queries of a pod: answered in the kernel, by podwire's server, and by unbound, over one veth pair.

A pod's namespace asks three addresses of a node's namespace in turns, with the names of 10,150 Services and of
headless Services of 3 and 10 endpoints. At the first the BPF program `dns_answers` answers at the pod's device, with
podwire's server behind it; at the second the server answers alone, at the third unbound (one thread, the same names
as local data). CPU a query is the run time of the program by the kernel's own statistics, and the CPU time of the
server's process; the client and the network stack are not in it. Latencies are those of one Python client that waits
for each reply. dnsperf (100 queries outstanding) is what bounds the rates of the kernel. Debian packages: `dnsperf`,
`unbound`.

    python -m bench.dns_kernel [--quick]
"""

import asyncio
import multiprocessing
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.alone import run_alone
from bench.dns import addresses, fill, questions
from bench.machine import cpu_s
from bench.table import Row

from podwire.dns import wire
from podwire.dns.bpf.entries import EntryPlan, client_key
from podwire.dns.bpf.table import DnsMaps, DnsTable
from podwire.dns.config import DnsConfig
from podwire.dns.names import encode_name
from podwire.dns.server import DnsServer
from podwire.dns.wire import DnsMessage
from podwire.dns.zone import Zone, ZoneOptions
from podwire.kernel import bpf_objects, bpf_state, bpf_syscall, netns
from podwire.kernel.bpf_state import BpfPins
from podwire.model.meta import ObjectMeta
from podwire.model.service import Service, ServiceSpec
from podwire.runtime.clock import SystemClock
from podwire.state.bpf import BpfAttachment, BpfFolder

_KERNEL, _SERVER, _UNBOUND = "10.96.0.10", "10.96.0.11", "10.96.0.12"
_CLIENT, _GATEWAY, _DEVICE = "10.244.1.5", "10.244.1.1", "pod1"
_KINDS = {
    "Service A (150 names)": "Service A (150 names)",
    "Service AAAA, no data": "Service AAAA, no data",
    "headless 3 A": "headless 3 A",
    "NXDOMAIN, search path": "NXDOMAIN, search path",
    "A of all 10,000 Services": "A of all 10,000 Services, not kept",
    "NXDOMAIN, all unique": "NXDOMAIN, all unique",
}
"""The questions by the name of their rows."""
_RUN_TIME_AT = 192
"""Where ``run_time_ns`` and ``run_cnt`` are in ``struct bpf_prog_info``."""
_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


def _inside(place: Path, *command: str) -> str:
    done = subprocess.run(["nsenter", f"--net={place}", *command], capture_output=True, text=True, check=True)
    return done.stdout


def serve(place: str, ready: Event) -> None:
    """The process of podwire's server, in the node's namespace."""
    netns.enter(place)

    async def body() -> None:
        server = DnsServer(DnsConfig(listen=(_SERVER, _KERNEL), port=53, upstreams=("127.0.0.1:9",)), SystemClock())
        fill(server.zone)
        await server.open()
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(body())


def unbound_configuration(folder: Path) -> Path:
    """The configuration with the names of the zone as local data."""
    lines = [f'local-data: "{name}.default.svc.cluster.local. 5 A {address}"' for name, address in addresses()]
    for size in (3, 10):
        name = f"headless-{size}.default.svc.cluster.local."
        lines += [f'local-data: "{name} 5 A 10.244.{size}.{i}"' for i in range(size)]
    path = folder / "unbound.conf"
    path.write_text(
        f"""server:
  interface: {_UNBOUND}
  num-threads: 1
  chroot: ""
  username: ""
  directory: "{folder}"
  pidfile: ""
  use-syslog: no
  access-control: 0.0.0.0/0 allow
  local-zone: "cluster.local." static
"""
        + "".join(f"  {line}\n" for line in lines)
        + "remote-control:\n  control-enable: no\n"
    )
    return path


class Node:
    """The two namespaces, with the program at the pod's device."""

    def __init__(self, root: Path) -> None:
        self.node, self.pod = root / "node", root / "pod"
        for place in (self.node, self.pod):
            netns.create(place)
            _inside(place, "ip", "link", "set", "lo", "up")
        for address in (_KERNEL, _SERVER, _UNBOUND):
            _inside(self.node, "ip", "address", "add", f"{address}/32", "dev", "lo")
        _inside(self.node, *f"ip link add {_DEVICE} type veth peer name eth0 netns {self.pod}".split())
        _inside(self.node, "ip", "address", "add", f"{_GATEWAY}/24", "dev", _DEVICE)
        _inside(self.node, "ip", "link", "set", _DEVICE, "up")
        for command in (f"address add {_CLIENT}/24 dev eth0", "link set eth0 up", f"route add default via {_GATEWAY}"):
            _inside(self.pod, "ip", *command.split())
        self.zone = Zone(ZoneOptions())
        fill(self.zone)
        meta = ObjectMeta(name="kube-dns", namespace="kube-system")
        self.zone.index.set_service(
            "kube-system/kube-dns", Service(metadata=meta, spec=ServiceSpec(cluster_ip=_KERNEL)), 1
        )
        self.table = DnsTable(EntryPlan(ZoneOptions()), self.zone.index, ("kube-system", "kube-dns"), 1232)
        self.load_s = self._attach(f"bench-{os.getpid()}")

    def _attach(self, folder: str) -> float:
        """Attaches the program and writes all names; the seconds that writing them took."""
        self.folder = folder
        contents = bpf_objects.describe("dns_answers", folder)
        attachment = BpfAttachment(_DEVICE, "ingress", "dns_answers")
        with netns.inside(self.node):
            pins = BpfPins(folder)
            pins.apply(BpfFolder(folder, contents.programs, contents.maps, (attachment,)))
            index = socket.if_nametoindex(_DEVICE)
        maps = DnsMaps(*(pins.open_map(f"dns_{field}") for field in DnsMaps._fields))
        maps.clients.write(client_key(index, ip_address(_CLIENT).packed), b"\x01\0\0\0")
        self.table.use(maps)
        begun = time.perf_counter()
        self.table.follow()
        took = time.perf_counter() - begun
        if not self.table.answering:
            raise SystemExit(f"bench.dns_kernel: {self.table.problem}")
        (program,) = (pins.path / "programs").iterdir()
        self._program = bpf_syscall.open_pin(str(program))
        return took

    def program_times(self) -> tuple[int, int]:
        """The run time of the program in nanoseconds, and how often it ran."""
        data = bpf_syscall.information(self._program, _RUN_TIME_AT + 16)
        spent, runs = struct.unpack_from("=QQ", data, _RUN_TIME_AT)
        return int(spent), int(runs)

    def latencies(self, server: str, rounds: int) -> list[float]:
        """The microseconds of queries that one client sends one after the other."""
        with netns.inside(self.pod):
            link = socket.socket(type=socket.SOCK_DGRAM)
        values = []
        with link:
            link.settimeout(5)
            link.connect((server, 53))
            for at in range(rounds):
                self.table.renew() if at % 1000 == 0 else None
                name = encode_name(f"web-{at % 150}.default.svc.cluster.local")
                query = wire.encode(DnsMessage(7, wire.RD, name, wire.A))
                begun = time.perf_counter_ns()
                link.send(query)
                link.recv(512)
                values.append((time.perf_counter_ns() - begun) / 1e3)
        return sorted(values)

    def change(self, rounds: int) -> list[float]:
        """The milliseconds from a changed Service in the zone to the pod's answer with the new address."""
        with netns.inside(self.pod):
            link = socket.socket(type=socket.SOCK_DGRAM)
        query = wire.encode(DnsMessage(7, wire.RD, encode_name("changing.default.svc.cluster.local"), wire.A))
        values = []
        with link:
            link.settimeout(5)
            link.connect((_KERNEL, 53))
            for at in range(rounds):
                address = f"10.98.{at // 250}.{at % 250}"
                meta = ObjectMeta(name="changing", namespace="default")
                changed = Service(metadata=meta, spec=ServiceSpec(cluster_ip=address))
                begun = time.perf_counter()
                self.zone.index.set_service("default/changing", changed, at)
                self.table.follow()
                link.send(query)
                reply = link.recv(512)
                values.append((time.perf_counter() - begun) * 1e3)
                if reply[-4:] != ip_address(address).packed:
                    raise SystemExit("bench.dns_kernel: the kernel's answer is stale")
        return values

    def close(self) -> None:
        """Removes everything."""
        bpf_state.remove_folder(self.folder)
        for place in (self.node, self.pod):
            netns.delete(place)


def _load(pod: Path, path: Path, server: str, seconds: int) -> tuple[float, int]:
    """Queries per second, queries lost."""
    command = ["dnsperf", "-s", server, "-d", str(path), "-l", str(seconds), "-q", "100"]
    text = _inside(pod, *command)
    rate, lost = re.search(r"Queries per second:\s+([\d.]+)", text), re.search(r"Queries lost:\s+(\d+)", text)
    return float(rate[1]) if rate else 0.0, int(lost[1]) if lost else 0


@contextmanager
def _statistics() -> Iterator[None]:
    before = _STATISTICS.read_text()
    _STATISTICS.write_text("1")
    try:
        yield
    finally:
        _STATISTICS.write_text(before)


def _kind_rows(name: str, node: Node, path: Path, pids: dict[str, int], runs: int, seconds: int) -> Iterator[Row]:
    """The rows of one kind of question: rates, and CPU a query."""
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    lost = 0
    for _ in range(runs):
        node.table.renew()
        before = node.program_times()
        with _statistics():
            rate, missed = _load(node.pod, path, _KERNEL, seconds)
        after = node.program_times()
        lost += missed
        rates.setdefault("kernel", []).append(rate)
        costs.setdefault("kernel", []).append((after[0] - before[0]) / max(1, after[1] - before[1]) / 1e3)
        for server, address in (("podwire's server", _SERVER), ("unbound", _UNBOUND)):
            if server not in pids:
                continue
            begun = cpu_s(pids[server])
            rate, _ = _load(node.pod, path, address, seconds)
            rates.setdefault(server, []).append(rate)
            costs.setdefault(server, []).append((cpu_s(pids[server]) - begun) / (rate * seconds) * 1e6)
    for text, unit, values, aim in ((name, "/s", rates, None), (f"{name}: CPU a query", "us", costs, 0.6)):
        peers = tuple((server, tuple(own)) for server, own in values.items() if server != "kernel")
        yield Row(text, unit, tuple(values["kernel"]), peers, aim)
    if lost:
        yield Row(f"{name}: queries lost in the kernel", "", (float(lost),), aim=0)


def _latency_rows(node: Node, pids: dict[str, int], rounds: int) -> Iterator[Row]:
    measured = {"kernel": node.latencies(_KERNEL, rounds), "podwire's server": node.latencies(_SERVER, rounds)}
    if "unbound" in pids:
        measured["unbound"] = node.latencies(_UNBOUND, rounds)
    for share, aim in ((0.5, None), (0.99, 50.0), (0.999, None)):
        at = {server: values[int(share * (len(values) - 1))] for server, values in measured.items()}
        peers = tuple((server, (value,)) for server, value in at.items() if server != "kernel")
        yield Row(f"latency of a query, percentile {100 * share:g}", "us", (at["kernel"],), peers, aim)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one second each.

    Raises: SystemExit when dnsperf is not installed.
    """
    if shutil.which("dnsperf") is None:
        raise SystemExit("bench.dns_kernel: dnsperf is not installed (Debian package dnsperf)")
    rows: list[Row] = []
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = Node(root)
        stack.callback(node.close)
        spawn = multiprocessing.get_context("spawn")
        ready = spawn.Event()
        process = spawn.Process(target=serve, args=(str(node.node), ready), daemon=True)
        process.start()
        stack.callback(process.kill)
        ready.wait(60)
        pids = {"podwire's server": process.pid or 0}
        program = shutil.which("unbound", path="/usr/sbin:/usr/bin")
        if program is not None:
            command = ["nsenter", f"--net={node.node}", program, "-d", "-c", str(unbound_configuration(root))]
            unbound = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(unbound.wait)
            stack.callback(unbound.kill)
            pids["unbound"] = unbound.pid
            time.sleep(2)
        for name, kind in _KINDS.items():
            path = root / "questions"
            path.write_text("\n".join(questions()[kind]) + "\n")
            rows += _kind_rows(name, node, path, pids, 1 if quick else 3, 1 if quick else 2)
        rows += _latency_rows(node, pids, 2_000 if quick else 20_000)
        rows.append(Row("change of a Service in the zone to the pod's answer", "ms", tuple(node.change(300)), aim=5.0))
        rows.append(Row("writing all names into the kernel", "s", (node.load_s,)))
    return rows


if __name__ == "__main__":
    run_alone("dns_kernel", __doc__, run)
