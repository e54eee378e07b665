"""Pods through the CNI program, the socket and the kernel: real namespaces, real packets."""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.agent import comparison
from podwire.cni import program, wiring
from podwire.cni.service import CniService, Settings
from podwire.cni.wiring import Node as PodNode
from podwire.kernel import netns
from podwire.runtime.clock import SystemClock
from podwire.state import share
from podwire.state.drift import render

VERSION = "1.1.0"


def inside(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["nsenter", f"--net={place}", *command], capture_output=True, text=True, check=False)


def ping(place: Path, address: str, source: str = "") -> bool:
    """Whether an echo request from a namespace is answered within half a second."""
    v6 = ":" in address
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
    with netns.inside(place):
        opened = socket.socket(family, socket.SOCK_RAW, protocol)
    with opened:
        opened.settimeout(0.5)
        if source:
            opened.bind((source, 0))
        head = struct.pack("!BBHHH", 128 if v6 else 8, 0, 0, 77, 1)
        checksum = 0xFFFF - sum(struct.unpack("!4H", head)) % 0xFFFF
        packet = head[:2] + checksum.to_bytes(2, "big") + head[4:]
        try:
            opened.sendto(packet, (address, 0))
            while True:
                answer, peer = opened.recvfrom(2048)
                kind = answer[0] if v6 else answer[20]
                if peer[0] == address and kind == (129 if v6 else 0):
                    return True
        except OSError:
            return False


class NodeAgent:
    """One node namespace with a CNI service in a thread, which can be killed and started again."""

    def __init__(self, tmp_path: Path, cidrs: tuple[str, ...]) -> None:
        self.place = tmp_path / "node"
        self.pods = tmp_path / "pods"
        self.socket = tmp_path / "cni.sock"
        self.database = tmp_path / "ipam.db"
        self.cidrs = cidrs
        netns.create(self.place)
        inside(self.place, "ip", "link", "set", "lo", "up")
        self.service: CniService
        self.start()

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(ready)))
        self._thread.start()
        assert ready.wait(10)

    async def _main(self, ready: threading.Event) -> None:
        settings = Settings(socket=self.socket, database=self.database, netns=self.place)
        self.service = CniService(settings, SystemClock())
        self.service.recover()
        self.service.set_node(PodNode(cidrs=self.cidrs))
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        tasks = [asyncio.ensure_future(body()) for body in
                 (self.service.run, self.service.bury, self.service.heal)]
        await asyncio.sleep(0.02)
        ready.set()
        await self._end.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.service.close()

    def within(self, action: Callable[[], Any]) -> Any:
        """What an action gives that is done where the agent's own code runs."""
        async def body() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(body(), self._loop).result(5)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def pod(self, name: str) -> Path:
        place = self.pods / name
        netns.create(place)
        return place

    def call(self, command: str, name: str = "", **more: Any) -> tuple[int, dict[str, Any]]:
        place = self.pods / name
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": f"c-{name}",
            "CNI_NETNS": more.pop("netns", str(place)),
            "CNI_IFNAME": more.pop("ifname", "eth0"),
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}",
            "PODWIRE_CNI_SOCKET": str(self.socket),
            "PODWIRE_CNI_WAIT_S": "3",
        }
        conf = {"cniVersion": VERSION, "name": "podwire", "type": "podwire-cni", **more}
        done = subprocess.run([str(program.path())], env=environment, input=json.dumps(conf).encode(),
                              capture_output=True, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout else {}

    def add(self, name: str, **more: Any) -> list[str]:
        self.pod(name)
        status, result = self.call("ADD", name, **more)
        assert status == 0, result
        return [ip["address"].partition("/")[0] for ip in result["ips"]]

    def links(self) -> list[str]:
        shown = json.loads(inside(self.place, "ip", "-j", "link").stdout)
        return [link["ifname"] for link in shown if link["ifname"] != "lo" and link.get("group") == "default"]

    def routes(self) -> list[str]:
        shown = json.loads(inside(self.place, "ip", "-j", "route").stdout)
        return [route["dst"] for route in shown]

    def neighbours(self) -> list[str]:
        return [entry["dst"] for entry in json.loads(inside(self.place, "ip", "-j", "neigh").stdout)]

    def ping(self, name: str, address: str, source: str = "") -> bool:
        return ping(self.pods / name, address, source)

    def close(self) -> None:
        self.stop()
        for place in self.pods.iterdir() if self.pods.exists() else ():
            netns.delete(place)
        netns.delete(self.place)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., NodeAgent]]:
    made: list[NodeAgent] = []

    def build(*cidrs: str) -> NodeAgent:
        made.append(NodeAgent(tmp_path, cidrs or ("10.244.1.0/24",)))
        return made[-1]

    yield build
    for node in made:
        node.close()


