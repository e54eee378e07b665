"""A node with the kubelet, the embedded API server and a small CNI plugin, for tests of pods.

Everything happens in one network namespace that is the node and the host at once.
"""

import asyncio
import contextlib
import datetime
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from podwire.embedded.apiserver import certificates
from podwire.embedded.kubelet.orders import PodRecord
from podwire.embedded.kubelet.podrecord import load_record
from podwire.errors import AlreadyExists, ApiError, NotFound
from podwire.kernel import cgroup, netns
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.resources import NODES, PODS, SERVICEACCOUNTS, Json
from podwire.runtime.clock import SystemClock

PLUGIN = """#!/bin/bash
# One veth per pod: 10.231.0.N in the pod, 169.254.1.1 on the node's side.
cat >/dev/null
link=pw${CNI_CONTAINERID:0:8}
case "$CNI_COMMAND" in
ADD)
    exec 9>"$IPAM/lock"; flock 9
    n=$(( $(cat "$IPAM/last" 2>/dev/null || echo 1) + 1 )); echo $n >"$IPAM/last"
    ip link add $link type veth peer name eth0 netns "$CNI_NETNS"
    ip addr add 169.254.1.1/32 dev $link; ip link set $link up; ip route add 10.231.0.$n/32 dev $link
    nsenter --net="$CNI_NETNS" sh -c "ip addr add 10.231.0.$n/32 dev eth0; ip link set eth0 up
        ip route add 169.254.1.1 dev eth0; ip route add default via 169.254.1.1"
    echo "{\\"cniVersion\\": \\"1.0.0\\", \\"ips\\": [{\\"address\\": \\"10.231.0.$n/32\\"}]}";;
DEL) ip link del $link 2>/dev/null; echo "$CNI_ARGS" >>"$IPAM/deleted";;
esac
exit 0
"""
API = "import asyncio, sys; from pathlib import Path; from podwire.embedded.apiserver import server, settings; "
API += "asyncio.run(server.run(settings.load(Path(sys.argv[1]))))"
KUBELET = "import sys; from podwire.embedded.kubelet import daemon; daemon.main(sys.argv[1])"
PORT = 16443
SOURCE = str(Path(__file__).parents[2] / "src")


class Node:
    """One node: API server, kubelet, and their files."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.api: subprocess.Popen[bytes] | None = None
        self.kubelet: subprocess.Popen[bytes] | None = None
        self.cgroup = _cgroup(base.name)
        self._write_files()

    def _write_files(self) -> None:
        base, now = self.base, datetime.datetime.now(datetime.UTC)
        authority = certificates.make_authority("test", now)
        certificates.write_pair(base, "ca", authority)
        for name in ("api", "node", "admin"):
            pair = certificates.issue(authority, name, ("system:masters",), ("127.0.0.1",), "both", now)
            certificates.write_pair(base, name, pair)
        certificates.write_private(base / "tokens.key", certificates.make_signing_key())
        text = certificates.kubeconfig("t", f"https://127.0.0.1:{PORT}", authority.certificate, "admin", pair)
        certificates.write_private(base / "kubeconfig", text)
        for folder in ("bin", "net.d", "ipam", "netns"):
            (base / folder).mkdir()
        (base / "bin/small").write_text(PLUGIN)
        (base / "bin/small").chmod(0o755)
        network = {"cniVersion": "1.0.0", "name": "small", "plugins": [{"type": "small"}]}
        (base / "net.d/10-small.conflist").write_text(json.dumps(network))
        self._yaml("api", {
            "listen": [f"127.0.0.1:{PORT}"], "state": f"{base}/api.db", "certificate": f"{base}/api.crt",
            "key": f"{base}/api.key", "clientCa": f"{base}/ca.crt", "signingKey": f"{base}/tokens.key",
            "kubeletCertificate": f"{base}/admin.crt", "kubeletKey": f"{base}/admin.key",
        })  # fmt: skip
        self._yaml("kubelet", {
            "node": "node-1", "kubeconfig": f"{base}/kubeconfig", "runDir": f"{base}/run",
            "stateDir": f"{base}/state",
            "netnsDir": f"{base}/netns", "addresses": ["127.0.0.1"], "hidden": [str(base)], "cgroup": self.cgroup,
            "cni": {"binDir": f"{base}/bin", "confDir": f"{base}/net.d", "env": {"IPAM": f"{base}/ipam"}},
            "serving": {"certificate": f"{base}/node.crt", "key": f"{base}/node.key", "clientCA": f"{base}/ca.crt"},
            "clusterDNS": ["10.96.0.10"], "images": [{"name": "counter", "command": ["sh", "-c"]}],
        })  # fmt: skip

    def _yaml(self, name: str, document: dict[str, Any]) -> None:
        (self.base / f"{name}.yaml").write_bytes(msgspec.yaml.encode(document))

    def _spawn(self, name: str, code: str) -> "subprocess.Popen[bytes]":
        log = (self.base / f"{name}.log").open("ab")
        argv = [sys.executable, "-c", code, str(self.base / f"{name}.yaml")]
        with log:
            return subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": SOURCE})

    def start(self) -> None:
        """Starts both and returns when the API answers."""
        self.api = self._spawn("api", API)
        self.start_kubelet()

    def start_kubelet(self) -> None:
        self.kubelet = self._spawn("kubelet", KUBELET)

    def kill_kubelet(self) -> None:
        assert self.kubelet is not None
        self.kubelet.kill()
        self.kubelet.wait()

    def groups(self) -> cgroup.Hierarchies:
        """The cgroups of the node's pods."""
        return cgroup.open_node(Path(self.cgroup))

    def record(self, uid: str) -> PodRecord:
        result = load_record(self.base / "state/pods" / uid)
        assert result is not None
        return result

    def stop(self) -> None:
        for process in (self.kubelet, self.api):
            if process is not None:
                process.terminate()
                process.wait(timeout=10)


