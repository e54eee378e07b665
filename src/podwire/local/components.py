"""What runs as a process in a local cluster: entries of the fork server, and the configuration of each.

Every component gets one file, written here, and could be run by hand with it: ``podwire agent --config FILE``. This
module imports all of them, so that a process forked from one that has imported it starts without importing anything.
"""

import socket
from collections.abc import Mapping
from importlib import import_module
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec

from podwire.agent import config as agent_config
from podwire.agent import daemon as agent_daemon
from podwire.embedded.apiserver import server as api_server
from podwire.embedded.apiserver import settings as api_settings
from podwire.embedded.kubelet import daemon as kubelet_daemon
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.decode import prepare
from podwire.kube.resources import (
    CLUSTERNETWORKPOLICIES,
    ENDPOINTSLICES,
    NAMESPACES,
    NETWORKPOLICIES,
    NODES,
    PODS,
    SERVICES,
)
from podwire.local import controllers, credentials
from podwire.local.config import ClusterConfig
from podwire.local.topology import FabricNode, Topology
from podwire.model.document import not_yaml, wrong
from podwire.observe import log
from podwire.policy.registry import DATAPLANES as POLICY_DATAPLANES
from podwire.proxy.registry import DATAPLANES
from podwire.routing.registry import BACKENDS
from podwire.runtime.child import Placement
from podwire.runtime.clock import SystemClock
from podwire.runtime.foreground import run_until_signal
from podwire.runtime.forkserver import Entry, ForkServer
from podwire.runtime.program import Child

CONTROLLER_CONFIG = "controller.yaml"
DNS_NUMBER = 10
"""Cluster DNS is the tenth address of the first Service network, as everywhere."""


class ControllerFile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The controller's file: how controllers and scheduler reach the API, and what to run."""

    kubeconfig: str
    controller: controllers.LocalControllerConfig
    scheduler_kubeconfig: str = ""
    """How the scheduler reaches the API; empty: as the controllers do."""
    log_level: log.Level = "info"


def run_apiserver(payload: bytes) -> None:
    """The API server; ``payload`` is the path of its settings."""
    log.configure()
    settings = api_settings.load(Path(payload.decode()))
    run_until_signal(lambda: api_server.run(settings))


def run_controller(payload: bytes) -> None:
    """Controllers, scheduler and workloads; ``payload`` is the path of their file."""
    run_controller_file(payload.decode(), None)


def run_controller_file(path: str, kubeconfig: str | None) -> None:
    """Runs the controllers of a file; ``kubeconfig`` wins over those in it.

    Raises: ConfigError.
    """
    file = read_controller(path)
    log.configure(file.log_level)

    async def body() -> None:
        clock = SystemClock()
        client = Client(load_kubeconfig(kubeconfig or file.kubeconfig), clock, manager="podwire-controller")
        chosen = kubeconfig or file.scheduler_kubeconfig or file.kubeconfig
        scheduler = Client(load_kubeconfig(chosen), clock, manager="podwire-scheduler")
        await controllers.run(client, file.controller, {"scheduler": scheduler})

    run_until_signal(body)


def read_controller(path: str) -> ControllerFile:
    """The controller's file.

    Raises: ConfigError naming the field.
    """
    try:
        return msgspec.yaml.decode(Path(path).read_bytes(), type=ControllerFile)
    except OSError as failure:
        raise ConfigError(path, "", f"cannot be read: {failure.strerror}") from failure
    except msgspec.ValidationError as failure:
        raise wrong(failure, ControllerFile, path) from failure
    except msgspec.DecodeError as failure:
        raise not_yaml(failure, path) from failure


def run_agent(payload: bytes) -> None:
    """A node's agent; ``payload`` is the path of its configuration."""
    config = agent_config.load(Path(payload.decode()))
    log.configure(config.log_level)
    run_until_signal(lambda: agent_daemon.run(config, SystemClock()))


def run_kubelet(payload: bytes) -> None:
    """A node's kubelet; ``payload`` is the path of its configuration."""
    kubelet_daemon.main(payload.decode())


ENTRIES: Mapping[str, Entry] = {
    "apiserver": run_apiserver,
    "controller": run_controller,
    "agent": run_agent,
    "kubelet": run_kubelet,
}
"""What the fork server can start."""


def start(fork_server: ForkServer, topology: Topology, child: Child) -> int:
    """Starts a component by the fork server, as the entry ``argv[0]`` with the payload ``argv[1]``; its pid.

    Raises: ClusterError.
    """
    entry, path = child.argv
    title = f"podwire: {child.name} {topology.name}"
    placement = Placement(title=title, netns=child.netns, log=child.log, daemon=True)
    return fork_server.spawn(entry, path.encode(), placement=placement)


def preload() -> None:
    """Imports also what components import when they need it, once for all that are forked from this process."""
    for registry in (controllers.CONTROLLERS, POLICY_DATAPLANES, DATAPLANES, BACKENDS):
        registry.preload()
    for module in _LATER:
        import_module(module)
    prepare(NODES, PODS, NAMESPACES, SERVICES, ENDPOINTSLICES, NETWORKPOLICIES, CLUSTERNETWORKPOLICIES)


_LATER = (
    "podwire.agent.pods",
    "podwire.agent.routes",
    "podwire.agent.policies",
    "podwire.agent.services",
    "encodings.idna",  # with which Python reads the name of every server that it connects to by TLS
)
"""What every node imports after it has begun."""


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def api_port(topology: Topology, config: ClusterConfig, *, running: bool) -> int:
    """The API's port on loopback: the configured one, else that of the last start, else a free one.

    Raises: ConfigError when the configured port is taken by somebody else.
    """
    memory = Path(topology.state) / "api-port"
    known = int(memory.read_text(encoding="ascii")) if memory.exists() else 0
    if running and known:
        return known
    for port in filter(None, (config.api_port, known)):
        if _is_free(port):
            break
        if port == config.api_port:
            raise ConfigError("podwire up", "apiPort", f"port {port} on 127.0.0.1 is in use by another program")
    else:
        port = free_port()
    memory.write_text(str(port), encoding="ascii")
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def service_address(config: ClusterConfig, number: int) -> str:
    """Address ``number`` of the first Service network."""
    return str(ip_network(config.service_cidrs[0])[number])