def test_two_pods_reach_each_other_and_leave_nothing(make: Callable[..., NodeAgent]) -> None:
    node = make()
    first, second = node.add("web-1"), node.add("database-1")
    assert (first, second) == (["10.244.1.2"], ["10.244.1.3"])
    assert node.ping("web-1", second[0]) and node.ping("database-1", first[0])
    names = node.links()
    assert sorted(name[:-6] for name in names) == ["database-", "web-1-"]
    alias = inside(node.place, "ip", "-j", "link", "show", names[0]).stdout
    assert json.loads(alias)[0]["ifalias"].startswith("shop/")
    for name in ("web-1", "database-1"):
        assert node.call("DEL", name) == (0, {})
        assert node.call("DEL", name) == (0, {})
    assert (node.links(), node.routes(), node.neighbours()) == ([], [], [])
    assert node.service.leases.held == {}


def test_dual_stack(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24", "fd00:1::/64")
    first, second = node.add("a"), node.add("b")
    assert second == ["10.244.1.3", "fd00:1::3"]
    assert all(node.ping("a", address) for address in second)
    assert all(node.ping("b", address) for address in first)


def test_the_result_in_every_version(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for number, version in enumerate(("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")):
        name = f"v{number}"
        node.pod(name)
        status, result = node.call("ADD", name, cniVersion=version)
        assert (status, result["cniVersion"]) == (0, version)
        if number > 1:
            assert result["interfaces"][1]["sandbox"] == str(node.pods / name)


def test_adding_twice_is_refused_and_the_pod_goes_on(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.add("a")
    other = node.add("b")
    status, error = node.call("ADD", "a")
    assert (status, error["code"]) == (1, 101)
    assert node.ping("a", other[0])


def test_an_interface_that_exists_is_refused_and_nothing_leaks(make: Callable[..., NodeAgent]) -> None:
    node = make()
    place = node.pod("a")
    inside(place, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    status, error = node.call("ADD", "a")
    assert (status, error["code"]) == (1, 102)
    assert (node.links(), node.routes(), node.service.leases.held) == ([], [], {})


def test_a_configuration_that_cannot_be_leaks_nothing(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.pod("a")
    status, error = node.call("ADD", "a", runtimeConfig={"mac": "nonsense"})
    assert (status, error["code"]) == (1, 7)
    status, error = node.call("ADD", "a", runtimeConfig={"portMappings": [{"hostPort": 0, "containerPort": 1}]})
    assert (status, error["code"]) == (1, 7)
    assert (node.links(), node.service.leases.held, node.service.leases.pools[0].held) == ([], {}, 0)
    assert node.call("ADD", "a", runtimeConfig={"mac": "02:00:00:00:00:99"})[0] == 0


def test_a_full_disk_refuses_pods_and_recovers(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "pwt-cni-disk", str(disk)], check=True)
    try:
        node = make()
        node.stop()
        node.database = disk / "ipam.db"
        node.start()
        node.add("a")
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as out:
            while True:
                out.write(b"x" * 1024)
        codes = []
        for number in range(40):
            node.pod(f"b{number}")
            status, answer = node.call("ADD", f"b{number}")
            if status:
                codes.append(answer["code"])
                break
        assert codes == [5]
        held = len(node.service.leases.held)
        assert len(node.links()) == held == node.service.leases.pools[0].held
        filler.unlink()
        node.add("c")
        node.stop()
        node.start()
        assert len(node.links()) == held + 1
    finally:
        node.stop()
        subprocess.run(["umount", "-l", str(disk)], check=True)
        node.database = tmp_path / "ipam.db"
        node.start()


@pytest.mark.parametrize("netns_path", ["", "/nonexistent"])
def test_del_without_the_namespace_leaves_nothing(make: Callable[..., NodeAgent], netns_path: str) -> None:
    node = make()
    node.add("a")
    netns.delete(node.pods / "a")
    assert node.call("DEL", "a", netns=netns_path) == (0, {})
    assert (node.routes(), node.neighbours(), node.service.leases.held) == ([], [], {})


def test_wrong_namespaces(make: Callable[..., NodeAgent]) -> None:
    node = make()
    assert node.call("ADD", "a", netns="/nonexistent")[1]["code"] == 8
    assert node.call("ADD", "a", netns=str(node.place))[1]["code"] == 8


def test_check_finds_what_is_missing(make: Callable[..., NodeAgent]) -> None:
    node = make()
    address = node.add("a")[0]
    assert node.call("CHECK", "a") == (0, {})
    inside(node.pods / "a", "ip", "link", "set", "eth0", "address", "02:00:00:00:00:77")
    inside(node.place, "ip", "route", "del", f"{address}/32")
    status, error = node.call("CHECK", "a")
    assert (status, error["code"]) == (1, 100)
    assert f"{address}/32" in error["details"]
    assert node.call("CHECK", "b")[1]["code"] == 3


def test_status_tells_exhaustion(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/30")
    assert node.call("STATUS") == (0, {})
    node.add("a")
    assert node.call("STATUS")[1]["code"] == 50
    node.pod("b")
    assert node.call("ADD", "b")[1]["code"] == 11
    assert node.call("DEL", "a") == (0, {})
    assert node.call("STATUS") == (0, {})
    assert node.call("ADD", "b")[1]["ips"][0]["address"] == "10.244.1.2/32"
    assert node.service.leases.early == 1


def test_gc_removes_exactly_the_others(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for name in "abc":
        node.add(name)
    kept = {"cni.dev/valid-attachments": [{"containerID": "c-b", "ifname": "eth0"}]}
    assert node.call("GC", **kept) == (0, {})
    assert [key.container for key in node.service.leases.held] == ["c-b"]
    assert len(node.links()) == 1
    assert node.call("GC", **kept) == (0, {})


def test_host_ports(make: Callable[..., NodeAgent]) -> None:
    node = make()
    ports = {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}
    inside(node.place, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
    node.add("web", **ports)
    node.add("client")
    node.pod("second")
    assert node.call("ADD", "second", **ports)[1]["code"] == 103
    server = subprocess.Popen(
        ["nsenter", f"--net={node.pods / 'web'}", "python3", "-c",
         "import socket\ns=socket.create_server(('',80))\nprint('up',flush=True)\n"
         "while True:\n c,a=s.accept();c.sendall(a[0].encode());c.close()"],
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None and server.stdout.readline()
    ask = "import socket;print(socket.create_connection(('192.0.2.1',8080),2).recv(99).decode())"
    try:
        for place in (node.place, node.pods / "client", node.pods / "web"):
            done = inside(place, "python3", "-c", ask)
            assert done.returncode == 0, done.stderr
        assert node.call("DEL", "web") == (0, {})
        assert "podwire-hostport" not in inside(node.place, "nft", "list", "tables").stdout
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_restart_finds_state_ledger_and_kernel_equal(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for name in "abcd":
        node.add(name)
    node.stop()
    inside(node.place, "ip", "link", "del", next(n for n in node.links() if n.startswith("b-")))
    node.start()
    assert sorted(key.container for key in node.service.leases.held) == ["c-a", "c-c", "c-d"]
    assert node.ping("a", "10.244.1.4")
    assert node.add("e") == ["10.244.1.6"]


def test_a_lost_ledger_is_rebuilt_from_the_kernel(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for name in "ab":
        node.add(name)
    node.stop()
    for part in node.database.parent.glob("ipam.db*"):
        part.unlink()
    node.start()
    assert node.ping("a", "10.244.1.3")
    assert node.add("c") == ["10.244.1.4"]
    assert node.call("DEL", "a") == (0, {})
    assert len(node.routes()) == 2


def test_pods_follow_a_new_mtu(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.add("a")
    node._loop.call_soon_threadsafe(node.service.set_node, PodNode(mtu=1400, cidrs=node.cidrs))
    node.add("b")
    for name in "ab":
        shown = json.loads(inside(node.pods / name, "ip", "-j", "link", "show", "eth0").stdout)
        assert shown[0]["mtu"] == 1400
        assert "mtu 1400" in inside(node.pods / name, "ip", "route").stdout
    assert node.ping("a", "10.244.1.3")


def test_a_spoofed_source_is_dropped(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.add("a")
    other = node.add("b")[0]
    inside(node.pods / "a", "ip", "addr", "add", "10.244.1.99/32", "dev", "eth0")
    assert not node.ping("a", other, "10.244.1.99")
    assert node.ping("a", other)


@pytest.mark.slow
def test_churn_leaves_nothing_and_repeats_no_address(make: Callable[..., NodeAgent]) -> None:
    node = make()
    os.environ.setdefault("LC_ALL", "C")

    def cycle(name: str) -> list[str]:
        seen = node.add(name)
        assert node.call("DEL", name) == (0, {})
        return seen

    results: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda w=w: results.extend(cycle(f"w{w}-{i}") for i in range(12))) for w in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 96
    assert len({address for [address] in results}) == 96
    assert (node.links(), node.routes(), node.neighbours(), node.service.leases.held) == ([], [], [], {})


def eventually(check: Callable[[], Any], seconds: float = 4.0) -> float:
    """The seconds until the check is true."""
    begun = time.monotonic()
    while not check():
        assert time.monotonic() - begun < seconds, "not within the time"
        time.sleep(0.01)
    return time.monotonic() - begun


def test_what_somebody_takes_from_a_pod_comes_back(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24", "fd00:244:1::/64")
    four, six = node.add("web")
    other = node.add("db")[0]
    link = node.links()[0]
    inside(node.place, "ip", "route", "add", "203.0.113.0/24", "dev", link)
    place = node.pods / "db"
    assert ping(place, four) and ping(place, six)
    for command in (
        f"ip route del {four}",
        f"ip -6 route del {six}",
        f"ip route flush proto {wiring.ROUTE_PROTOCOL}",
        f"ip neigh flush all nud permanent dev {link}",
        f"ip link set {link} down",
    ):
        done = inside(node.place, *command.split())
        assert done.returncode == 0, done.stderr
        eventually(lambda: ping(place, four) and ping(place, six))
    assert ping(node.pods / "web", other)
    assert "203.0.113.0/24" not in inside(node.place, "ip", "route").stdout, "went with the device, is not ours"

    # so do sysctls; some the kernel does not tell of, they are put right by the next look; foreign things stay
    def parameter(name: str) -> str:
        return inside(node.place, "sysctl", "-n", f"net/ipv4/conf/{link}/{name}").stdout.strip()

    inside(node.place, "ip", "route", "add", "203.0.113.0/24", "dev", link)
    inside(node.place, "sysctl", "-qw", f"net/ipv4/conf/{link}/rp_filter=0")
    eventually(lambda: parameter("rp_filter") == "1")
    inside(node.place, "sysctl", "-qw", f"net/ipv4/conf/{link}/send_redirects=1")
    assert node.within(node.service.pods.heal) == []
    assert parameter("send_redirects") == "0"
    assert "203.0.113.0/24" in inside(node.place, "ip", "route").stdout


def test_routes_survive_that_the_nodes_address_comes_and_goes(make: Callable[..., NodeAgent]) -> None:
    node = make()
    inside(node.place, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    node.within(lambda: node.service.set_node(PodNode(cidrs=node.cidrs, sources={4: "192.0.2.1"})))
    address = node.add("web")[0]

    def source() -> str:
        return inside(node.place, "ip", "route", "show", address).stdout

    assert "src 192.0.2.1" in source()
    inside(node.place, "ip", "address", "del", "192.0.2.1/32", "dev", "lo")
    assert source() == "", "the kernel takes the route along"
    time.sleep(0.3)
    inside(node.place, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    assert eventually(lambda: "src 192.0.2.1" in source()) < 1.5

    # pods that run follow a new source
    inside(node.place, "ip", "address", "add", "192.0.2.2/32", "dev", "lo")
    node.within(lambda: node.service.set_node(PodNode(cidrs=node.cidrs, sources={4: "192.0.2.2"})))
    eventually(lambda: "src 192.0.2.2" in source())


def test_what_the_kernel_should_hold_is_told_and_compared(make: Callable[..., NodeAgent]) -> None:
    node = make()
    ports = {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}
    node.add("web", **ports)
    node.add("db")
    shares = node.within(lambda: list(node.service.pods.shares()))
    assert share.parse(share.render(shares)) == shares
    assert [one.title for one in shares] == ["cni", "cni shop/web", "cni shop/db"]
    node.stop()

    def drift() -> list[str]:
        return list(render(comparison.compare(shares, node.place)))

    assert drift() == []
    inside(node.place, "ip", "link", "add", "foreign0", "type", "dummy")
    inside(node.place, "nft", "add", "table", "inet", "foreign")
    inside(node.place, "ip", "route", "add", "198.51.100.0/24", "dev", "lo", "proto", "static")
    assert drift() == []

    web = next(link for link in node.links() if link.startswith("web"))
    db = next(link for link in node.links() if link.startswith("db"))
    inside(node.place, "ip", "link", "del", web)
    inside(node.place, "ip", "route", "del", "10.244.1.3")
    inside(node.place, "nft", "flush", "map", "inet", "podwire-hostport", "any4")
    inside(node.pods / "db", "ip", "link", "set", "eth0", "mtu", "1400")
    found = drift()
    assert f"+route 10.244.1.3/32 dev {db} proto 112" in found
    assert any(line.startswith(f"+link {web} ") for line in found)
    at = found.index("@@ cni: table inet podwire-hostport, map any4 @@")
    assert found[at + 1] == '+tcp . 8080 comment "shop/web" : 10.244.1.2 . 80'
    assert "@@ cni shop/web @@" in found, "the pod's end went with the node's"
    changed = found[found.index("@@ cni shop/db @@") + 1 :]
    assert [line[0] for line in changed] == ["-", "+"] and "mtu 1400" in changed[0] and "mtu 1500" in changed[1]
    netns.delete(node.pods / "db")
    assert "@@ cni shop/db (its namespace is gone) @@" in drift()
    node.start()
