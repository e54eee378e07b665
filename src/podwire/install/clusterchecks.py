"""What would go wrong if podwire were installed in a cluster, from the cluster's objects and those of the chart. Pure.

The findings are those of :mod:`podwire.install.preflight`, which looks at a node: kinds of other networks, ranges that
do not fit, nodes without a pod range, objects of another DNS server.
"""

from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

import msgspec
import yaml

from podwire.errors import ConfigError
from podwire.install.preflight import PreflightFinding
from podwire.kube.resources import Json

OLDEST = (1, 30)
"""The oldest version of Kubernetes, as in docs/install.md."""
NETWORKS: Mapping[str, str] = {
    "kube-flannel-ds": "Flannel", "calico-node": "Calico", "canal": "Canal", "cilium": "Cilium", "weave-net": "Weave",
    "antrea-agent": "Antrea", "kube-router": "kube-router", "ovnkube-node": "OVN-Kubernetes",
}  # fmt: skip
"""DaemonSets of other networks."""


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a cluster, and what is installed in it."""

    version: tuple[int, int]
    daemonsets: tuple[str, ...] = ()
    """As ``namespace/name``."""
    deployments: tuple[str, ...] = ()
    """As ``namespace/name``; podwire's own are left out."""
    nodes: Mapping[str, tuple[str, ...]] = {}
    """The pod ranges of nodes."""
    kubernetes_ip: str = ""
    """The address of the Service ``kubernetes``."""
    dns_ip: str = ""
    """The address of the Service ``kube-system/kube-dns``; empty: there is none."""


class ChartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the objects of the chart ask for."""

    parts: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    cluster_cidrs: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    dns_ip: str = ""
    """The address of the Service ``kube-dns``; empty: the chart has no DNS."""


def chart_settings(objects: tuple[Json, ...], source: str) -> ChartSettings:
    """What the objects ask for, from the ConfigMaps of agent and controller.

    Raises: ConfigError for a ConfigMap without a configuration.
    """
    named = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
    agent = _configuration(named.get(("ConfigMap", "podwire-agent")), "agent.yaml", source)
    controller = _configuration(named.get(("ConfigMap", "podwire-controller")), "controller.yaml", source)
    service = named.get(("Service", "kube-dns"), {"spec": {}})
    section = controller.get("controller", {})
    return ChartSettings(
        parts=tuple(agent.get("parts", ())),
        controllers=tuple(section.get("parts", ())),
        cluster_cidrs=tuple(agent.get("clusterCIDRs", ())),
        service_cidrs=tuple(agent.get("serviceCIDRs", ())),
        dns_ip=service["spec"].get("clusterIP", ""),
    )


def _configuration(config_map: Mapping[str, Any] | None, key: str, source: str) -> dict[str, Any]:
    if config_map is None:
        return {}
    try:
        document = yaml.load(config_map["data"][key], Loader=yaml.CSafeLoader)
    except (KeyError, TypeError, yaml.YAMLError) as failure:
        name = config_map["metadata"]["name"]
        raise ConfigError(source, f"ConfigMap {name}.data", f"expected YAML in {key}") from failure
    return document if isinstance(document, dict) else {}


def find(facts: ClusterFacts, asked: ChartSettings) -> tuple[PreflightFinding, ...]:
    """All findings, faults first."""
    results = [finding for check in CHECKS for finding in check(facts, asked)]
    return tuple(sorted(results, key=lambda finding: finding.level != "fault"))


def _version(facts: ClusterFacts, asked: ChartSettings) -> Iterator[PreflightFinding]:
    if facts.version < OLDEST:
        text = f"Kubernetes {facts.version[0]}.{facts.version[1]} is older than {OLDEST[0]}.{OLDEST[1]}"
        yield PreflightFinding("fault", "API server", text, "upgrade the cluster first")


def _networks(facts: ClusterFacts, asked: ChartSettings) -> Iterator[PreflightFinding]:
    for path in facts.daemonsets:
        name = path.partition("/")[2]
        if "cni" in asked.parts and name in NETWORKS:
            text = f"{NETWORKS[name]} is the network of this cluster"
            action = "remove it first, or leave cni and routing out of agent.parts"
            yield PreflightFinding("fault", f"DaemonSet {path}", text, action)
        if "proxy" in asked.parts and name == "kube-proxy":
            text = "kube-proxy runs, and two proxies translate a packet twice"
            yield PreflightFinding("fault", f"DaemonSet {path}", text, "delete it, or leave proxy out of agent.parts")


def _dns(facts: ClusterFacts, asked: ChartSettings) -> Iterator[PreflightFinding]:
    if not asked.dns_ip:
        return
    for path in facts.deployments:
        if path in ("kube-system/coredns", "kube-system/kube-dns"):
            text = "another DNS server has the Service kube-dns"
            yield PreflightFinding("fault", f"Deployment {path}", text, "delete it first, or set dns.enabled to false")
    if facts.dns_ip and facts.dns_ip != asked.dns_ip:
        text = f"has the address {facts.dns_ip}, which cannot change to {asked.dns_ip}"
        action = f"set dns.clusterIP to {facts.dns_ip}, which kubelets give to pods"
        yield PreflightFinding("fault", "Service kube-system/kube-dns", text, action)


def _pod_ranges(facts: ClusterFacts, asked: ChartSettings) -> Iterator[PreflightFinding]:
    if "cni" not in asked.parts:
        return
    empty = [node for node, cidrs in facts.nodes.items() if not cidrs]
    if empty and "nodeipam" not in asked.controllers:
        action = "add nodeipam to controller.parts, or let the cluster's controller assign ranges"
        yield PreflightFinding("fault", f"Node {empty[0]}", "has no pod range (spec.podCIDRs)", action)
    if facts.nodes and not empty and "nodeipam" in asked.controllers:
        text = "every node has a pod range, so the cluster's own controller assigns them"
        yield PreflightFinding("warning", "controller.parts", text, "leave nodeipam out")
    for node, cidrs in facts.nodes.items():
        for cidr in cidrs:
            if asked.cluster_cidrs and not any(_contains(network, cidr) for network in asked.cluster_cidrs):
                text = f"the pod range {cidr} is outside of clusterCIDRs ({', '.join(asked.cluster_cidrs)})"
                yield PreflightFinding("fault", f"Node {node}", text, "set clusterCIDRs to the cluster's pod network")
                return


def _contains(network: str, cidr: str) -> bool:
    whole, inner = ip_network(network), ip_network(cidr)
    first, last = int(whole.network_address), int(whole.broadcast_address)
    return whole.version == inner.version and first <= int(inner.network_address) <= last


def _service_ranges(facts: ClusterFacts, asked: ChartSettings) -> Iterator[PreflightFinding]:
    address = facts.kubernetes_ip
    if not address or not asked.service_cidrs:
        return
    if not any(ip_address(address) in ip_network(network) for network in asked.service_cidrs):
        text = f"the Service kubernetes has {address}, outside of {', '.join(asked.service_cidrs)}"
        action = "set it to the range of the API server (--service-cluster-ip-range)"
        yield PreflightFinding("fault", "serviceCIDRs", text, action)
    if asked.dns_ip and not any(ip_address(asked.dns_ip) in ip_network(network) for network in asked.service_cidrs):
        text = f"{asked.dns_ip} is outside of serviceCIDRs ({', '.join(asked.service_cidrs)})"
        yield PreflightFinding("fault", "dns.clusterIP", text, "choose an address of the range")


CHECKS: tuple[Callable[[ClusterFacts, ChartSettings], Iterator[PreflightFinding]], ...] = (
    _version, _networks, _dns, _pod_ranges, _service_ranges,
)  # fmt: skip
