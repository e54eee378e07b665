"""The processes of a local cluster and their configuration files.

Each component gets one file. The fork server passes its path to the component's entry (:mod:`podwire.local.entries`).
"""

import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec

from podwire.agent.config import PARTS as AGENT_PARTS
from podwire.errors import ConfigError
from podwire.local import credentials
from podwire.local.builds import BUILD_ENTRY, Build, BuildOrder
from podwire.local.config import ClusterConfig
from podwire.local.controllers import ALL_CONTROLLERS
from podwire.local.fabric.plan import AS_NUMBER
from podwire.local.topology import FabricNode, Topology
from podwire.runtime.child import Placement
from podwire.runtime.forkserver import ForkServer
from podwire.runtime.program import Child

DNS_NUMBER = 10
"""Cluster DNS is the tenth address of the first Service network, as everywhere."""


def start(fork_server: ForkServer, topology: Topology, child: Child, build: Build | None = None) -> int:
    """Starts a component by the fork server, as the entry ``argv[0]`` with the payload ``argv[1]``; its pid.

    A component of another build is the same entry in a new program.

    Raises: ClusterError.
    """
    entry, path = child.argv
    title = f"podwire: {child.name} {topology.name}"
    placement = Placement(title=title, netns=child.netns, log=child.log, daemon=True)
    if build is not None:
        order = BuildOrder(build=build, entry=entry, path=path)
        return fork_server.spawn(BUILD_ENTRY, msgspec.json.encode(order), placement=placement)
    return fork_server.spawn(entry, path.encode(), placement=placement)


def free_port() -> int:
    """A TCP port on loopback on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def api_port(topology: Topology, config: ClusterConfig, *, running: bool) -> int:
    """The API's port on loopback: the configured one, else that of the last start, else a free one.

    Raises: ConfigError when the configured port is used by another process.
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
    keys = credentials.folder(topology)
    families = {ip_network(cidr).version for cidr in config.service_cidrs}
    host = {4: str(topology.host_address), 6: str(topology.host_address6)}
    # Nodes connect to the first address; pods connect to the Service, whose endpoint is the advertised address.
    fabric = [f"{host[4]}:{credentials.API_FABRIC_PORT}"]
    fabric += [f"[{host[6]}]:{credentials.API_FABRIC_PORT}"] if 4 not in families else []
    document = {
        "listen": [f"127.0.0.1:{port}", *fabric],
        "state": f"{topology.state}/api.db",
        "certificate": f"{keys}/apiserver.crt",
        "key": f"{keys}/apiserver.key",
        "clientCa": f"{keys}/ca.crt",
        "signingKey": f"{keys}/tokens.key",
        "kubeletCertificate": f"{keys}/kubelet-client.crt",
        "kubeletKey": f"{keys}/kubelet-client.key",
        "proxyClientCertificate": f"{keys}/front-proxy-client.crt",
        "proxyClientKey": f"{keys}/front-proxy-client.key",
        "proxyClientCa": f"{keys}/front-proxy-ca.crt",
        "serviceCidrs": config.service_cidrs,
        "advertise": [host[4]] if 4 in families else [host[6]],
        "advertisePort": credentials.API_FABRIC_PORT,
        "audit": msgspec.to_builtins(config.audit),
    }
    return _child(topology, "apiserver", "apiserver", Path(topology.run), document)


def controller(topology: Topology, config: ClusterConfig) -> Child:
    """Controllers, scheduler and workloads in one process on the host."""
    document = {
        "kubeconfig": str(credentials.kubeconfig_path(topology, "controller-manager")),
        "schedulerKubeconfig": str(credentials.kubeconfig_path(topology, "scheduler")),
        "controller": {
            "parts": [name for name in ALL_CONTROLLERS if config.ipam.mode == "nodes" or name != "nodeipam"],
            "clusterCIDRs": config.pod_cidrs,
            "serviceCIDRs": config.service_cidrs,
            "caFile": f"{credentials.folder(topology)}/ca.crt",
            "caKeyFile": f"{credentials.folder(topology)}/ca.key",
            "volumeFolder": f"{topology.state}/volumes",
            "autoscaler": msgspec.to_builtins(config.autoscaler),
        },
        "logLevel": config.log_level,
    }
    return _child(topology, "controller", "controller", Path(topology.run), document)


