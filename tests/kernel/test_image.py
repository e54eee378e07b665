"""podwire's image of Debian's packages and wheels: the same bytes twice, complete, run by containerd."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.kernel import chart_containers
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.chart_containers import ACCOUNT, CHART, ROOT, PodContainer
from tests.kernel.cni_node import ping
from tests.kernel.containerd import Containerd
from tests.kernel.reference_plugins import PLUGINS

from podwire.kube.resources import NAMESPACES, PODS

_RELEASE = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
pytestmark = [
    pytest.mark.skipif('VERSION_ID="12"' not in _RELEASE, reason="needs Debian 12, whose packages the image has"),
    pytest.mark.slow,
]
OWN = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")
EMULATOR = shutil.which("qemu-aarch64-static") or ""
REFUSED = ("Operation not permitted", "Permission denied", "Read-only", "EPERM", "EACCES", "EROFS", "Traceback")


BPF = 247
"""The machine of programs that the kernel runs (EM_BPF, linux/elf-em.h)."""


class Image(NamedTuple):
    """An archive and the digests of its manifests by processor."""

    archive: Path
    digests: dict[str, str]

    def blob(self, digest: str) -> bytes:
        with tarfile.open(self.archive) as files:
            stream = files.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert stream is not None
            return stream.read()

    def layers(self, architecture: str) -> Iterator[tarfile.TarFile]:
        """The layers of a processor's image."""
        manifest = json.loads(self.blob(self.digests[architecture]))
        for entry in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(self.blob(entry["digest"]))) as layer:
                yield layer


