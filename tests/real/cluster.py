"""A cluster of Kubernetes' own programs in network namespaces of this machine.

The fabric namespace has a bridge, etcd, kube-apiserver, kube-controller-manager and kube-scheduler. Each node is a
network namespace and a mount namespace with its own containerd and kubelet. Everything ends with the ``with`` block.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.kernel.containerd import make_image
from tests.real import commands
from tests.real.layout import RUNTIME_SOCKET, SHARED_FOLDERS, RealLayout

from podwire.errors import PodwireError
from podwire.kernel import netns
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.resources import NODES
from podwire.runtime.clock import SystemClock

_PLUGINS = Path("/usr/lib/cni")


class NotReady(Exception):
    """Something of the cluster did not become ready; the message names it and its log."""


class RealCluster:
    """The processes and namespaces of one cluster."""

    def __init__(self, layout: RealLayout, programs: Mapping[str, Path], images: Sequence[Path]) -> None:
        self.layout = layout
        self._programs = programs
        self._images = images
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._new_folders: list[Path] = []
        """Folders that the machine did not have: mounts need them."""

    def __enter__(self) -> "RealCluster":
        try:
            self.build_fabric()
            self.start_etcd()
            self._start_control_plane()
            for node in self.layout.names:
                enter = self.start_runtime(node)
                kubelet = commands.kubelet(self._programs["kubelet"], self.layout, node)
                self.start(f"{node}-kubelet", kubelet, enter=enter)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes, the last one first, and removes the namespaces."""
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in self.layout.names:
            netns.delete(self.layout.node_namespace(node))
        netns.delete(self.layout.fabric)
        for folder in self._new_folders:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def inside(self, place: Path, *words: str) -> None:
        """Runs a command in a network namespace.

        Raises: CalledProcessError.
        """
        subprocess.run(["nsenter", f"--net={place}", *words], check=True)

    def build_fabric(self) -> None:
        """Makes the namespaces, joined by a bridge."""
        layout = self.layout
        netns.create(layout.fabric)
        for command in ("link set lo up", "link add br0 type bridge", "link set br0 up"):
            self.inside(layout.fabric, "ip", *command.split())
        self.inside(layout.fabric, "ip", "address", "add", "10.90.0.1/24", "dev", "br0")
        for node in layout.names:
            place = layout.node_namespace(node)
            netns.create(place)
            pair = f"link add {node} type veth peer name eth0 netns {place}"
            for command in (pair, f"link set {node} master br0 up"):
                self.inside(layout.fabric, "ip", *command.split())
            for command in (
                "link set lo up",
                "link set eth0 up",
                f"address add {layout.node_address(node)}/24 dev eth0",
                "route add default via 10.90.0.1",
            ):
                self.inside(place, "ip", *command.split())

    def start(self, name: str, words: Sequence[str], *, enter: Sequence[str]) -> None:
        """Starts a process; ``enter`` are the options of nsenter."""
        with (self.layout.root / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(["nsenter", *enter, "--", *words], stdout=log, stderr=log)

    def start_etcd(self) -> None:
        """Starts etcd."""
        words = commands.etcd(self._programs["etcd"], self.layout)
        self.start("etcd", words, enter=[f"--net={self.layout.fabric}"])

    def _start_control_plane(self) -> None:
        layout, fabric = self.layout, [f"--net={self.layout.fabric}"]
        self.start("apiserver", commands.apiserver(self._programs["kube-apiserver"], layout), enter=fabric)
        self.until("apiserver", self._api_ready)
        manager = commands.controller_manager(self._programs["kube-controller-manager"], layout)
        self.start("controller-manager", manager, enter=fabric)
        self.start("scheduler", commands.scheduler(self._programs["kube-scheduler"], layout), enter=fabric)

    def start_runtime(self, node: str) -> list[str]:
        """Gives a node its own folders and starts its containerd; the options of nsenter to enter the node."""
        layout = self.layout
        folder = layout.node_folder(node)
        folder.mkdir(parents=True)
        (folder / "kubelet.json").write_text(json.dumps(commands.kubelet_configuration(layout, node)))
        (folder / "containerd.toml").write_text(commands.containerd_configuration())
        missing = [path for path in map(Path, SHARED_FOLDERS) if not path.exists()]
        for path in missing:
            path.mkdir(parents=True)
        self._new_folders += missing
        script = commands.mounts(layout, node)
        place = f"--net={layout.node_namespace(node)}"
        holder = subprocess.Popen(
            ["nsenter", place, "unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdout=subprocess.PIPE,
        )
        self._processes[f"{node}-holder"] = holder
        assert holder.stdout is not None
        with holder.stdout as output:
            mounted = output.readline() == b"ready\n"
        if not mounted:
            raise NotReady(f"{node}: the folders of the node cannot be mounted")
        plugins = folder / "folders/opt/cni/bin"
        plugins.mkdir(parents=True)
        shutil.copy(_PLUGINS / "loopback", plugins / "loopback")
        enter = ["--target", str(holder.pid), "--net", "--mount"]
        self.start(f"{node}-containerd", ["containerd", "--config", str(folder / "containerd.toml")], enter=enter)
        self.until(f"{node}-containerd", lambda: self._ctr(enter, "version"))
        for archive in (make_image(folder), *self._images):
            if not self._ctr(enter, "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", archive):
                raise NotReady(f"{node}: {archive} cannot be imported")
        return enter

    def _ctr(self, enter: Sequence[str], *words: str | Path) -> bool:
        command = ["nsenter", *enter, "--", "ctr", "--address", RUNTIME_SOCKET, *map(str, words)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def until(self, name: str, reached: Callable[[], bool], seconds: float = 180) -> None:
        """Returns when ``reached`` does.

        Raises: NotReady with the end of the log when the process ends or the time is over.
        """
        until = time.monotonic() + seconds
        while not reached():
            process = self._processes.get(name)
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > until:
                log = self.layout.root / f"{name}.log"
                tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                raise NotReady(f"{name} {'has ended' if ended else 'is not ready'}:\n{tail}")
            time.sleep(0.2)

    def _api_ready(self) -> bool:
        return self.ask("GET", "/readyz")[0] == 200

    def nodes_ready(self) -> bool:
        """Whether every node is Ready."""
        status, body = self.ask("GET", NODES.path())
        nodes: list[Any] = json.loads(body)["items"] if status == 200 else []
        ready = [
            node["metadata"]["name"]
            for node in nodes
            if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
        ]
        return sorted(ready) == sorted(self.layout.names)

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """Status and body of an answer of the API server; status 0 while it is not reached."""

        async def call() -> tuple[int, bytes]:
            client = Client(load_kubeconfig(self.layout.kubeconfig("admin")), SystemClock())
            try:
                answer = await client.raw(method, path)
                return answer.status, answer.body
            finally:
                await client.close()

        with netns.inside(self.layout.fabric):
            try:
                return asyncio.run(call())
            except (PodwireError, OSError):
                return 0, b""

    def install(self, chart: Path, values: Path) -> None:
        """Installs podwire by its chart.

        Raises: CalledProcessError.
        """
        environment = {**os.environ, "KUBECONFIG": self.layout.kubeconfig("admin")}
        words = ["helm", "install", "podwire", str(chart), "-n", "kube-system", "-f", str(values)]
        subprocess.run(["nsenter", f"--net={self.layout.fabric}", "--", *words], check=True, env=environment)
