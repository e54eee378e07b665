"""The agent that replaces kube-proxy: only a Service proxy, configured by kube-proxy's own configuration file."""

import msgspec

from podwire.agent.config import AgentConfig
from podwire.proxy import kubeproxyconfig


class Replacement(msgspec.Struct, frozen=True):
    """The configuration of the agent, and the fields of the file that have no effect on it."""

    config: AgentConfig
    without_meaning: tuple[str, ...]


def parse(text: str, source: str, hostname: str) -> Replacement:
    """The agent's configuration from a file of kube-proxy; ``hostname`` is the node's name if the file has none.

    Raises: ConfigError naming the source and the field.
    """
    settings = kubeproxyconfig.parse(text, source, hostname)
    config = AgentConfig(
        node_name=settings.node_name,
        parts=("proxy",),
        kubeconfig=settings.kubeconfig,
        cluster_cidrs=settings.cluster_cidrs,
        settings="",
        proxy=settings.proxy,
    )
    return Replacement(config, settings.without_meaning)
