"""The views of nodes that ``podwire why`` needs, from the configuration of their agents."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from podwire.agent.config import AgentConfig, overlay
from podwire.errors import ApiError, ClusterError, ConfigError, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS, SERVICECIDRS
from podwire.model.node import Node
from podwire.why.nodes import NodeAccess

_SETTINGS = "kube-system/podwire-config"


async def cluster_settings(client: Client) -> Mapping[str, str]:
    """The settings of a cluster; empty when it has none.

    Raises: ApiError, ApiUnreachable.
    """
    namespace, _, name = _SETTINGS.partition("/")
    try:
        settings = await client.get(CONFIGMAPS, name, namespace)
    except NotFound:
        return {}
    return dict(settings.get("data") or {})


async def service_ranges(client: Client) -> tuple[str, ...]:
    """The Service ranges of a cluster; empty when its API does not serve them.

    Raises: ApiUnreachable.
    """
    try:
        ranges = await client.list(SERVICECIDRS)
    except ApiError:
        return ()
    return tuple(cidr for service_cidr in ranges.items for cidr in service_cidr.get("spec", {}).get("cidrs", ()))


def node_access(
    config: AgentConfig, settings: Mapping[str, str], *, readable: bool = True, netns: Path | None = None
) -> NodeAccess:
    """A node by the configuration of its agent and the cluster's settings.

    If the cluster's settings are wrong, those of the agent's own file are used.
    """
    source, problem = f"ConfigMap {config.settings}", ""
    try:
        merged = overlay(config.routing, settings, source, config.proxy, config.policy)
    except ConfigError as failure:
        problem = f"{failure}; the agents keep the last good settings, which are not known here"
        merged = overlay(config.routing, {}, source, config.proxy, config.policy)
    further = tuple(map(str, merged.routing.pod_networks.ranges))
    return NodeAccess(
        services=merged.proxy.facts(config.node_name, (*config.cluster_cidrs, *further), config.service_cidrs),
        service_mode=merged.proxy.mode,
        metrics=merged.proxy.metrics,
        policies=merged.policy,
        cluster_cidrs=config.cluster_cidrs,
        routing=merged.routing,
        routing_dir=str(Path(config.run_dir, "routing")),
        tunnel_ports=tuple(merged.routing.udp_ports()),
        parts=frozenset(config.parts),
        agent_socket=config.agent_socket,
        readable=readable,
        netns=netns,
        problem=problem,
    )


def this_node(config: AgentConfig, settings: Mapping[str, str]) -> Callable[[str], NodeAccess]:
    """The node of this process; only its kernel can be read."""

    def access(name: str) -> NodeAccess:
        if name != config.node_name:
            problem = f"node {name} decides, and this is {config.node_name}; run this command there, or use --planned"
            raise ClusterError(problem)
        return node_access(config, settings)

    return access


def remote_nodes(
    nodes: Iterable[Node], service_cidrs: tuple[str, ...], settings: Mapping[str, str]
) -> Callable[[str], NodeAccess]:
    """Nodes of which only the objects are known: the pod ranges of all nodes are the pod network."""
    ranges = tuple(cidr for node in nodes for cidr in node.pod_cidrs)

    def access(name: str) -> NodeAccess:
        config = AgentConfig(node_name=name, cluster_cidrs=ranges, service_cidrs=service_cidrs)
        return node_access(config, settings, readable=False)

    return access
