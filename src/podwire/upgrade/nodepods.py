"""The pods of the commands ``podwire upgrade`` on nodes. Pure.

A pod that reads or writes a node's files and kernel is in the network of the node, with the rights that this needs. A
pod that tries connections is an ordinary pod without rights. Both use one image: that of podwire's agents, or the image
that the command line names on clusters without podwire.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.errors import ConfigError
from podwire.kube.steppod import step_pod
from podwire.model.meta import Fact

Json = dict[str, Any]
AGENTS = "podwire-agent"
NODE_STEP = "podwire-upgrade-node"
"""The name and label of pods that read or change a node."""
_CAPABILITIES = ("NET_ADMIN", "NET_RAW")
SUFFIXES = (".conflist", ".conf", ".json")
"""The files that a container runtime reads as network configurations."""
HOLD = "00-0-podwire-upgrade"
"""The name, without the suffix, of the copy that holds a configuration (:mod:`podwire.upgrade.apply.hold`); it sorts
before those of known networks, that of Multus (``00-multus.conf``) included."""
CONF_DIR = "/host/net.d"
BIN_DIR = "/host/bin"
"""The directories of the runtime inside of these pods."""


class ProbeImage(Fact, frozen=True, kw_only=True):
    """The image of the pods, and how to run podwire in it; ``command`` empty: the image's entry point."""

    image: str
    command: tuple[str, ...] = ()
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()


class NodeFolders(Fact, frozen=True, kw_only=True):
    """The directories of the container runtime on the nodes."""

    conf_dir: str = "/etc/cni/net.d"
    bin_dir: str = "/opt/cni/bin"


def image_of(agents: Json | None, named: str) -> ProbeImage:
    """The image of the pods: ``named`` on the command line, otherwise that of the agents.

    Raises: ConfigError when there is neither.
    """
    if named:
        return ProbeImage(image=named)
    if agents is None:
        problem = "the cluster has no podwire agents; name an image with podwire that the nodes can pull"
        raise ConfigError("--node-image", "", problem)
    template = agents["spec"]["template"]["spec"]
    container = next(item for item in template["containers"] if item["name"] == "agent")
    return ProbeImage(
        image=container["image"],
        command=tuple(container.get("command") or ()),
        pull_policy=container.get("imagePullPolicy") or "",
        pull_secrets=tuple(secret["name"] for secret in template.get("imagePullSecrets") or ()),
    )


def folders_of(agents: Json | None, folders: NodeFolders) -> NodeFolders:
    """The directories as podwire's agents mount them, where there are agents; otherwise ``folders``."""
    if agents is None:
        return folders
    volumes = agents["spec"]["template"]["spec"].get("volumes") or ()
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}
    return NodeFolders(conf_dir=paths.get("cni-conf", folders.conf_dir), bin_dir=paths.get("cni-bin", folders.bin_dir))


def node_pod(image: ProbeImage, node: str, folders: NodeFolders, arguments: Sequence[str]) -> Json:
    """The pod that runs ``podwire upgrade node`` with arguments in the network of a node."""
    container = _container(image, "node", ["upgrade", "node", *arguments])
    container["securityContext"] = {
        "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], "add": list(_CAPABILITIES)},
    }
    container["volumeMounts"] = [
        {"name": "cni-conf", "mountPath": CONF_DIR},
        {"name": "cni-bin", "mountPath": BIN_DIR},
        {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
    ]
    spec = {
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": "cni-conf", "hostPath": {"path": folders.conf_dir, "type": "DirectoryOrCreate"}},
            {"name": "cni-bin", "hostPath": {"path": folders.bin_dir, "type": "DirectoryOrCreate"}},
            {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
        ],
    }
    return step_pod(f"{NODE_STEP}-{node}", node, {"app.kubernetes.io/name": NODE_STEP}, _with_secrets(image, spec))


def plain_pod(image: ProbeImage, name: str, node: str, labels: Mapping[str, str], arguments: Sequence[str]) -> Json:
    """An ordinary pod on a node that runs a podwire command; without rights."""
    spec = {"tolerations": [{"operator": "Exists"}], "containers": [_container(image, "probe", list(arguments))]}
    return step_pod(name, node, labels, _with_secrets(image, spec))


def _container(image: ProbeImage, name: str, arguments: list[str]) -> Json:
    container: Json = {"name": name, "image": image.image, "args": arguments}
    if image.command:
        container["command"] = list(image.command)
    if image.pull_policy:
        container["imagePullPolicy"] = image.pull_policy
    return container


def _with_secrets(image: ProbeImage, spec: Json) -> Json:
    if not image.pull_secrets:
        return spec
    return spec | {"imagePullSecrets": [{"name": name} for name in image.pull_secrets]}
