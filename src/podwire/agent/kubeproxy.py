"""The agent that replaces kube-proxy: a Service proxy and nothing else, by kube-proxy's own configuration file."""

import msgspec

from podwire.agent.config import AgentConfig
from podwire.proxy import kubeproxyconfig


class Replacement(msgspec.Struct, frozen=True):
    """The configuration of the agent, and the fields of the file that mean nothing to it."""

    config: AgentConfig
    without_meaning: tuple[str, ...]


def parse(text: str, source: str, hostname: str) -> Replacement:
    """The agent that a file of kube-proxy asks for; ``hostname`` names the node where the file does not.

    Raises: ConfigError naming the source and the field.
    """
    found = kubeproxyconfig.parse(text, source, hostname)
    config = AgentConfig(
        node_name=found.node_name,
        parts=("proxy",),
        kubeconfig=found.kubeconfig,
        cluster_cidrs=found.cluster_cidrs,
        settings="",
        proxy=found.proxy,
    )
    return Replacement(config, found.without_meaning)
