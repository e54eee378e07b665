"""A node with a CNI service, for tests that put pods on it."""

import asyncio
import json
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from tests.kernel.reference_plugins import PLUGINS

from podwire.cluster.podbridge import BRIDGE
from podwire.cni import program
from podwire.cni.service import CniService, CniSettings
from podwire.cni.wiring import WiringFacts
from podwire.kernel import netns
from podwire.runtime.clock import Clock, SystemClock

VERSION = "1.1.0"
_DONT_FRAGMENT = {4: (socket.IPPROTO_IP, 10, 2), 6: (socket.IPPROTO_IPV6, 62, 1)}
"""IP_MTU_DISCOVER with IP_PMTUDISC_DO, and IPV6_DONTFRAG: linux/in.h, linux/in6.h."""


def inside(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["nsenter", f"--net={place}", *command], capture_output=True, text=True, check=False)


def call_plugin(node: "NodeAgent", plugin: str, command: str, pod: str, document: Any) -> tuple[int, dict[str, Any]]:
    """Executes a plugin for a pod as a runtime does; returns its exit status and its answer, empty without one."""
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": f"c-{pod}",
        "CNI_NETNS": str(node.pods / pod),
        "CNI_IFNAME": "eth0",
        "CNI_PATH": PLUGINS,
        "PODWIRE_CNI_SOCKET": str(node.socket),
        "PATH": os.environ["PATH"],
    }
    arguments = ["nsenter", f"--net={node.place}", plugin]
    done = subprocess.run(
        arguments, env=environment, input=json.dumps(document).encode(), capture_output=True, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def ping(place: Path, address: str, source: str = "", *, patience_s: float = 0.5, size: int = 0) -> bool:
    """Whether an echo request from a namespace is answered; one of a ``size`` in bytes must not be fragmented."""
    v6 = ":" in address
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
    with netns.inside(place):
        opened = socket.socket(family, socket.SOCK_RAW, protocol)
    with opened:
        opened.settimeout(patience_s)
        if source:
            opened.bind((source, 0))
        if size:
            opened.setsockopt(*(_DONT_FRAGMENT[6 if v6 else 4]))
        head = struct.pack("!BBHHH", 128 if v6 else 8, 0, 0, 77, 1)
        checksum = 0xFFFF - sum(struct.unpack("!4H", head)) % 0xFFFF
        packet = head[:2] + checksum.to_bytes(2, "big") + head[4:] + bytes(max(0, size - (48 if v6 else 28)))
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

    def __init__(
        self, tmp_path: Path, cidrs: tuple[str, ...], link: str = "routed", clock: Clock | None = None
    ) -> None:
        """``clock`` is that of the service; None: the machine's."""
        self.clock = clock or SystemClock()
        self.place = tmp_path / "node"
        self.pods = tmp_path / "pods"
        self.socket = tmp_path / "cni.sock"
        self.database = tmp_path / "ipam.db"
        self.cidrs = cidrs
        self.link = link
        """How new pods are connected."""
        self.host_local: Path | None = None
        self.program = [str(program.path())]
        self.results: dict[tuple[str, str], dict[str, Any]] = {}
        """The result of the last ADD by pod and interface, which CHECK hands over."""
        self.facts: WiringFacts | None = WiringFacts(cidrs=cidrs)
        """What routing says at the start; None: nothing yet, so the agent knows what its predecessor wrote."""
        netns.create(self.place)
        inside(self.place, "ip", "link", "set", "lo", "up")
        self.service: CniService
        self.start()

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(ready)))
        self._thread.start()
        assert ready.wait(60)

    async def _main(self, ready: threading.Event) -> None:
        settings = CniSettings(
            socket=self.socket,
            database=self.database,
            netns=self.place,
            host_local=self.host_local,
            link=self.link,
        )
        self.service = CniService(settings, self.clock)
        self.service.recover()
        if self.facts is not None:
            self.service.set_node(self.facts)
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        tasks = [
            asyncio.ensure_future(body())
            for body in (
                self.service.run,
                self.service.delete_detached,
                self.service.forget_stale,
                self.service.healing.run,
                self.service.healing.compare_sysctls,
                self.service.hardware.run,
            )
        ]
        await asyncio.sleep(0.02)
        ready.set()
        await self._end.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.service.close()

    def within(self, action: Callable[[], Any]) -> Any:
        """Runs an action in the event loop of the CNI service; returns the result."""

        async def body() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(body(), self._loop).result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def pod(self, name: str) -> Path:
        place = self.pods / name
        netns.create(place)
        return place

    def call(self, command: str, name: str = "", **more: Any) -> tuple[int, dict[str, Any]]:
        place = self.pods / name
        key = (name, more.get("ifname", "eth0"))
        if command == "CHECK" and key in self.results:
            more.setdefault("prevResult", self.results[key])
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": f"c-{name}",
            "CNI_NETNS": more.pop("netns", str(place)),
            "CNI_IFNAME": more.pop("ifname", "eth0"),
            "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}{more.pop('arguments', ';IgnoreUnknown=1')}",
            "PODWIRE_CNI_SOCKET": str(self.socket),
            "PODWIRE_CNI_WAIT_S": "3",
        }
        conf = {"cniVersion": VERSION, "name": "podwire", "type": "podwire-cni", **more}
        done = subprocess.run(
            self.program, env=environment, input=json.dumps(conf).encode(), capture_output=True, check=False
        )
        answer = json.loads(done.stdout) if done.stdout else {}
        if command == "ADD" and not done.returncode:
            self.results[key] = answer
        return done.returncode, answer

    def add(self, name: str, **more: Any) -> list[str]:
        self.pod(name)
        status, result = self.call("ADD", name, **more)
        assert status == 0, result
        return [ip["address"].partition("/")[0] for ip in result["ips"]]

    @property
    def gateway(self) -> str:
        """The IPv4 gateway of new pods."""
        return str(ip_network(self.cidrs[0])[1]) if self.link == "bridge" else "169.254.1.1"

    def device(self, link: str) -> str:
        """The device that has routes to the pod behind a link."""
        return BRIDGE if self.link == "bridge" else link

    def links(self) -> list[str]:
        """The node's ends of pods' devices."""
        shown = json.loads(inside(self.place, "ip", "-j", "link").stdout)
        return [x["ifname"] for x in shown if x["ifname"] not in ("lo", BRIDGE) and x.get("group") == "default"]

    def routes(self) -> list[str]:
        shown = json.loads(inside(self.place, "ip", "-j", "route").stdout)
        return [route["dst"] for route in shown]

    def neighbours(self) -> list[str]:
        return [entry["dst"] for entry in json.loads(inside(self.place, "ip", "-j", "neigh").stdout)]

    def ping(self, name: str, address: str) -> bool:
        return ping(self.pods / name, address, patience_s=10)

    def close(self) -> None:
        self.stop()
        for place in self.pods.iterdir() if self.pods.exists() else ():
            netns.delete(place)
        netns.delete(self.place)
