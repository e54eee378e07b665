"""The kubelet with real namespaces and processes, the embedded API server and a small CNI plugin for the test.

Everything happens in one network namespace that plays the node and the host at once.
"""

import asyncio
import contextlib
import datetime
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.embedded.apiserver import certificates
from podwire.embedded.kubelet.orders import PodRecord
from podwire.embedded.kubelet.sandbox import load_record
from podwire.errors import AlreadyExists, ApiError, NotFound
from podwire.kernel import netns
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.resources import CONFIGMAPS, EVENTS, NODES, PODS, SERVICEACCOUNTS, Json
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

    def record(self, uid: str) -> PodRecord:
        found = load_record(self.base / "state/pods" / uid)
        assert found is not None
        return found

    def stop(self) -> None:
        for process in (self.kubelet, self.api):
            if process is not None:
                process.terminate()
                process.wait(timeout=10)


def _cgroup(name: str) -> str:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        words = line.split()
        if words[2] == "cgroup2":
            return f"{words[1]}/{name}"
    return ""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    base = Path(f"/tmp/pwt-kubelet-{os.getpid()}")
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    path = base / "node-netns"
    netns.create(path)
    with netns.inside(path):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        made = Node(base)
        made.start()
        try:
            _wait_for_port()
            run(made, _create_account)
            yield made
            run(made, _delete_everything)
        finally:
            made.stop()
    netns.delete(path)
    if made.cgroup:
        for inner in sorted(p for p in Path(made.cgroup).glob("*") if p.is_dir()):
            inner.rmdir()
        Path(made.cgroup).rmdir()
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
    found: Json = (await client.get(PODS, name, "default")).get("status") or {}
    return found


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