def build(folder: Path, *arguments: str, variant: str = "base") -> Image:
    """Makes a variant of the image."""
    archive = folder / "podwire.tar"
    command = [sys.executable, "scripts/make_image.py", "--variant", variant, "--level", "1", "--output", str(archive)]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Image(archive, dict(re.findall(r"^(amd64|arm64): (sha256:\S+)$", done.stdout, re.MULTILINE)))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image for both processors."""
    return build(tmp_path_factory.mktemp("image"))


def test_two_builds_have_the_same_digest(image: Image, tmp_path: Path) -> None:
    listed = image.archive.with_suffix(".packages.txt")
    again = build(tmp_path, "--arch", OWN, "--packages", str(listed))
    assert again.digests[OWN] == image.digests[OWN]


def needed(files: Mapping[str, bytes], folder: Path) -> dict[str, set[str]]:
    """The libraries that programs and libraries name, by their paths."""
    names = {str(folder / f"{number}"): path for number, path in enumerate(files)}
    for file, path in names.items():
        Path(file).write_bytes(files[path])
    done = subprocess.run(["readelf", "--dynamic", "--wide", *names], capture_output=True, text=True, check=True)
    _, *texts = re.split(r"^File: (.+)$", done.stdout, flags=re.MULTILINE)
    library = re.compile(r"\(NEEDED\)\s+Shared library: \[(.+)\]")
    return {names[file]: set(library.findall(text)) for file, text in zip(texts[::2], texts[1::2], strict=True)}


def check_libraries(image: Image, architecture: str, tmp_path: Path) -> set[str]:
    """Every library that a program or library names is in the image; the names of all files."""
    names: set[str] = set()
    programs: dict[str, bytes] = {}
    for layer in image.layers(architecture):
        for member in layer:
            assert member.uid == member.gid == member.mtime == 0 and not member.mode & 0o6000, member.name
            names.add(Path(member.name).name)
            stream = layer.extractfile(member) if member.isfile() else None
            data = stream.read() if stream else b""
            machine = int.from_bytes(data[18:20], "little")
            if data.startswith(b"\x7fELF") and "podwire/cni/bin" not in member.name and machine != BPF:
                assert machine == {"amd64": 62, "arm64": 183}[architecture], member.name
                programs[member.name] = data
    libraries = needed(programs, tmp_path)
    assert len(libraries) == len(programs) > 50
    assert {path: missing for path, used in libraries.items() if (missing := used - names)} == {}
    return names


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf of binutils")
@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_the_image_has_every_library_it_needs(image: Image, architecture: str, tmp_path: Path) -> None:
    names = check_libraries(image, architecture, tmp_path)
    assert {"podwire", "python3.11", "packages.txt", "iptables-restore"} < names


def run_below(root: Path, *command: str) -> str:
    """The output of a program of an image."""
    return subprocess.run(["chroot", str(root), *command], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf of binutils")
def test_the_image_of_the_gateway_has_envoy(tmp_path: Path) -> None:
    image = build(tmp_path, "--arch", OWN, variant="gateway")
    assert "iptables-restore" not in check_libraries(image, OWN, tmp_path)
    root = tmp_path / "root"
    for layer in image.layers(OWN):
        layer.extractall(root, filter="tar")
    python = ("/usr/bin/python3.11", "-I")
    find = "import podwire.gateway.daemon; from podwire.gateway.envoy.engine import find_envoy; print(find_envoy())"
    envoy = run_below(root, *python, "-c", find).strip()
    assert "/1.40.0/" in run_below(root, envoy, "--version")
    assert "drain" in run_below(root, *python, "/usr/local/bin/podwire", "gateway", "--help")


@pytest.mark.skipif(not EMULATOR, reason="needs qemu-user-static")
def test_the_image_for_arm64_runs(image: Image, tmp_path: Path) -> None:
    for layer in image.layers("arm64"):
        layer.extractall(tmp_path, filter="tar")
    shutil.copy(EMULATOR, tmp_path / "emulator")
    command = ["chroot", str(tmp_path), "/emulator", "/usr/bin/python3.11", "-I", "/usr/local/bin/podwire"]
    done = subprocess.run([*command, "version", "-o", "json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["machine"] == "aarch64"


def test_wrong_arguments_of_the_build_are_named(tmp_path: Path) -> None:
    listed = tmp_path / "packages.txt"
    listed.write_text("libc6 2.36 amd64 0\n")
    command = [sys.executable, "scripts/make_image.py", "--arch", OWN, "--packages", str(listed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "expected a line with a version for base-files" in done.stderr
    unknown = subprocess.run([*command[:2], "--arch", "mips"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert unknown.returncode == 2 and "invalid choice: 'mips'" in unknown.stderr


@pytest.fixture
def runtime(machine: Machine) -> Iterator[Containerd]:
    """A containerd on a node of a cluster, whose network the agent of the image will make."""
    machine.add_node(1, start=False)
    pods = machine.root / "c"
    pods.mkdir()
    subprocess.run(["mount", "--bind", str(pods), str(pods)], check=True)
    subprocess.run(["mount", "--make-shared", str(pods)], check=True)
    containerd = Containerd(pods, machine.root / "node-1", machine.root / "node-1-run/cni.sock")
    yield containerd
    for sandbox in containerd.pods():
        containerd.remove_pod(sandbox)
    containerd.stop()
    subprocess.run(["umount", "--recursive", "--lazy", str(pods)], check=True)


def kubectl(machine: Machine, *arguments: str) -> str:
    return inside(machine.fabric, "kubectl", "--kubeconfig", str(machine.kubeconfig), *arguments)


def made_pod(machine: Machine, name: str) -> str:
    """Makes the object of a pod on the node; its UID."""
    meta = {"name": name, "namespace": "shop"}
    spec = {"nodeName": "node-1", "containers": [{"name": "c", "image": "x"}]}
    machine.api("create", NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    pod = machine.api("create", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "shop")
    return str(pod["metadata"]["uid"])


def agent_of_the_chart(machine: Machine, runtime: Containerd, image: str) -> PodContainer:
    """The agent's container as the chart describes it, with the chart's account and rights."""
    root = machine.root
    paths = {"runDir": root / "node-1-run", "stateDir": root / "node-1-state", "netnsDir": runtime.root / "run",
             "cniConfDir": runtime.conf_dir, "cniBinDir": runtime.bin_dir}  # fmt: skip
    agent: dict[str, Any] = {key: str(path) for key, path in paths.items()}
    values = {"api": {"host": "10.89.0.1"}, "agent": agent, "serviceCIDRs": ["10.96.0.0/16"]}
    objects = chart_containers.render(values, root)
    file = root / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    kubectl(machine, "apply", "--server-side", "-f", str(CHART / "crds"), "-f", str(file))
    account, config = root / "account", root / "config"
    for folder in (account, config, *paths.values()):
        folder.mkdir(exist_ok=True)
    (account / "token").write_text(kubectl(machine, "create", "token", "podwire-agent", "-n", "kube-system"))
    shutil.copy(root / "ca.crt", account / "ca.crt")
    (account / "namespace").write_text("kube-system")
    data = chart_containers.named(objects, "ConfigMap", "podwire-agent")["data"]
    (config / "agent.yaml").write_text(data["agent.yaml"])
    pod = chart_containers.named(objects, "DaemonSet", "podwire-agent")["spec"]["template"]["spec"]
    volumes = {volume["name"]: Path(volume.get("hostPath", {}).get("path", config)) for volume in pod["volumes"]}
    spec = pod["containers"][0]
    spec["volumeMounts"].append({"name": "account", "mountPath": ACCOUNT, "readOnly": True})
    environment = {item["name"]: item.get("value", "node-1") for item in spec["env"]}
    described = chart_containers.container(spec, volumes | {"account": account}, image, environment)
    return PodContainer(runtime, described)


@pytest.mark.skipif(not shutil.which("containerd") or not shutil.which("runc"), reason="needs containerd and runc")
@pytest.mark.skipif(not shutil.which("loopback", path=PLUGINS), reason="needs containernetworking-plugins")
def test_the_image_gives_pods_of_containerd_a_network(image: Image, machine: Machine, runtime: Containerd) -> None:
    name = chart_containers.import_image(runtime, image.archive)
    plain = {"name": "version", "args": ["version", "-o", "json"], "volumeMounts": []}
    version = PodContainer(runtime, chart_containers.container(plain, {}, name, {}))
    eventually(version.ended)
    assert json.loads(version.output())["podwire"], version.output()
    agent = agent_of_the_chart(machine, runtime, name)
    try:
        eventually(runtime.network_ready, 60)
        web = runtime.run_pod("web", uid=made_pod(machine, "web"))
        address = runtime.address(web)
        assert address.startswith("10.244.1.") and ping(machine.root / "node-1", address, patience_s=10)
        eventually(lambda: machine.ready("node-1"), 60)
        eventually(lambda: not machine.drift("node-1"))
        runtime.remove_pod(web)
        assert web not in runtime.pods() and agent.running()
    finally:
        print(agent.output())
    lines = agent.output().splitlines()
    assert not [line for line in lines if "OOM score" not in line and any(text in line for text in REFUSED)]
