"""The configuration of the API server: a YAML file as a frozen value."""

import ipaddress
from pathlib import Path

import msgspec
import yaml

from podwire.embedded.apiserver.auditrules import AuditSettings
from podwire.errors import ConfigError
from podwire.model.document import wrong


class ApiServerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Listen addresses, state file, keys, and settings of the cluster. Paths are absolute."""

    listen: tuple[str, ...]
    """Addresses as ``HOST:PORT`` or ``[HOST]:PORT``; nothing else is listened on."""
    state: Path
    """The SQLite file."""
    certificate: Path
    """Server certificate (PEM)."""
    key: Path
    """Its private key."""
    client_ca: Path
    """Authority of client certificates."""
    signing_key: Path
    """Private key (ECDSA P-256, PEM) that signs ServiceAccount tokens."""
    kubelet_certificate: Path | None = None
    """Client certificate shown to kubelets; None switches logs, exec and port-forward off."""
    kubelet_key: Path | None = None
    kubelet_ca: Path | None = None
    """Authority of the kubelets' certificates, the client authority by default."""
    proxy_client_certificate: Path | None = None
    """Client certificate shown to extension API servers; without it they cannot know who sends a request."""
    proxy_client_key: Path | None = None
    proxy_client_ca: Path | None = None
    """Authority that issued this certificate and no other certificate."""
    service_cidrs: tuple[str, ...] = ("10.96.0.0/16",)
    """One or two ranges, of different families."""
    node_ports: str = "30000-32767"
    """First and last port of the NodePort range."""
    advertise: tuple[str, ...] = ()
    """Addresses of the ``kubernetes`` Service's endpoints; with none it has no endpoints."""
    advertise_port: int = 6443
    issuer: str = "https://kubernetes.default.svc.cluster.local"
    """Issuer and audience of ServiceAccount tokens."""
    event_ttl_s: int = 3600
    """Events not updated for this long are deleted."""
    bookmark_s: float = 60.0
    """Time between two bookmarks of a watch."""
    list_snapshot_s: float = 300.0
    """How long the remaining pages of a list can be read."""

    audit: AuditSettings | None = None
    """The audit log; None: there is none."""

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """``listen`` as pairs of host and port.

        Raises: ConfigError for an address that is not HOST:PORT.
        """
        addresses = []
        for index, text in enumerate(self.listen):
            host, _, port = text.rpartition(":")
            if not host or not port.isdecimal() or int(port) > 65535:
                raise ConfigError("apiserver", f"listen[{index}]", f"expected HOST:PORT, got {text!r}")
            addresses.append((host.strip("[]"), int(port)))
        return tuple(addresses)

    def node_port_range(self) -> tuple[int, int]:
        """First and last node port.

        Raises: ConfigError when it is no range.
        """
        first, _, last = self.node_ports.partition("-")
        if not first.isdecimal() or not last.isdecimal() or not 0 < int(first) <= int(last) < 65536:
            raise ConfigError("apiserver", "nodePorts", f"expected FIRST-LAST, got {self.node_ports!r}")
        return int(first), int(last)

    def kubernetes_ip(self) -> str:
        """The first address of the first Service range, which the ``kubernetes`` Service has."""
        try:
            return str(next(iter(ipaddress.ip_network(self.service_cidrs[0]).hosts())))
        except ValueError as failure:
            raise ConfigError("apiserver", "serviceCidrs[0]", str(failure)) from failure


def _path(kind: type, value: object) -> object:
    if kind is not Path or not isinstance(value, str):
        raise NotImplementedError
    return Path(value)


def load(path: Path) -> ApiServerSettings:
    """The settings in a YAML file.

    Raises: ConfigError naming the field.
    """
    try:
        document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        return msgspec.convert(document, ApiServerSettings, strict=False, dec_hook=_path)
    except OSError as failure:
        raise ConfigError(str(path), "", f"cannot be read: {failure.strerror}") from failure
    except yaml.YAMLError as failure:
        raise ConfigError(str(path), "", f"is not YAML: {failure}") from failure
    except msgspec.ValidationError as failure:
        raise wrong(failure, ApiServerSettings, str(path)) from failure