def test_pod_starts_answers_and_leaves_nothing_behind(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "web", WEB)
        pod = await ready(client, "web")
        address, uid = pod["status"]["podIP"], pod["metadata"]["uid"]
        said = ask(address, 80)
        assert (said["pod"], said["container"], said["node"]) == ("web", "web", "node-1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.settimeout(3)
            probe.sendto(b"podwire-probe\n", (address, 53))
            assert json.loads(probe.recv(2000))["protocol"] == "UDP"
        record = node.record(uid)
        assert netns.exists(record.netns)
        await client.delete(PODS, "web", "default")

        async def gone() -> bool:
            return not (node.base / "state/pods" / uid).exists()

        await eventually(gone)
        with pytest.raises(NotFound):
            await client.get(PODS, "web", "default")
        assert not Path(record.netns).exists()
        assert not record.cgroup or not Path(record.cgroup).exists()
        arguments = f"K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={record.sandbox}"
        assert arguments in (node.base / "ipam/deleted").read_text()

    run(node, body)


SHOW = """
echo "A=$A IP=$IP"; cat /etc/resolv.conf; hostname; cat /conf/key; cat /etc/hosts | tail -1
ls /var/run/secrets/kubernetes.io/serviceaccount; echo x > /data/x && ls /data; touch /new-file; ls -d /new-file
echo problem > /dev/termination-log; exit 3
"""


def test_a_container_sees_its_environment_files_and_volumes(node: Node) -> None:
    async def body(client: Client) -> None:
        await client.create(CONFIGMAPS, {"metadata": {"name": "cm"}, "data": {"key": "value-1\n"}}, "default")
        show = {
            "name": "show", "image": "busybox", "command": ["sh", "-c", SHOW],
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "key"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "volumeMounts": [{"name": "v", "mountPath": "/conf"}, {"name": "e", "mountPath": "/data"}],
        }  # fmt: skip
        volumes = [{"name": "v", "configMap": {"name": "cm"}}, {"name": "e", "emptyDir": {}}]
        await create(client, "show", show, volumes=volumes, restartPolicy="Never")

        async def failed() -> bool:
            return (await status(client, "show")).get("phase") == "Failed"

        await eventually(failed)
        shown = await status(client, "show")
        text = await logs(client, "show", "show")
        assert f"IP={shown['podIP']}" in text
        assert "A=value-1" in text
        assert "search default.svc.cluster.local svc.cluster.local cluster.local" in text
        assert "nameserver 10.96.0.10" in text
        assert "\nshow\n" in text
        assert "ca.crt\nnamespace\ntoken\nx\n/new-file\n" in text
        assert not Path("/new-file").exists()
        ended = shown["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "problem\n")

    run(node, body)


def test_init_containers_run_in_order_and_sidecars_stay(node: Node) -> None:
    async def body(client: Client) -> None:
        def write(name: str, **more: Any) -> Json:
            command = ["sh", "-c", f"echo {name} >> /d/order" + ("; sleep 1000" if more else "")]
            mounts = [{"name": "d", "mountPath": "/d"}]
            return {"name": name, "image": "busybox", "command": command, "volumeMounts": mounts, **more}

        last = write("main")
        last["command"][2] += "; cat /d/order; sleep 1000"
        inits = [write("one"), write("side", restartPolicy="Always"), write("two")]
        await create(client, "order", last, initContainers=inits, volumes=[{"name": "d", "emptyDir": {}}])
        pod = await ready(client, "order")
        states = {s["name"]: next(iter(s["state"])) for s in pod["status"]["initContainerStatuses"]}
        assert states == {"one": "terminated", "side": "running", "two": "terminated"}

        async def written() -> bool:
            return (await logs(client, "order", "main")).split() == ["one", "side", "two", "main"]

        await eventually(written)

    run(node, body)


def test_a_failing_liveness_probe_restarts_the_container(node: Node) -> None:
    async def body(client: Client) -> None:
        probe = {"exec": {"command": ["sh", "-c", "test ! -e /sick"]}, "periodSeconds": 1, "failureThreshold": 1}
        command = ["sh", "-c", "sleep 0.5; touch /sick; sleep 1000"]
        await create(client, "sick", {"name": "c", "image": "busybox", "command": command, "livenessProbe": probe},
                     terminationGracePeriodSeconds=0)  # fmt: skip

        async def restarted() -> bool:
            shown = (await status(client, "sick")).get("containerStatuses") or [{}]
            return bool(shown[0].get("restartCount", 0) >= 1)

        await eventually(restarted)

        async def told() -> bool:
            items = (await client.list(EVENTS, "default")).items
            reasons = {e["reason"] for e in items if e["involvedObject"]["name"] == "sick"}
            return {"Unhealthy", "Killing"} <= reasons

        await eventually(told)
        await client.delete(PODS, "sick", "default", grace_period_s=0)

    run(node, body)


def test_kill_of_kubelet_container_and_shim(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "tough", WEB)
        before = await ready(client, "tough")
        uid, address = before["metadata"]["uid"], before["status"]["podIP"]
        first = before["status"]["containerStatuses"][0]

        node.kill_kubelet()
        assert ask(address, 80)["pod"] == "tough"
        node.start_kubelet()
        await asyncio.sleep(2.5)
        after = await status(client, "tough")
        assert is_ready(after)
        assert after["containerStatuses"][0]["containerID"] == first["containerID"]

        record = json.loads((node.base / f"state/pods/{uid}/containers/web.0.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)

        async def restarted() -> bool:
            shown = await status(client, "tough")
            return is_ready(shown) and shown["containerStatuses"][0]["restartCount"] == 1

        await eventually(restarted)
        shown = await status(client, "tough")
        assert shown["podIP"] == address
        assert shown["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
        assert ask(address, 80)["pod"] == "tough"

        old = node.record(uid)
        os.kill(old.shim_pid, signal.SIGKILL)

        async def renewed() -> bool:
            shown = await status(client, "tough")
            return is_ready(shown) and shown["podIP"] != address

        await eventually(renewed)
        assert ask((await status(client, "tough"))["podIP"], 80)["pod"] == "tough"
        assert not Path(old.netns).exists()

    run(node, body)


def test_pods_deleted_while_the_kubelet_is_stopped_are_removed(node: Node) -> None:
    async def body(client: Client) -> None:
        await create(client, "orphan", WEB)
        pod = await ready(client, "orphan")
        record = node.record(pod["metadata"]["uid"])
        node.kill_kubelet()
        await client.delete(PODS, "orphan", "default", grace_period_s=0)
        node.start_kubelet()

        async def gone() -> bool:
            return not Path(record.netns).exists() and not (node.base / "state/pods" / record.uid).exists()

        await eventually(gone)

    run(node, body)


def test_pre_stop_runs_before_sigterm_within_the_grace_period(node: Node) -> None:
    async def body(client: Client) -> None:
        trap = "trap 'echo term >> /out/log' TERM; while true; do sleep 0.05; done"
        container = {
            "name": "c", "image": "busybox", "command": ["sh", "-c", trap],
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo stop >> /out/log"]}}},
            "volumeMounts": [{"name": "o", "mountPath": "/out"}],
        }  # fmt: skip
        out = node.base / "out"
        volumes = [{"name": "o", "hostPath": {"path": str(out), "type": "DirectoryOrCreate"}}]
        await create(client, "stubborn", container, volumes=volumes)
        await ready(client, "stubborn")
        began = time.monotonic()
        await client.delete(PODS, "stubborn", "default", grace_period_s=1)

        async def gone() -> bool:
            try:
                await client.get(PODS, "stubborn", "default")
            except NotFound:
                return True
            return False

        await eventually(gone)
        assert 0.8 < time.monotonic() - began < 6
        assert (out / "log").read_text().split() == ["stop", "term"]

    run(node, body)


def test_missing_config_map_is_reported_until_it_exists(node: Node) -> None:
    async def body(client: Client) -> None:
        env = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "k"}}}]
        await create(client, "waits", WEB | {"env": env})

        async def told() -> bool:
            shown = (await status(client, "waits")).get("containerStatuses") or [{"state": {}}]
            return bool(shown[0]["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError")

        await eventually(told)
        await client.create(CONFIGMAPS, {"metadata": {"name": "later"}, "data": {"k": "v"}}, "default")
        await ready(client, "waits")

    run(node, body)


async def event_messages(client: Client, pod: str, reason: str) -> list[str]:
    found = (await client.list(EVENTS, "default")).items
    return [e["message"] for e in map(msgspec.to_builtins, found)
            if e.get("reason") == reason and (e.get("involvedObject") or {}).get("name") == pod]  # fmt: skip


def test_stand_in_passes_probes_and_hooks_of_every_kind(node: Node) -> None:
    command = {"exec": {"command": ["pg_isready", "-U", "app"]}}
    app = {
        "name": "app", "image": "acme.example/app", "ports": [{"containerPort": 443}],
        "startupProbe": {"grpc": {"port": 9000}},
        "livenessProbe": {"httpGet": {"port": 443, "scheme": "HTTPS", "path": "/live"}},
        "readinessProbe": command, "lifecycle": {"postStart": command, "preStop": command},
    }  # fmt: skip

    async def body(client: Client) -> None:
        await create(client, "probed", app)
        await ready(client, "probed")

        async def answered() -> bool:
            text = "The stand-in passes readinessProbe, postStart, preStop of container app without running the command"
            return text in await event_messages(client, "probed", "StandInAnswered") and "/live 200" in await logs(
                client, "probed", "app"
            )

        await eventually(answered)

    run(node, body)


SECURE = """
grep -E "^(CapEff|NoNewPrivs|Uid)" /proc/self/status; touch /new 2>&1; echo volume >/data/x && cat /data/x
cat /proc/sys/net/ipv4/tcp_syncookies /proc/sys/kernel/shm_rmid_forced; ip link add dummy9 type dummy 2>&1
echo last words; exit 4
"""


def secure(name: str, script: str, **context: Any) -> Json:
    return {
        "name": name, "image": "busybox", "command": ["sh", "-c", script], "securityContext": context,
        "terminationMessagePolicy": "FallbackToLogsOnError", "env": [{"name": "data-1", "value": "dashed"}],
    }  # fmt: skip


def test_security_context_and_sysctls_apply_to_containers(node: Node) -> None:
    hardened = secure("hard", SECURE, readOnlyRootFilesystem=True, allowPrivilegeEscalation=False, runAsUser=1001)
    hardened["volumeMounts"] = [{"name": "d", "mountPath": "/data"}]
    plain = secure("plain", 'echo "arg0 $0"; env; ' + SECURE)
    sysctls = [{"name": "net.ipv4.tcp_syncookies", "value": "0"}, {"name": "kernel.shm_rmid_forced", "value": "1"}]

    async def body(client: Client) -> None:
        await create(
            client, "secure", hardened, plain, volumes=[{"name": "d", "emptyDir": {}}], restartPolicy="Never",
            securityContext={"sysctls": sysctls},
        )  # fmt: skip

        async def failed() -> bool:
            return (await status(client, "secure")).get("phase") == "Failed"

        await eventually(failed)
        text = await logs(client, "secure", "hard")
        for line in (
            "Uid:\t1001",
            "CapEff:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Read-only file system",
            "volume\n0\n1\n",
        ):
            assert line in text, text
        text = await logs(client, "secure", "plain")
        for line in ("CapEff:\t00000000a80425fb", "NoNewPrivs:\t0", "data-1=dashed", "Operation not permitted"):
            assert line in text, text
        for shown in (await status(client, "secure"))["containerStatuses"]:
            assert shown["state"]["terminated"]["message"].endswith("last words\n")

    run(node, body)


def test_unsafe_sysctls_and_root_users_are_refused(node: Node) -> None:
    async def body(client: Client) -> None:
        unsafe = {"sysctls": [{"name": "kernel.msgmax", "value": "1000"}]}
        await create(client, "unsafe", secure("c", "true"), securityContext=unsafe)
        await create(client, "rooted", secure("c", "true", runAsNonRoot=True))

        async def refused() -> bool:
            rooted = ((await status(client, "rooted")).get("containerStatuses") or [{}])[0].get("state") or {}
            reason = (rooted.get("waiting") or {}).get("reason")
            return (await status(client, "unsafe")).get("reason") == "SysctlForbidden" and reason == (
                "CreateContainerConfigError"
            )

        await eventually(refused)
        assert (await status(client, "unsafe"))["phase"] == "Failed"

    run(node, body)


def test_pod_over_its_storage_limit_is_evicted(node: Node) -> None:
    writer = {
        "name": "c", "image": "busybox", "command": ["sh", "-c", "head -c 10485760 /dev/zero >/file; sleep 600"],
        "resources": {"limits": {"ephemeral-storage": "5Mi"}},
    }  # fmt: skip

    async def body(client: Client) -> None:
        await create(client, "greedy", writer)

        async def evicted() -> bool:
            shown = await status(client, "greedy")
            return (shown.get("phase"), shown.get("reason")) == ("Failed", "Evicted")

        await eventually(evicted)
        assert "ephemeral storage limit" in (await status(client, "greedy"))["message"]

    run(node, body)
