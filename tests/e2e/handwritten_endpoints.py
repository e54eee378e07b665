"""Services whose endpoints a test writes, and their state in the agent and the kernel of the first node."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.e2e.clusters import address_of, drift, netns_of, server, topology
from tests.e2e.connection_load import PATIENCE_S, Load
from tests.e2e.driver import Cluster, eventually, shell_pod

from podwire.kernel import netns
from podwire.kernel.nft import Nft
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.resources import ENDPOINTSLICES, SERVICES
from podwire.runtime.clock import SystemClock

PODS = ("one", "two", "three")
_DEFAULT = "namespaces/default"
READY = "http://127.0.0.1:9440/readyz"
WEB = """
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {tier: web}, ports: [{port: 80}]}
"""


def manifest() -> str:
    """Three servers on two nodes behind the Service ``web``, and a client on the first node."""
    servers = "".join(server(name, f"node-{1 + index % 2}", "tier: web") for index, name in enumerate(PODS))
    client = shell_pod("client", "sleep 3600").replace("spec:", "spec:\n  nodeName: node-1", 1)
    return f"{servers}{WEB}---{client}"


def service(name: str) -> dict[str, Any]:
    """A Service without a selector: its endpoints are written by the test."""
    spec = {"ports": [{"name": "http", "port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def piece(name: str, addresses: Sequence[str]) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-a", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80}],
        "endpoints": [{"addresses": [address]} for address in addresses],
    }


def api(cluster: Cluster, work: Callable[[Client], Awaitable[Any]]) -> Any:
    """Runs a coroutine with an API client, in this process."""

    async def main() -> Any:
        client = Client(load_kubeconfig(cluster.kubeconfig), SystemClock())
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(main())


@contextmanager
def handwritten_service(cluster: Cluster, name: str, *pods: str) -> Iterator[str]:
    """A Service with these pods as its endpoints until the end of the block; yields its address."""
    addresses = [address_of(cluster, pod) for pod in pods]

    async def make(client: Client) -> str:
        result = await client.create(SERVICES, service(name), "default")
        await client.create(ENDPOINTSLICES, piece(name, addresses), "default")
        return str(result["spec"]["clusterIP"])

    try:
        yield api(cluster, make)
    finally:
        cluster.api.ask("DELETE", f"/api/v1/{_DEFAULT}/services/{name}")
        cluster.api.ask("DELETE", f"/apis/discovery.k8s.io/v1/{_DEFAULT}/endpointslices/{name}-a")


def set_endpoints(cluster: Cluster, name: str, *pods: str) -> None:
    addresses = [address_of(cluster, pod) for pod in pods]
    api(cluster, lambda client: client.update(ENDPOINTSLICES, piece(name, addresses), "default", name=f"{name}-a"))


@contextmanager
def churn(cluster: Cluster, name: str) -> Iterator[None]:
    """Changes the endpoints of a Service every few milliseconds, always to two of the pods."""
    addresses = [address_of(cluster, pod) for pod in PODS]
    ending = threading.Event()

    async def work(client: Client) -> None:
        turn = 0
        while not ending.is_set():
            turn += 1
            chosen = [addresses[turn % 3], addresses[(turn + 1) % 3]]
            await client.update(ENDPOINTSLICES, piece(name, chosen), "default", name=f"{name}-a")
            await asyncio.sleep(0.005)

    thread = threading.Thread(target=api, args=(cluster, work))
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def agent(cluster: Cluster, node: str = "node-1") -> int:
    record = json.loads((Path(topology(cluster).run) / f"processes/agent-{node}.json").read_text())
    return int(record["pid"])


def ready(cluster: Cluster) -> bool:
    """Whether the agent of the first node reports that it is ready."""
    try:
        with netns.inside(Path(topology(cluster).netns("node-1"))), urlopen(READY, timeout=5) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def another(cluster: Cluster, killed: int) -> None:
    """Waits until a new agent process runs and is ready."""
    eventually(lambda: agent(cluster) != killed and ready(cluster))


def in_force(cluster: Cluster) -> bool:
    """Whether the kernel of the first node holds the Services that its agent knows."""
    return ready(cluster) and not drift(cluster, "node-1", "proxy")


def switch(cluster: Cluster, mode: str) -> None:
    """Sets a mode and waits until both nodes use it."""
    patch = json.dumps({"data": {"proxy.mode": mode}})
    cluster.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "-p", patch)

    def modes() -> set[str]:
        return {node["metadata"]["annotations"].get("podwire.io/proxy", "") for node in cluster.get("nodes")["items"]}

    eventually(lambda: modes() == {mode})
    eventually(lambda: in_force(cluster))


def load(cluster: Cluster, address: str, patience_s: float = PATIENCE_S) -> Load:
    """Connections from the client's pod."""
    return Load(netns_of(cluster, "client"), address, patience_s=patience_s)


def answered(cluster: Cluster, address: str) -> bool:
    """Whether a new connection is answered."""
    with netns.inside(netns_of(cluster, "client")):
        sock = socket.socket()
    with sock:
        sock.settimeout(1)
        return sock.connect_ex((address, 80)) == 0


def generation(cluster: Cluster) -> int:
    """The nftables generation of the first node: it grows with each change, whoever makes it."""
    with Nft(Path(topology(cluster).netns("node-1"))) as nft:
        return nft.generation()
