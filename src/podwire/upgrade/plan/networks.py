"""What to know about the upgrade of each network of pods. Pure.

Sources: the upgrade guides of Antrea, Calico and Cilium, and their issues tigera/operator 5110, cilium/cilium 27344 and
14128; the documentation of flannel.
"""

from collections.abc import Iterator, Mapping

from podwire.upgrade.inventory.components import NETWORKS, Components
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.values import Severity, UpgradeFinding
from podwire.upgrade.plan.versions import minors_between, parse_version

RISKS: Mapping[str, str] = {
    "podwire": "the data path stays in the kernel while the agent restarts; no packet of a pod is lost",
    "flannel": "routes and tunnels stay while flanneld restarts; new pods wait until the agent of their node runs",
    "calico": "established connections go on; Felix reads its rules again, and new pods wait for it",
    "canal": "established connections go on; new pods wait for the agent of their node",
    "cilium": "the agent compiles its programs again; changed defaults of the chart can move the data path",
    "weave": "the router in user space ends, so that packets between nodes are lost until it runs again",
    "antrea": "the agent reconnects to Open vSwitch, whose flows stay; new pods wait for the agent",
    "kindnet": "routes stay; new pods wait for the agent",
    "aws-node": "addresses of pods stay; new pods wait for the agent",
}
"""What traffic an upgrade of the network may touch, by network."""
UNKNOWN_RISK = "not known for this network; watch the flows of the canary node"

_REQUIREMENTS: Mapping[str, tuple[str, str]] = {
    "calico": (
        "a new Typha refuses agents that are too old, so agents must not be left behind",
        "upgrade calico-node on all nodes in one run, and keep operator and node of the same version",
    ),
    "cilium": (
        "defaults of the Helm chart change between minor versions, and another configuration in /etc/cni/net.d can win "
        "while the plugin is replaced",
        "set upgradeCompatibility in the values of the chart, and go one minor version at a time",
    ),
    "antrea": (
        "the controller must be upgraded first, and agents may be at most 4 minor versions older; the manifest alone "
        "does not guarantee that",
        "the plan upgrades antrea-controller before antrea-agent",
    ),
}
"""What an upgrade needs to respect, and what to do."""

_STEPS: Mapping[str, tuple[str, int, Severity]] = {
    "antrea-controller": ("antrea-agent", 4, "blocker"),
    "cilium": ("cilium", 1, "warning"),
}
"""By the component with a new image: the component whose present version counts, and by how many minor versions the new
one may be newer."""


def check_networks(components: Components, inventory: Inventory, targets: Targets) -> Iterator[UpgradeFinding]:
    """Findings about the networks themselves, and about versions that are too far apart."""
    yield from _versions(components, targets)
    if not components.networks and not inventory.nodes:
        return
    if not components.networks:
        message = "no known network of pods runs as a DaemonSet"
        yield UpgradeFinding(
            severity="info", object="cluster", message=message, remedy="its upgrade is not part of the plan"
        )
    full = [name for name in components.networks if name not in ("aws-node", "gke-dataplane")]
    if len(full) > 1:
        yield UpgradeFinding(
            severity="warning",
            object="cluster",
            message=f"several networks run: {', '.join(full)}",
            remedy="make sure that each node has the configuration of one of them first in /etc/cni/net.d",
        )
    for name in components.networks:
        if name in _REQUIREMENTS:
            message, remedy = _REQUIREMENTS[name]
            first = next((c.title for c in components.components if c.name in NETWORKS[name]), name)
            yield UpgradeFinding(severity="info", object=first, message=message, remedy=remedy)


def _versions(components: Components, targets: Targets) -> Iterator[UpgradeFinding]:
    for name, (counted, most, severity) in _STEPS.items():
        image, present = targets.chosen(name), components.component(counted)
        new = parse_version(image.tag) if image is not None else None
        old = parse_version(present.version) if present is not None else None
        if present is not None and new is not None and old is not None and minors_between(old, new) > most:
            message = (
                f"{counted} {old} is {minors_between(old, new)} minor versions older than {name} {new}, not {most}"
            )
            remedy = "go through a version in between"
            yield UpgradeFinding(severity=severity, object=present.title, message=message, remedy=remedy)