def agent(topology: Topology, config: ClusterConfig, node: FabricNode) -> Child:
    """A node's agent, in the node's namespace."""
    run = Path(topology.node_run(node.name))
    document = {
        "nodeName": node.name,
        "parts": AGENT_PARTS,
        "kubeconfig": str(credentials.kubeconfig_path(topology, f"agent-{node.name}")),
        "runDir": str(run),
        "stateDir": str(topology.node_state(node.name)),
        "clusterCIDRs": config.pod_cidrs,
        "serviceCIDRs": config.service_cidrs,
        "cni": {
            "confDir": str(run / "cni/net.d"),
            "binDir": str(run / "cni/bin"),
            "ipam": config.ipam.mode,
            "strictAffinity": config.ipam.strict_affinity,
            "maxBlocks": config.ipam.max_blocks,
            "link": config.pod_link,
        },
        "routing": {"backend": config.routing.backend, **_router_peers(topology, config, node)},
        "proxy": msgspec.to_builtins(config.proxy),
        "policy": msgspec.to_builtins(config.policy),
        "health": {"address": "0.0.0.0", "port": 9440},
        "dns": {
            "kernel": config.dns.kernel,
            "nodeLocal": config.dns.node_local,
            "folder": topology.bpf_folder(node.name),
        },
        "logLevel": config.log_level,
    }
    return _child(topology, f"agent-{node.name}", "agent", run, document, str(topology.netns(node.name)))


def _router_peers(topology: Topology, config: ClusterConfig, node: FabricNode) -> dict[str, Any]:
    """The router of the node's segment as a peer of the backend ``bgp``."""
    if topology.segment_count == 1:
        return {}
    families = {ip_network(cidr).version for cidr in config.pod_cidrs}
    addresses = [node.segment.router] * (4 in families) + [node.segment.router6] * (6 in families)
    return {"bgp": {"peers": [{"address": str(address), "asNumber": AS_NUMBER} for address in addresses]}}


def kubelet(topology: Topology, config: ClusterConfig, node: FabricNode, cgroup: Path | None) -> Child:
    """A node's kubelet, in the node's namespace; ``cgroup`` is the cluster's folder."""
    run = Path(topology.node_run(node.name))
    keys = credentials.folder(topology)
    families = {ip_network(cidr).version for cidr in config.pod_cidrs}
    addresses = [str(node.address)] * (4 in families) + [str(node.address6)] * (6 in families)
    document = {
        "node": node.name,
        "kubeconfig": str(credentials.kubeconfig_path(topology, node.name)),
        "runDir": str(run / "kubelet"),
        "stateDir": f"{topology.node_state(node.name)}/kubelet",
        "netnsDir": f"{topology.run}/netns",
        "hostDirectories": {
            "/etc/cni/net.d": str(run / "cni/net.d"),
            "/opt/cni/bin": str(run / "cni/bin"),
            "/run/podwire": str(run / "podwire"),
            "/var/lib/podwire": f"{topology.node_state(node.name)}/podwire",
            "/var/lib/cni": f"{topology.node_state(node.name)}/cni",
        },
        "hidden": [topology.run],
        "addresses": addresses,
        "zone": node.segment.bridge,
        "serving": {
            "certificate": f"{keys}/{node.name}.crt",
            "key": f"{keys}/{node.name}.key",
            "clientCA": f"{keys}/ca.crt",
        },
        "cni": {
            "binDir": str(run / "cni/bin"),
            "confDir": str(run / "cni/net.d"),
            "env": {"PODWIRE_CNI_SOCKET": str((run if config.network == "podwire" else run / "podwire") / "cni.sock")},
        },
        "clusterDNS": [service_address(config, DNS_NUMBER)],
        "resolvConf": f"{topology.run}/resolv.conf",
        "cgroup": str(cgroup / node.name) if cgroup else "",
        "systemCgroup": str(cgroup / "system" / node.name) if cgroup else "",
        "images": [msgspec.to_builtins(rule) for rule in config.images],
        "capacity": config.capacity,
        "metricsResolutionS": config.metrics.resolution_s,
        "logLevel": config.log_level,
    }
    return _child(topology, f"kubelet-{node.name}", "kubelet", run, document, str(topology.netns(node.name)))


def every(topology: Topology, config: ClusterConfig, cgroup: Path | None) -> tuple[Child, ...]:
    """The components of a cluster, in the order of an upgrade; ``cgroup`` is the folder of the cluster."""
    port = api_port(topology, config, running=True)
    children = [apiserver(topology, config, port), controller(topology, config)]
    for node in topology.nodes(config.nodes):
        children.append(kubelet(topology, config, node, cgroup))
        if config.network == "podwire":
            children.append(agent(topology, config, node))
    return tuple(children)


def as_configured(child: Child) -> Child:
    """A component with the configuration files that are on disk, which another build may have written."""
    files = {}
    for path, content in child.files.items():
        try:
            files[path] = Path(path).read_bytes()
        except OSError:
            files[path] = content
    return msgspec.structs.replace(child, files=files)


def node_of(child: Child) -> str:
    """The node of an agent or a kubelet; empty for other components, the router's BIRD among them."""
    return child.name.partition("-")[2] if child.netns else ""


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
