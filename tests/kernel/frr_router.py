"""FRR as the router of a test: BGP, BFD and the kernel's routes in one namespace."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.bird_nodes import OUTSIDE, ROUTER_AS
from tests.kernel.routing_nodes import Cluster, inside

from podwire.kernel import netns

FRR = Path("/usr/lib/frr")


class FrrRouter:
    """The daemons of FRR in the namespace that joins the segments."""

    def __init__(self, cluster: Cluster) -> None:
        self.place = cluster.fabric
        self._folder = cluster.root / "frr"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self, lines: Iterable[str]) -> None:
        """Starts zebra, bfdd and bgpd, each with the whole configuration."""
        self._folder.mkdir(mode=0o755)
        for program in ("zebra", "bfdd", "bgpd"):
            file = self._folder / f"{program}.conf"
            file.write_text("\n".join(lines if program == "bgpd" else ()) + "\n")
            special = {
                "zebra": ("-K", "1"),
                "bfdd": ("--bfdctl", str(self._folder / "bfdd.sock")),
                "bgpd": ("-p", "179"),
            }
            argv = [
                *(str(FRR / program), "-u", "root", "-g", "frrvty", "-P", "0", "-f", str(file)),
                *("-i", str(self._folder / f"{program}.pid"), "-z", str(self._folder / "zserv.api")),
                *("--vty_socket", str(self._folder), "--log", f"file:{self._folder}/{program}.log"),
                *special[program],
            ]
            with netns.inside(self.place):
                self._daemons.append(subprocess.Popen(argv, env={**os.environ}))
            self._wait_for(self._folder / f"{program}.vty")

    def _wait_for(self, socket: Path) -> None:
        deadline = time.monotonic() + 60
        while not socket.exists():
            assert self._daemons[-1].poll() is None, f"{socket.stem} of FRR ended"
            assert time.monotonic() < deadline, f"{socket.stem} of FRR does not start"
            time.sleep(0.02)

    def ask(self, arguments: str) -> Any:
        """The answer to a command in JSON."""
        done = subprocess.run(
            ["vtysh", "--vty_socket", str(self._folder), "-c", f"{arguments} json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else {}

    def states(self) -> dict[str, str]:
        """The state of each session by the address of the neighbour."""
        peers = self.ask("show bgp ipv4 unicast summary").get("peers", {})
        return {address: peer["state"] for address, peer in peers.items()}

    def established(self, *addresses: str) -> bool:
        return self.states() == dict.fromkeys(addresses, "Established")

    def paths(self, network: str) -> list[dict[str, Any]]:
        """The paths of a network as FRR got them."""
        result: list[dict[str, Any]] = self.ask(f"show bgp ipv4 unicast {network}").get("paths", [])
        return result

    def routes(self) -> str:
        """The kernel's routes that FRR wrote."""
        return inside(self.place, "ip", "route", "show", "proto", "bgp")

    @contextmanager
    def changes(self) -> Iterator[Callable[[], list[str]]]:
        """Watches the kernel's routes; the function ends the watch and returns its lines."""
        watch = ["nsenter", f"--net={self.place}", "ip", "monitor", "route"]
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as monitor:

            def lines() -> list[str]:
                monitor.terminate()
                return monitor.communicate()[0].splitlines()

            try:
                yield lines
            finally:
                monitor.kill()

    def end(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()


def configuration(
    cluster: Cluster, *, password: str = "", neighbour: Iterable[str] = (), family: Iterable[str] = ()
) -> list[str]:
    """The configuration of a router that announces :data:`OUTSIDE`, with a session to each node.

    ``neighbour`` are further lines of each neighbour, ``family`` those of its address family.
    """
    addresses = [node.ip for node in cluster.all]
    lines = [
        f"router bgp {ROUTER_AS}",
        " bgp router-id 10.89.0.1",
        " no bgp ebgp-requires-policy",
        " no bgp network import-check",
        " bgp bestpath as-path multipath-relax",
    ]
    for address in addresses:
        lines += [f" neighbor {address} remote-as 64512", f" neighbor {address} timers connect 2"]
        lines += [f" neighbor {address} password {password}"] if password else []
        lines += [f" neighbor {address} {line}" for line in neighbour]
    lines += [" address-family ipv4 unicast", f"  network {OUTSIDE}"]
    lines += [f"  neighbor {address} {line}" for address in addresses for line in family]
    return [*lines, " exit-address-family"]


@contextmanager
def frr_router(cluster: Cluster, lines: Iterable[str]) -> Iterator[FrrRouter]:
    """FRR with a configuration; the test is skipped where FRR is not installed."""
    if not (FRR / "bgpd").exists():
        pytest.skip("frr is not installed")
    router = FrrRouter(cluster)
    try:
        router.start(lines)
        yield router
    finally:
        router.end()
