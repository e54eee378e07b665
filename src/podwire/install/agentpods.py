"""Pods that run a command of podwire on a node, made from the template of the agents. Pure.

Such a pod has the agents' image, configuration, mounts and rights. So the nodes of a cluster need no program of
podwire's, and the command sees the node as the agent does.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from podwire.cluster.names import NO_NODE
from podwire.errors import ConfigError
from podwire.kube.steppod import step_pod

Json = dict[str, Any]
"""An object in its API form."""

AGENTS = "podwire-agent"
"""The name of the agents' DaemonSet, and of its ConfigMap."""
CONFIG_FILE = "/etc/podwire/agent.yaml"
"""The agent's configuration in its pod."""
_FIELDS = ("name", "image", "imagePullPolicy", "command", "env", "securityContext", "volumeMounts")
"""The fields of the agent's container that such a pod has, too."""


def agent_pod(agents: Json, name: str, node: str, arguments: Sequence[str]) -> Json:
    """The pod ``NAME-NODE`` that runs podwire with these arguments and the agent's configuration on a node.

    Raises: ConfigError when the DaemonSet has no container ``agent``.
    """
    spec = deepcopy(agents["spec"]["template"]["spec"])
    container = next((item for item in spec["containers"] if item["name"] == "agent"), None)
    if container is None:
        raise ConfigError(f"DaemonSet {AGENTS}", "spec.template.spec.containers", "expected a container named agent")
    container = {key: value for key, value in container.items() if key in _FIELDS}
    container["args"] = [*arguments, "--config", CONFIG_FILE]
    for field in ("nodeSelector", "affinity", "initContainers"):
        spec.pop(field, None)
    return step_pod(f"{name}-{node}", node, {"app.kubernetes.io/name": name}, spec | {"containers": [container]})


def without_nodes() -> Json:
    """The patch that takes the agents off all nodes and leaves their template for the pods of this module."""
    return {"spec": {"template": {"spec": {"nodeSelector": {NO_NODE: "never"}}}}}
