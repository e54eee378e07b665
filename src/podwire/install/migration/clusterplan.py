"""What a migration finds in the API, and which objects it makes and changes there. Pure.

The old network's DaemonSets get a node affinity that excludes nodes with the label :data:`LABEL`, and podwire's agents
have a node selector for the label. So one label, written by the step ``select`` and removed by ``release``, ends the
pods of one network on the node and starts those of the other.

Steps on a node run in a pod made from the template of the agents: the same image, configuration, mounts and rights.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from podwire.cluster.names import NODE_MIGRATED
from podwire.errors import ConfigError
from podwire.flows.messages import PORT
from podwire.install.agentpods import AGENTS, agent_pod

Json = dict[str, Any]
"""An object in its API form."""

LABEL = NODE_MIGRATED
"""Node label: ``true`` where podwire is the network."""
SELECTED = "true"
OLD_NAMES = ("kube-proxy", "kube-flannel", "kube-flannel-ds")
"""DaemonSets of the old network that are known by their names."""
FLOWS = "podwire-flows"
_STEP_POD = "podwire-migrate"
_HOST_LOCAL = {"name": "host-local", "hostPath": {"path": "/var/lib/cni", "type": "DirectoryOrCreate"}}


def old_daemonsets(items: Iterable[Json], named: Sequence[str]) -> list[Json]:
    """The DaemonSets of the old network: those with known names, and those that ``named`` lists as NAMESPACE/NAME.

    Raises: ConfigError for a name without a DaemonSet.
    """
    by_key = {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in items}
    for key in named:
        if key not in by_key:
            raise ConfigError("--daemonset", "", f"{key!r}: expected NAMESPACE/NAME of a DaemonSet of the cluster")
    known = [key for key in by_key if key.partition("/")[2] in OLD_NAMES]
    return [by_key[key] for key in sorted({*known, *named})]


def check_agents(agents: Json) -> None:
    """Refuses agents that would run on nodes of the old network.

    Raises: ConfigError naming the field of the DaemonSet.
    """
    selector = agents["spec"]["template"]["spec"].get("nodeSelector") or {}
    if selector.get(LABEL) != SELECTED:
        todo = (
            f"install the chart with --set-string 'agent.nodeSelector.{LABEL.replace('.', chr(92) + '.')}={SELECTED}'"
        )
        field = "spec.template.spec.nodeSelector"
        raise ConfigError(f"DaemonSet {AGENTS}", field, f"expected {LABEL}: {SELECTED!r}; {todo}")


def excluded(daemonset: Json, *, exclude: bool) -> Json | None:
    """The patch that adds the node affinity to a DaemonSet or removes it; None when nothing is to change."""
    affinity = deepcopy((daemonset["spec"]["template"]["spec"].get("affinity")) or {})
    node = affinity.setdefault("nodeAffinity", {})
    required = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = [_without_label(term) for term in required.get("nodeSelectorTerms") or ()]
    if exclude:
        rule = {"key": LABEL, "operator": "NotIn", "values": [SELECTED]}
        terms = [term | {"matchExpressions": [*term.get("matchExpressions", ()), rule]} for term in terms or [Json()]]
    else:
        terms = [term for term in terms if term]
    required["nodeSelectorTerms"] = terms
    if not terms:
        del node["requiredDuringSchedulingIgnoredDuringExecution"]
    new = {key: value for key, value in affinity.items() if value} or None
    if new == (daemonset["spec"]["template"]["spec"].get("affinity") or None):
        return None
    return {"spec": {"template": {"spec": {"affinity": new}}}}


def _without_label(term: Mapping[str, Any]) -> Json:
    rules = [rule for rule in term.get("matchExpressions") or () if rule.get("key") != LABEL]
    remaining = {key: value for key, value in term.items() if key != "matchExpressions"}
    return remaining | ({"matchExpressions": rules} if rules else {})


def selected(node: Json) -> bool:
    """Whether podwire is the network of a node, by its label."""
    return (node["metadata"].get("labels") or {}).get(LABEL) == SELECTED


def step_pod(agents: Json, node: str, step: str, arguments: Sequence[str]) -> Json:
    """The pod of a step on a node."""
    pod = agent_pod(agents, _STEP_POD, node, ["migrate", "node", step, *arguments])
    spec: Json = pod["spec"]
    (container,) = spec["containers"]
    mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"] != "/var/lib/cni"]
    container["volumeMounts"] = [*mounts, {"name": "host-local", "mountPath": "/var/lib/cni"}]
    volumes = [volume for volume in spec["volumes"] if volume["name"] != "host-local"]
    spec["volumes"] = [*volumes, _HOST_LOCAL]
    return pod


def server_pod(agents: Json, node: str) -> Json:
    """The pod of a node that answers the numbered flows."""
    return _flow_pod(agents, node, "server", ["serve"])


def sender_pod(agents: Json, node: str, targets: Sequence[str]) -> Json:
    """The pod of a node that sends numbered flows to targets."""
    return _flow_pod(agents, node, "sender", ["send", *targets])


def flow_service() -> Json:
    """The Service whose endpoints are the servers of all nodes."""
    ports = [{"name": name.lower(), "port": PORT, "protocol": name} for name in ("TCP", "UDP")]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": FLOWS, "labels": {"app.kubernetes.io/name": FLOWS}},
        "spec": {"selector": {"app.kubernetes.io/name": FLOWS, "role": "server"}, "ports": ports},
    }


def _flow_pod(agents: Json, node: str, role: str, arguments: Sequence[str]) -> Json:
    template = agents["spec"]["template"]["spec"]
    agent = next(item for item in template["containers"] if item["name"] == "agent")
    container = {key: agent[key] for key in ("image", "imagePullPolicy", "command") if key in agent}
    container |= {"name": role, "args": ["flows", *arguments]}
    if role == "server":
        container["readinessProbe"] = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
    spec: Json = {
        "nodeName": node,
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    if "imagePullSecrets" in template:
        spec["imagePullSecrets"] = template["imagePullSecrets"]
    return _pod(f"{FLOWS}-{role}-{node}", {"app.kubernetes.io/name": FLOWS, "role": role}, spec)


def _pod(name: str, labels: Mapping[str, str], spec: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels)}, "spec": spec}