def _cgroup(name: str) -> str:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            return f"{fields[1]}/{name}"
    return ""


@contextlib.contextmanager
def running_node() -> Iterator[Node]:
    """A node that is removed afterwards, with everything that runs on it."""
    base = Path(f"/tmp/pwt-kubelet-{os.getpid()}")
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    path = base / "node-netns"
    netns.create(path)
    with netns.inside(path):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        node = Node(base)
        node.start()
        try:
            _wait_for_port()
            run(node, _create_account)
            yield node
            run(node, _delete_everything)
        finally:
            node.stop()
    netns.delete(path)
    if node.cgroup:
        assert cgroup.remove_tree(Path(node.cgroup))
        cgroup.remove_legacy(Path(base.name))
    shutil.rmtree(base)


def _wait_for_port() -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1):
            return
        time.sleep(0.05)


async def _create_account(client: Client) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(SERVICEACCOUNTS, {"metadata": {"name": "default"}}, "default")


async def _delete_everything(client: Client) -> None:
    for pod in (await client.list(PODS)).items:
        with contextlib.suppress(NotFound):
            await client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_period_s=1)
    await eventually(lambda: _no_pods(client))


async def _no_pods(client: Client) -> bool:
    return not (await client.list(PODS)).items


def run(node: Node, body: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        client = Client(load_kubeconfig(node.base / "kubeconfig"), SystemClock(), manager="test")
        try:
            await eventually(lambda: _node_is_ready(client))
            await body(client)
        finally:
            await client.close()

    asyncio.run(main())


async def _node_is_ready(client: Client) -> bool:
    try:
        return (await client.get(NODES, "node-1", decode_as=NODES.type)).ready
    except ApiError:
        return False


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.03)


async def create(client: Client, name: str, *containers: Json, **spec: Any) -> Json:
    body = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 2, "containers": list(containers), **spec},
    }  # fmt: skip
    await client.create(PODS, body, "default")
    return body


async def status(client: Client, name: str) -> Json:
    result: Json = (await client.get(PODS, name, "default")).get("status") or {}
    return result


def is_ready(shown: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in shown.get("conditions", ()))


async def ready(client: Client, name: str) -> Json:
    async def check() -> bool:
        return is_ready(await status(client, name))

    await eventually(check)
    return await client.get(PODS, name, "default")


async def logs(client: Client, name: str, container: str) -> str:
    path = f"/api/v1/namespaces/default/pods/{name}/log"
    return (await client.raw("GET", path, {"container": container})).body.decode()


def ask(address: str, port: int, path: str = "/") -> Json:
    connection = http.client.HTTPConnection(address, port, timeout=3)
    try:
        connection.request("GET", path)
        answer: Json = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


WEB: Json = {
    "name": "web", "image": "nginx:1.25",
    "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 53, "protocol": "UDP"}],
    "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
}  # fmt: skip
