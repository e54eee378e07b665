"""Kills the CNI part between any two steps of a request, and reports what the next start and DEL leave behind.

Run as a program in a node's namespace: ``python -m tests.kernel.cni_steps FOLDER POD_NAMESPACES LINK``; the second is a
folder with one namespace for each container, ``LINK`` is how pods are connected. A step is a message to the kernel, a
statement of the ledger or a written parameter. For each case and each step a child process handles the requests,
several of them together, and kills itself with signal 9 before the step; a second child starts on what is left,
compares the ledger with the kernel, deletes the pods and compares again. Prints one JSON object: the number of steps by
case, and the problems.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from podwire.cni import bridgeguard, ports, protocol, sourceguard, wiring
from podwire.cni.service import CniService, CniSettings
from podwire.cni.wiring import WiringFacts
from podwire.kernel import network
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.runtime.clock import SystemClock
from podwire.state.nft import Table

STEPS = frozenset({"send", "sendto", "sendmsg", "execute", "executemany", "write"})
"""The names of the C functions that change something outside of the process."""
CIDRS = ("10.244.1.0/24", "fd00:1::/64")
PORTS = {
    "portMappings": [
        {"hostPort": 8080, "containerPort": 80},
        {"hostPort": 53, "containerPort": 53, "protocol": "udp"},
    ]
}
TABLES = (
    ("inet", ports.TABLE),
    (bridgeguard.FAMILY, bridgeguard.TABLE),
    (sourceguard.FAMILY, sourceguard.TABLE),
)
CONTAINERS = ("c1", "c2", "c3")
LIMIT = 300


def request(command: str, ifname: str = "eth0", container: str = "c1", **more: Any) -> protocol.CniRequest:
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": str(Path(sys.argv[2], container)),
        "CNI_IFNAME": ifname,
        "CNI_ARGS": "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web",
    }
    conf = {"cniVersion": "1.1.0", "name": "podwire", "type": "podwire-cni", "runtimeConfig": PORTS, **more}
    return protocol.parse(environment, json.dumps(conf).encode())


LENT: dict[str, Any] = {"type": "ptp", "ipam": {"type": "podwire-cni"}}
GC: dict[str, Any] = {"cni.dev/valid-attachments": []}


Case = tuple[list[protocol.CniRequest], list[protocol.CniRequest]]
"""The requests before, and the requests that are killed: several are handled together."""


def cases() -> dict[str, Case]:
    add = request("ADD")
    more = [request("ADD", container=container, runtimeConfig={}) for container in CONTAINERS[1:]]
    deletions = [request("DEL", container=container) for container in CONTAINERS]
    return {
        "ADD": ([], [add]),
        "DEL": ([add], [request("DEL")]),
        "GC": ([add], [request("GC", **GC)]),
        "second ADD": ([add], [request("ADD", "net1", runtimeConfig={})]),
        "ADD for another plugin": ([], [request("ADD", runtimeConfig={}, **LENT)]),
        "ADD of several pods": ([], [add, *more]),
        "DEL of several pods": ([add, *more], deletions),
    }


def handle_all(service: CniService, requests: list[protocol.CniRequest]) -> None:
    if len(requests) == 1:
        service._handle(requests[0], requests[0].netns)
        return

    def alone(single: protocol.CniRequest, netns: str) -> bytes:
        return protocol.DONE + service._handle(single, netns)

    for _ in service._handle_together([(item, item.netns) for item in requests], alone):
        pass


def start(database: Path) -> CniService:
    settings = CniSettings(socket=database.with_name("s"), database=database, link=sys.argv[3])
    service = CniService(settings, SystemClock())
    service.recover()
    service.set_node(WiringFacts(cidrs=CIDRS))
    return service


def killer(at: int) -> Callable[[FrameType, str, Any], None]:
    """A profiler that kills this process before a step."""
    count = 0

    def profile(_frame: FrameType, event: str, function: Any) -> None:
        nonlocal count
        if event == "c_call" and getattr(function, "__name__", "") in STEPS:
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    return profile


def in_child(body: Callable[[], list[str]]) -> tuple[bool, list[str]]:
    """Runs the body in a child; whether it was killed, and what it returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            problems = body()
        except BaseException as failure:  # noqa: BLE001 - the child reports everything and ends.
            problems = [f"{type(failure).__name__}: {failure}"]
        os.write(writer, json.dumps(problems).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    return killed, json.loads(text) if text else []


def held_in_kernel() -> dict[str, object]:
    """Devices, routes and neighbours of pods, and the elements of the hostPort table and of the source guards."""
    with Netlink() as netlink, Nft() as nft:
        state = network.read(netlink)
        elements, guard, sources = (_elements(nft.read(*name)) for name in TABLES)
    links = [link for link in state.links if link.kind == "veth" and link.group != network.DELETE_GROUP]
    return {
        "links": sorted(str(wiring.owner_of(link)) for link in links),
        "routes": sorted(x.dst for x in state.routes if x.proto == wiring.ROUTE_PROTOCOL),
        "neighbours": sorted(x.ip for x in state.neighbours if x.permanent),
        "forwarding entries": sorted(x.mac for x in state.fdb if x.bridge and x.link in {link.name for link in links}),
        "elements": elements,
        "guard": guard,
        "sources": sources,
    }


def _elements(table: Table | None) -> int:
    return sum(len(item.elements) for item in table.sets) if table is not None else 0


def held_in_ledger(service: CniService) -> dict[str, object]:
    """The same, as the ledger would have it."""
    attachments = list(service.leases.held.values())
    addresses = [ip for item in attachments for ip in item.ips]
    with_ports = {key.container for key, item in service.leases.held.items() if item.ports}
    return {
        "links": sorted(str((key.container, key.ifname)) for key in service.leases.held),
        "routes": sorted(f"{ip}/{ip.max_prefixlen}" for ip in addresses),
        "neighbours": sorted(map(str, addresses)),
        "forwarding entries": sorted(item.mac for item in service.leases.held.values() if item.bridge),
        "elements": 1 + 2 * len(CIDRS) + len(CIDRS) if with_ports else 0,
        "guard": sum(1 + len(item.addresses) for item in attachments if item.bridge),
        "sources": sum(2 for item in attachments if not item.bridge),
    }


def compare(service: CniService, name: str) -> list[str]:
    kernel, ledger = held_in_kernel(), held_in_ledger(service)
    different = [key for key in kernel if kernel[key] != ledger[key]]
    return [f"{name}: {key}: kernel {kernel[key]}, ledger {ledger[key]}" for key in different]


def after_kill(database: Path, killed: protocol.CniRequest) -> list[str]:
    """Starts on what a killed process left, and deletes the pods as a runtime does."""
    service = start(database)
    problems = compare(service, "after the start")
    ends = {"type": killed.conf.type, **({"ipam": {"type": "podwire-cni"}} if killed.conf.lends else {})}
    for container in CONTAINERS:
        for ifname in ("net1", "eth0"):
            service._handle(request("DEL", ifname, container, runtimeConfig={}, **ends), "")
    service._plumber.delete_detached(())
    problems += compare(service, "after DEL")
    if service.leases.held or service.leases.lent or any(pool.held for pool in service.leases.pools):
        problems.append("after DEL: addresses are held")
    if any(held_in_kernel().values()):
        problems.append(f"after DEL: {held_in_kernel()}")
    return problems


def attempt(database: Path, case: Case, at: int) -> tuple[bool, list[str]]:
    """Handles the requests of a case, with a kill before a step; whether it was reached, and the problems."""
    before, killed_requests = case

    def handle() -> list[str]:
        service = start(database)
        for item in before:
            service._handle(item, item.netns)
        sys.setprofile(killer(at))
        handle_all(service, killed_requests)
        sys.setprofile(None)
        return []

    killed, problems = in_child(handle)
    return killed, problems + in_child(lambda: after_kill(database, killed_requests[0]))[1]


def main() -> None:
    steps: dict[str, int] = {}
    problems: list[str] = []
    for name, case in cases().items():
        for at in range(1, LIMIT):
            database = Path(sys.argv[1], name.replace(" ", "-"), str(at), "ipam.db")
            database.parent.mkdir(parents=True)
            killed, failures = attempt(database, case, at)
            problems += [f"{name}, step {at}: {text}" for text in failures]
            if not killed:
                steps[name] = at - 1
                break
    print(json.dumps({"steps": steps, "problems": problems}))


if __name__ == "__main__":
    main()
