"""Clients of a gateway that ask all the time, so that a change which loses a request is noticed."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.driver import Cluster, eventually

_CLIENTS = 6
_PACE_S = 0.02
"""Seconds between two requests of a client: all clients together send one about every 4 ms. Without a pause they would
take the processors from the gateways that are replaced meanwhile."""


def status_of(node: str, port: int, host: str) -> int:
    """The status of the answer to a request on a connection of its own; 0 when nobody listens."""
    connection = http.client.HTTPConnection(node, port, timeout=10)
    try:
        connection.request("GET", "/", headers={"Host": host})
        return connection.getresponse().status
    except ConnectionRefusedError:
        return 0
    finally:
        connection.close()


class _Clients(threading.Thread):
    """Requests one after another, half of them on connections that stay open; counts answers and failures."""

    def __init__(self, node: str, port: int, host: str, *, keep: bool) -> None:
        super().__init__()
        self._target = (node, port, host)
        self._keep = keep
        self.ending = threading.Event()
        self.outcomes: Counter[str] = Counter()

    def run(self) -> None:
        connection: http.client.HTTPConnection | None = None
        node, port, host = self._target
        while not self.ending.is_set():
            try:
                connection = connection or http.client.HTTPConnection(node, port, timeout=20)
                connection.request("GET", "/", headers={"Host": host})
                answer = connection.getresponse()
                answer.read()
                self.outcomes[str(answer.status)] += 1
                if not self._keep or answer.will_close:
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as failure:
                self.outcomes[repr(failure)] += 1
                if connection is not None:
                    connection.close()
                connection = None
            time.sleep(_PACE_S)
        if connection is not None:
            connection.close()


@contextmanager
def clients_of(node: str, port: int, host: str) -> Iterator[None]:
    """Clients ask all the time; at the end not one request has failed."""
    clients = [_Clients(node, port, host, keep=number % 2 == 0) for number in range(_CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.ending.set()
        for client in clients:
            client.join()
    outcomes = sum((client.outcomes for client in clients), Counter[str]())
    assert set(outcomes) == {"200"}, outcomes
    assert outcomes["200"] > 200


def gateways_rolled_out(cluster: Cluster) -> None:
    """Waits until every node has one gateway, of the latest template and available, and no other one is left."""

    def rolled_out() -> bool:
        daemon_set = cluster.get("daemonset", "podwire-gateway", "-n", "kube-system")
        status = daemon_set["status"]
        names = ("currentNumberScheduled", "updatedNumberScheduled", "numberAvailable")
        counts = {status.get(name, 0) for name in names}
        pods = cluster.get("pods", "-n", "kube-system", "-l", "app=podwire-gateway")["items"]
        desired = status.get("desiredNumberScheduled", 0)
        newest = status.get("observedGeneration", 0) >= daemon_set["metadata"]["generation"]
        return bool(newest and desired and counts == {desired} and len(pods) == desired)

    eventually(rolled_out, within=120)


def gateway_processes(cluster: Cluster) -> list[int]:
    """The processes that follow the API: the workers, not their keepers, and not the engines."""
    titles = {f"gateway {pod['metadata']['name']}/gateway" for pod in _pods(cluster)}
    return [pid for pid in _with_titles(titles) if _title(_parent(pid)) in titles]


def _with_titles(titles: set[str]) -> list[int]:
    return [pid for folder in Path("/proc").glob("[0-9]*") if _title(pid := int(folder.name)) in titles]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _pods(cluster: Cluster) -> list[Any]:
    items: list[Any] = cluster.get("pods", "-n", "kube-system", "-l", "app=podwire-gateway")["items"]
    return items
