"""The configuration of the local cluster that is the copy: nodes, ranges, data plane, image table. Pure."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

import yaml

from podwire.errors import ConfigError
from podwire.model.meta import Fact
from podwire.upgrade.inventory.components import PARTS_OF_PODWIRE
from podwire.upgrade.inventory.inventory import SYSTEM, Inventory
from podwire.upgrade.plan.kubeproxy import read_configuration
from podwire.upgrade.plan.values import ImageReference, UpgradePlan
from podwire.upgrade.rehearsal.objects import RehearsalSource
from podwire.upgrade.rehearsal.workloads import WorkloadRoles

Json = dict[str, Any]
PROGRAM = "podwire-rehearsal"
"""The image of the pods of the commands."""
DEFAULT_SERVICES = "10.96.0.0/16"
_MODES = ("iptables", "ipvs", "nftables")
_FABRIC4, _FABRIC6 = IPv4Network("10.89.0.0/16"), IPv6Network("fd89::/16")
"""The networks of the nodes of local clusters."""
_LONGEST_PODS = 20
"""The longest prefix of IPv4 whose /24 are enough for the nodes of a copy."""


class OwnCommand(Fact, frozen=True, kw_only=True):
    """How the machine runs this podwire."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = {}


class CopyRanges(Fact, frozen=True, kw_only=True):
    """The ranges of the copy's pods and Services; ``problem``: why those of the cluster cannot be used."""

    pods: tuple[str, ...] = ()
    services: tuple[str, ...] = (DEFAULT_SERVICES,)
    problem: str = ""


def parse_commands(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The programs of texts ``IMAGE=COMMAND``; the words of a command are separated by spaces.

    Raises: ConfigError.
    """
    commands = {}
    for text in texts:
        image, equals, command = text.partition("=")
        if not equals or not image or not command.split():
            raise ConfigError(
                "--command", "", f"expected IMAGE=COMMAND such as coredns/coredns=./coredns, got {text!r}"
            )
        commands[image] = tuple(command.split())
    return commands


def roles_of(plan: UpgradePlan, commands: Mapping[str, Sequence[str]]) -> WorkloadRoles:
    """What the images of the cluster run in the copy."""
    dns = {name for name in names_of(plan, ("coredns",)) if name not in commands}
    return WorkloadRoles(programs=tuple(sorted(commands)), dns=tuple(sorted(dns)))


def names_of(plan: UpgradePlan, components: Sequence[str]) -> tuple[str, ...]:
    """The names of the images of components, before and after the upgrade."""
    images: list[ImageReference] = []
    for component in plan.components:
        if component.name in components:
            images += [item.image for item in component.images]
    for step in plan.steps:
        if step.component in components:
            images += [item.after for item in step.images]
    return tuple(dict.fromkeys(image.name for image in images))


def ranges_of(inventory: Inventory) -> CopyRanges:
    """The ranges in the configuration of kubeadm or of podwire's agents, where a local cluster can have them."""
    pods, services = _known_ranges(inventory)
    if not services:
        return CopyRanges(problem="the ranges of the cluster are not known")
    for text in (*pods, *services):
        try:
            network = ip_network(text)
        except ValueError as failure:
            return CopyRanges(problem=str(failure))
        if _overlaps(network):
            return CopyRanges(problem=f"{text} overlaps the fabric of local clusters")
    if any(isinstance(network := ip_network(text), IPv4Network) and network.prefixlen > _LONGEST_PODS for text in pods):
        return CopyRanges(services=services, problem=f"{', '.join(pods)} has no /24 for each node")
    return CopyRanges(pods=pods, services=services)


def _overlaps(network: IPv4Network | IPv6Network) -> bool:
    """Whether a network has addresses of the fabric of local clusters."""
    if isinstance(network, IPv4Network):
        return network.overlaps(_FABRIC4)
    return network.overlaps(_FABRIC6)


def _known_ranges(inventory: Inventory) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ranges of pods and of Services; empty where they are not known."""
    kubeadm = inventory.config_maps.get(f"{SYSTEM}/kubeadm-config", {}).get("ClusterConfiguration", "")
    if networking := _mapping(_mapping(kubeadm).get("networking")):
        return _ranges(networking.get("podSubnet")), _ranges(networking.get("serviceSubnet"))
    agents = _mapping(inventory.config_maps.get(f"{SYSTEM}/podwire-agent", {}).get("agent.yaml", ""))
    return _ranges(agents.get("clusterCIDRs")), _ranges(agents.get("serviceCIDRs"))


def _mapping(value: object) -> Mapping[str, Any]:
    """A mapping, or that of a YAML text; empty for another value."""
    if isinstance(value, str):
        try:
            value = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _ranges(value: object) -> tuple[str, ...]:
    """The ranges of a list, or of a text with commas."""
    texts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(str(text).strip() for text in texts if str(text).strip())


def configuration(
    source: RehearsalSource, ranges: CopyRanges, nodes: int, own: OwnCommand, commands: Mapping[str, Sequence[str]]
) -> Json:
    """The configuration of the copy, as `podwire up --config` takes it."""
    run: Json = {"command": list(own.command), "env": dict(own.environment)}
    components = (*PARTS_OF_PODWIRE, "coredns") if source.has_own_agents else ("coredns",)
    names = [name for name in names_of(source.plan, components) if name not in commands]
    images = [{"name": name, **run} for name in (PROGRAM, *names)]
    images += [{"name": name, "command": list(command)} for name, command in commands.items()]
    document: Json = {"nodes": nodes, "serviceCIDRs": list(ranges.services), "images": images}
    if ranges.pods:
        document["podCIDRs"] = list(ranges.pods)
    if source.has_own_agents:
        document["network"] = "none"
    elif (mode := read_configuration(source.inventory).mode) in _MODES:
        document["proxy"] = {"mode": mode}
    return document


def known_differences(
    source: RehearsalSource, ranges: CopyRanges, commands: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """In what the copy differs from the cluster, as far as it is known before the copy is made."""
    differences = [f"its ranges are the default: {ranges.problem}"] if ranges.problem else []
    upgraded = [step for step in source.plan.steps if step.action != "manual"]
    for step in upgraded:
        images = [str(image.after.name) for image in step.images if not image.init]
        if step.component in PARTS_OF_PODWIRE and source.has_own_agents:
            differences.append(f"{step.component} is this podwire before and after")
        elif step.component == "coredns" and not any(image in commands for image in images):
            differences.append("CoreDNS is podwire's DNS server, which reads the same Corefile")
        elif images and not any(image in commands for image in images):
            differences.append(f"{step.component} is the stand-in server, whose pods come and go as its own would")
    if not source.has_own_agents:
        differences.append("pods, Services and policies are served by podwire's agents")
    return tuple(differences)