def apiserver(topology: Topology, config: ClusterConfig, port: int) -> Child:
    """The API server on loopback and on the host's fabric address."""
    place = credentials.folder(topology)
    families = {ip_network(cidr).version for cidr in config.service_cidrs}
    host = {4: str(topology.host_address), 6: str(topology.host_address6)}
    # Nodes reach it at the first, pods by way of its Service at what is advertised.
    fabric = [f"{host[4]}:{credentials.API_FABRIC_PORT}"]
    fabric += [f"[{host[6]}]:{credentials.API_FABRIC_PORT}"] if 4 not in families else []
    document = {
        "listen": [f"127.0.0.1:{port}", *fabric],
        "state": f"{topology.state}/api.db",
        "certificate": f"{place}/apiserver.crt",
        "key": f"{place}/apiserver.key",
        "clientCa": f"{place}/ca.crt",
        "signingKey": f"{place}/tokens.key",
        "kubeletCertificate": f"{place}/kubelet-client.crt",
        "kubeletKey": f"{place}/kubelet-client.key",
        "serviceCidrs": config.service_cidrs,
        "advertise": [host[4]] if 4 in families else [host[6]],
        "advertisePort": credentials.API_FABRIC_PORT,
    }
    return _child(topology, "apiserver", "apiserver", Path(topology.run), document)


def controller(topology: Topology, config: ClusterConfig) -> Child:
    """Controllers, scheduler and workloads in one process on the host."""
    document = {
        "kubeconfig": str(credentials.kubeconfig_path(topology, "controller-manager")),
        "schedulerKubeconfig": str(credentials.kubeconfig_path(topology, "scheduler")),
        "controller": {
            "clusterCIDRs": config.pod_cidrs,
            "serviceCIDRs": config.service_cidrs,
            "caFile": f"{credentials.folder(topology)}/ca.crt",
            "caKeyFile": f"{credentials.folder(topology)}/ca.key",
            "volumeFolder": f"{topology.state}/volumes",
        },
        "logLevel": config.log_level,
    }
    return _child(topology, "controller", "controller", Path(topology.run), document)


def agent(topology: Topology, config: ClusterConfig, place: FabricNode) -> Child:
    """A node's agent, in the node's namespace."""
    run = Path(topology.node_run(place.name))
    document = {
        "nodeName": place.name,
        "kubeconfig": str(credentials.kubeconfig_path(topology, f"agent-{place.name}")),
        "runDir": str(run),
        "stateDir": str(topology.node_state(place.name)),
        "clusterCIDRs": config.pod_cidrs,
        "serviceCIDRs": config.service_cidrs,
        "cni": {"confDir": str(run / "cni/net.d"), "binDir": str(run / "cni/bin")},
        "routing": {"backend": config.routing.backend},
        "proxy": msgspec.to_builtins(config.proxy),
        "policy": msgspec.to_builtins(config.policy),
        "health": {"address": "0.0.0.0", "port": 9440},
        "logLevel": config.log_level,
    }
    return _child(topology, f"agent-{place.name}", "agent", run, document, str(topology.netns(place.name)))


def kubelet(topology: Topology, config: ClusterConfig, place: FabricNode, cgroup: Path | None) -> Child:
    """A node's kubelet, in the node's namespace; ``cgroup`` is the cluster's folder."""
    run = Path(topology.node_run(place.name))
    keys = credentials.folder(topology)
    families = {ip_network(cidr).version for cidr in config.pod_cidrs}
    addresses = [str(place.address)] * (4 in families) + [str(place.address6)] * (6 in families)
    document = {
        "node": place.name,
        "kubeconfig": str(credentials.kubeconfig_path(topology, place.name)),
        "runDir": str(run / "kubelet"),
        "stateDir": f"{topology.node_state(place.name)}/kubelet",
        "netnsDir": f"{topology.run}/netns",
        "hidden": [topology.run],
        "addresses": addresses,
        "zone": place.segment.bridge,
        "serving": {
            "certificate": f"{keys}/{place.name}.crt",
            "key": f"{keys}/{place.name}.key",
            "clientCA": f"{keys}/ca.crt",
        },
        "cni": {
            "binDir": str(run / "cni/bin"),
            "confDir": str(run / "cni/net.d"),
            "env": {"PODWIRE_CNI_SOCKET": str(run / "cni.sock")},
        },
        "clusterDNS": [service_address(config, DNS_NUMBER)],
        "resolvConf": f"{topology.run}/resolv.conf",
        "cgroup": str(cgroup / place.name) if cgroup else "",
        "images": [msgspec.to_builtins(rule) for rule in config.images],
        "capacity": config.capacity,
        "logLevel": config.log_level,
    }
    return _child(topology, f"kubelet-{place.name}", "kubelet", run, document, str(topology.netns(place.name)))


def _child(topology: Topology, name: str, entry: str, folder: Path, document: dict[str, Any], netns: str = "") -> Child:
    path = f"{folder}/{entry}.yaml"
    return Child(
        name=name,
        argv=(entry, path),
        files={path: msgspec.yaml.encode(document)},
        on_file_change="ignore",  # a component keeps the configuration that it started with
        netns=netns,
        log=f"{topology.run}/log/{name}.log",
    )
