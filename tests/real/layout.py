"""Where everything of a real control plane is: addresses, folders, files (pure)."""

from dataclasses import dataclass
from pathlib import Path

CLUSTER_CIDR = "10.244.0.0/16"
SERVICE_CIDR = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
DOMAIN = "cluster.local"
CONTROL_ADDRESS = "10.90.0.1"
API_PORT = 6443
SANDBOX_IMAGE = "podwire.test/pause:1"
SHARED_FOLDERS = (
    "/run", "/etc/cni", "/opt/cni", "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/podwire",
    "/var/log/pods", "/var/log/containers",
)  # fmt: skip
"""Folders of a machine that kubelet, container runtime and agents use: each node has its own."""
RUNTIME_SOCKET = "/run/containerd/containerd.sock"


@dataclass(frozen=True)
class RealLayout:
    """A cluster in the folder ``root``, with so many nodes."""

    root: Path
    nodes: int = 2

    @property
    def server(self) -> str:
        """The address of the API server."""
        return f"https://{CONTROL_ADDRESS}:{API_PORT}"

    @property
    def keys(self) -> Path:
        """The folder of certificates and kubeconfigs."""
        return self.root / "keys"

    @property
    def fabric(self) -> Path:
        """The namespace of the control plane, with the bridge of all nodes."""
        return self.root / "fabric"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(f"node-{number}" for number in range(1, self.nodes + 1))

    def certificate(self, name: str) -> str:
        """The file of a certificate."""
        return str(self.keys / f"{name}.crt")

    def key(self, name: str) -> str:
        """The file of a private key."""
        return str(self.keys / f"{name}.key")

    def kubeconfig(self, user: str) -> str:
        """The file of a kubeconfig."""
        return str(self.keys / f"{user}.kubeconfig")

    def node_folder(self, node: str) -> Path:
        """The folder with a node's own directories and files."""
        return self.root / node

    def node_namespace(self, node: str) -> Path:
        """The network namespace of a node."""
        return self.root / f"{node}.net"

    def node_address(self, node: str) -> str:
        """The address of a node on the fabric."""
        return f"10.90.0.{10 + int(node.rpartition('-')[2])}"
