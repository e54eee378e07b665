"""A containerd on a node, with images made on the spot, asked through CRI.

The client speaks just enough HTTP/2 and protobuf for calls with one request and one answer: gRPC is not among podwire's
dependencies. Sources: RFC 9113, the gRPC protocol over HTTP/2, k8s.io/cri-api runtime/v1 api.proto.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podwire.cni import program
from podwire.kernel import netns

PAUSE_IMAGE = "podwire.test/pause:1"
_PAUSE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0, 1, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def encode(fields: dict[int, Any]) -> bytes:
    """A protobuf message: numbers, texts, messages as dictionaries, lists of those."""
    parts = []
    for number, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int):
                parts.append(_varint(number << 3) + _varint(item))
            else:
                body = encode(item) if isinstance(item, dict) else str(item).encode()
                parts.append(_varint(number << 3 | 2) + _varint(len(body)) + body)
    return b"".join(parts)


def decode(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: numbers and bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        size, at = _read_varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            yield tag >> 3, size


def field(data: bytes, *path: int) -> Any:
    """The first field on a path of numbers; empty when it is absent."""
    for number in path:
        data = next((value for key, value in decode(data) if key == number), b"")
    return data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


class Refused(Exception):
    """A call was answered without a message: it failed. The reason is in containerd's log."""


def call(path: Path, method: str, fields: dict[int, Any], patience_s: float = 60) -> bytes:
    """Calls a method of CRI's RuntimeService; the answer's message."""
    body = encode(fields)
    head = b""
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/runtime.v1.RuntimeService/{method}"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ):
        head += b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience_s)
        connection.connect(str(path))
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, b"")
            + _frame(_HEADERS, _END_HEADERS, 1, head)
            + _frame(_DATA, _END_STREAM, 1, struct.pack("!BI", 0, len(body)) + body)
        )
        return _answer(connection, method)


def _answer(connection: socket.socket, method: str) -> bytes:
    answer = b""
    with connection.makefile("rb") as stream:
        while True:
            head = stream.read(9)
            if len(head) < 9:
                raise Refused(method)
            size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            payload = stream.read(size)
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
            elif kind == _DATA:
                answer += payload
            elif kind == _GOAWAY or (kind == _HEADERS and flags & _END_STREAM):
                if len(answer) < 5:
                    raise Refused(method)
                return answer[5:]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + payload


def make_image(directory: Path) -> Path:
    """An archive with an image of one static program that waits."""
    source, binary = directory / "pause.c", directory / "pause"
    source.write_text(_PAUSE)
    subprocess.run(["gcc", "-static", "-Os", "-o", str(binary), str(source)], check=True)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(binary, "pause")
    blobs: dict[str, bytes] = {}

    def blob(media: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    layer_entry = blob("layer.v1.tar", layer.getvalue())
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_entry["digest"]]},
    }
    config_entry = blob("config.v1+json", json.dumps(config).encode())
    manifest = {"schemaVersion": 2, "config": config_entry, "layers": [layer_entry]}
    entry = blob("manifest.v1+json", json.dumps(manifest).encode())
    entry["annotations"] = {"io.containerd.image.name": PAUSE_IMAGE}
    files = {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    archive = directory / "pause.tar"
    with tarfile.open(archive, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive


class Containerd:
    """A containerd in a node's network namespace, which finds plugins and configurations in folders of its own."""

    def __init__(self, root: Path, place: Path, cni_socket: Path) -> None:
        self.root = root
        self.place = place
        self.socket = root / "cri"  # Short: containerd appends to it, and a path of a socket has 104 bytes at most.
        self.log = root / "containerd.log"
        self.conf_dir, self.bin_dir = root / "net.d", root / "bin"
        self._environment = {**os.environ, "PODWIRE_CNI_SOCKET": str(cni_socket)}
        for folder in (self.conf_dir, self.bin_dir):
            folder.mkdir(parents=True)
        program.install(self.bin_dir, "loopback")
        program.install(self.bin_dir)
        (root / "config.toml").write_text(self._config())
        self.start()
        archive = make_image(root)
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", "images", "import"]
        subprocess.run([*command, "--snapshotter", "native", str(archive)], check=True, capture_output=True)

    def _config(self) -> str:
        return f"""
version = 2
root = "{self.root}/lib"
state = "{self.root}/run"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_tcp_service = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{self.bin_dir}"
    conf_dir = "{self.conf_dir}"
"""

    def start(self) -> None:
        """Starts containerd, and waits until it answers."""
        with self.log.open("ab") as log:
            command = ["nsenter", f"--net={self.place}", "containerd", "--config", str(self.root / "config.toml")]
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        until = time.monotonic() + 60
        while True:
            try:
                call(self.socket, "Version", {})
            except (OSError, Refused):
                assert time.monotonic() < until and self.process.poll() is None, self.log.read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Ends containerd; sandboxes go on."""
        self.process.terminate()
        self.process.wait()
        for folder in Path("/sys/fs/cgroup").glob("*/k8s.io"):
            with contextlib.suppress(OSError):  # It still has the groups of sandboxes.
                folder.rmdir()

    def power_off(self) -> None:
        """Ends containerd and all pods at once, and takes away what a machine that is switched off forgets.

        The folder ``lib`` stays, as on a disk.
        """
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", "tasks", "list"]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[1:]
        tasks = {line.split()[0]: int(line.split()[1]) for line in lines}
        shims = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in tasks.values()}
        self.process.kill()
        self.process.wait()
        for pid in (*shims, *tasks.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run = self.root / "run"
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in reversed([path for path in mounts if Path(path).is_relative_to(run)]):
            netns.unmount(mount)
        shutil.rmtree(run)
        for name in tasks:
            for folder in (
                *Path("/sys/fs/cgroup").glob(f"k8s.io/{name}"),
                *Path("/sys/fs/cgroup").glob(f"*/k8s.io/{name}"),
            ):
                with contextlib.suppress(OSError):  # The last process of the group may not be gone yet.
                    folder.rmdir()

    def network_ready(self) -> bool:
        """The condition NetworkReady."""
        status = field(call(self.socket, "Status", {}), 1)
        conditions = [dict(decode(item)) for number, item in decode(status) if number == 1]
        return any(item.get(1) == b"NetworkReady" and item.get(2) for item in conditions)

    def run_pod(
        self, name: str, *ports: dict[int, Any], uid: str = "u1", annotations: dict[str, str] | None = None
    ) -> str:
        """Starts a sandbox; its identifier."""
        config = self._pod(name, uid) | ({5: list(ports)} if ports else {})
        config |= {7: [{1: key, 2: value} for key, value in (annotations or {}).items()]} if annotations else {}
        return str(field(call(self.socket, "RunPodSandbox", {1: config}), 1).decode())

    def _pod(self, name: str, uid: str) -> dict[int, Any]:
        return {1: {1: name, 2: uid, 3: "shop"}, 2: name, 3: str(self.root / "logs")}

    def address(self, sandbox: str) -> str:
        """The address of a sandbox, as CRI reports it."""
        return str(field(call(self.socket, "PodSandboxStatus", {1: sandbox}), 1, 5, 1).decode())

    def remove_pod(self, sandbox: str) -> None:
        """Stops and removes a sandbox."""
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            try:
                call(self.socket, method, {1: sandbox})
            except Refused:  # An empty answer has no message; whether it failed is seen in the next list.
                pass

    def pods(self) -> list[str]:
        """The identifiers of all sandboxes."""
        answer = call(self.socket, "ListPodSandbox", {})
        return [field(item, 1).decode() for number, item in decode(answer) if number == 1]
