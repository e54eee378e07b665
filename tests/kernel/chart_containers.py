"""Containers of the chart's pods under containerd: a pod's spec as a kubelet hands it over through CRI.

Only what the chart uses is translated: arguments, environment, host paths, ConfigMaps, memory, the security context.
Sources: k8s.io/cri-api runtime/v1 api.proto; pkg/kubelet/kuberuntime of Kubernetes for the defaults.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.kernel.containerd import Containerd, call, decode, field

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/podwire"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_NODE_NETWORK = {1: 2}
_PROPAGATION = {"None": 0, "HostToContainer": 1, "Bidirectional": 2}
_RUNNING, _EXITED = 1, 2


def render(values: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The objects of the chart with these values."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    helm = shutil.which("helm") or str(ROOT / ".venv/bin/helm")
    command = [helm, "template", "podwire", str(CHART), "--namespace", "kube-system", "--values", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [document for document in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if document]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The object of a kind and name."""
    return next(item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name))


def import_image(runtime: Containerd, archive: Path) -> str:
    """Imports an archive; the name of the image."""
    command = ["ctr", "--address", str(runtime.socket), "--namespace", "k8s.io", "images", "import"]
    command += ["--snapshotter", "native", str(archive)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.split()[1]


def sandbox_of_node(name: str, logs: Path) -> dict[int, Any]:
    """The configuration of a pod on the node's network."""
    logs.mkdir(exist_ok=True)
    linux = {2: {1: _NODE_NETWORK}}
    return {1: {1: name, 2: f"uid-{name}", 3: "kube-system"}, 3: str(logs), 8: linux}


def container(
    spec: Mapping[str, Any], volumes: Mapping[str, Path], image: str, environment: Mapping[str, str]
) -> dict[int, Any]:
    """A container's configuration; ``volumes`` are the folders of ConfigMaps and accounts by name."""
    rights = spec.get("securityContext", {})
    capabilities = rights.get("capabilities", {})
    mounts = [
        {
            1: mount["mountPath"],
            2: str(volumes[mount["name"]]),
            3: int(mount.get("readOnly", False)),
            5: _PROPAGATION[mount.get("mountPropagation", "None")],
        }
        for mount in spec["volumeMounts"]
    ]
    security: dict[int, Any] = {
        1: {1: capabilities.get("add", []), 2: capabilities.get("drop", [])},
        3: _NODE_NETWORK,
        7: int(rights.get("readOnlyRootFilesystem", False)),
        11: int(not rights.get("allowPrivilegeEscalation", True)),
    }
    if "runAsUser" in rights:
        security[5] = {1: rights["runAsUser"]}
    return {
        1: {1: spec["name"]},
        2: {1: image},
        4: spec["args"],
        6: [{1: key, 2: value} for key, value in environment.items()],
        7: mounts,
        11: f"{spec['name']}.log",
        15: {2: security},
    }


class PodContainer:
    """A container in a pod of its own on the node's network."""

    def __init__(self, runtime: Containerd, config: dict[int, Any]) -> None:
        self.runtime, self.config = runtime, config
        name = config[1][1]
        pod = sandbox_of_node(name, runtime.root / "logs")
        self.log = runtime.root / "logs" / f"{name}.log"
        self.sandbox = field(call(runtime.socket, "RunPodSandbox", {1: pod}), 1).decode()
        request = {1: self.sandbox, 2: config, 3: pod}
        self.identifier = field(call(runtime.socket, "CreateContainer", request), 1).decode()
        call(runtime.socket, "StartContainer", {1: self.identifier})

    def status(self) -> dict[int, Any]:
        """The fields of the container's status: 3 the state (1 running, 2 ended), 7 the exit status."""
        return dict(decode(field(call(self.runtime.socket, "ContainerStatus", {1: self.identifier}), 1)))

    def ended(self) -> bool:
        """Whether the container has ended."""
        return bool(self.status().get(3) == _EXITED)

    def running(self) -> bool:
        """Whether the container runs."""
        return bool(self.status().get(3) == _RUNNING)

    def output(self) -> str:
        """What the container wrote, without the times of CRI's log format."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return "\n".join(line.split(" ", 3)[3] for line in lines)
