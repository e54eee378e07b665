"""The kubelet's configuration: one YAML (or JSON) document.

::

    node: node-1
    kubeconfig: /run/podwire/demo/nodes/node-1/kubelet.kubeconfig
    runDir: /run/podwire/demo/nodes/node-1/kubelet
    stateDir: /var/lib/podwire/demo/nodes/node-1/kubelet
    netnsDir: /run/podwire/demo/netns
    hidden: [/run/podwire/demo]
    addresses: [10.89.0.11]
    zone: segment-0
    serving: {certificate: .../kubelet.crt, key: .../kubelet.key, clientCA: .../ca.crt}
    cni: {binDir: /opt/cni/bin, confDir: .../cni/net.d, env: {PODWIRE_CNI_SOCKET: .../cni.sock}}
    clusterDNS: [10.96.0.10]
    cgroup: /sys/fs/cgroup/podwire/demo/node-1
    images: [{prefix: ghcr.io/acme/, command: [python3, -m, http.server]}]

A field that is unknown, missing or of the wrong type is a ConfigError with its path.
"""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from podwire.embedded.images.table import ImageRule
from podwire.errors import ConfigError
from podwire.model.document import convert, not_yaml
from podwire.observe.log import Level


class _KubeletSection(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A section of the configuration: keys in camelCase, unknown keys are errors."""


class ServingSection(_KubeletSection, frozen=True):
    """The kubelet's HTTPS server: its certificate and key, and the authority of its clients. Paths of PEM files.

    The server does not run when ``certificate`` is empty.
    """

    certificate: str = ""
    key: str = ""
    client_ca: str = msgspec.field(default="", name="clientCA")


class PluginSection(_KubeletSection, frozen=True):
    """Directories of CNI plugins and of their configuration; ``env`` is added to a plugin's environment."""

    bin_dir: str
    conf_dir: str
    env: dict[str, str] = {}


class KubeletConfig(_KubeletSection, frozen=True):
    """The configuration of one node's kubelet."""

    node: str
    kubeconfig: str
    run_dir: str
    """Directory for sockets of shims and short-lived files."""
    state_dir: str
    """Directory for pods: records, logs, volumes."""
    netns_dir: str
    """Directory where the network namespaces of pods are mounted, as ``pod-<sandbox id>``."""
    cni: PluginSection
    host_directories: dict[str, str] = {}
    """Directories of this node by the paths that ``hostPath`` volumes name; other paths are those of the machine."""
    hidden: tuple[str, ...] = ()
    """Directories whose mounts containers do not see."""
    addresses: tuple[str, ...] = ()
    """The node's own addresses, primary first."""
    zone: str = ""
    labels: dict[str, str] = {}
    serving: ServingSection = ServingSection()
    port: int = 10250
    cluster_dns: tuple[str, ...] = msgspec.field(default=(), name="clusterDNS")
    cluster_domain: str = "cluster.local"
    resolv_conf: str = "/etc/resolv.conf"
    cgroup: str = ""
    """A cgroup v2 directory for this node's pods; empty: pods run without cgroups, limits and metrics."""
    system_cgroup: str = ""
    """The cgroup v2 directory of the node's kubelet and agent, whose usage counts as the node's own."""
    metrics_resolution_s: float = 15.0
    """Interval of the samples of usage."""
    images: tuple[ImageRule, ...] = ()
    capacity: dict[str, str] = {}
    """Overrides of the node's capacity (cpu, memory, pods, ephemeral-storage)."""
    log_level: Level = "info"


def parse_config(text: str | bytes, source: str) -> KubeletConfig:
    """The configuration in a YAML or JSON text.

    Raises: ConfigError with the field path.
    """
    try:
        document: Any = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as failure:
        raise not_yaml(failure, source) from failure
    return convert(document, KubeletConfig, source)


def read_config(path: str) -> KubeletConfig:
    """The configuration in a file.

    Raises: ConfigError when the file cannot be read, or with the field path of a wrong value.
    """
    try:
        return parse_config(Path(path).read_bytes(), path)
    except OSError as failure:
        raise ConfigError(path, "", f"cannot be read: {failure}") from failure
