"""Schedules nodes into waves: a canary, then groups that are upgraded at the same time. Pure.

Rules, the first ones before the later ones:

1. The first wave is the canary: one ready worker, the node with the fewest pods of budgets.
2. No wave has more nodes than ``max_unavailable``.
3. No wave has more pods of a PodDisruptionBudget than the budget allows to be disrupted. A node that exceeds a budget
   by itself is a wave of its own, and :func:`overfull` names it.
4. ``serial`` finishes a zone before the next; ``spread`` takes nodes of all zones in turn, so that no zone loses more
   than its share.
5. Nodes of the control plane come after the workers, one at a time; nodes that are not ready come last.

First fit over the open waves: 1,000 nodes in 100 waves take some 10 ms.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Literal

from podwire.errors import ConfigError
from podwire.model.meta import Fact
from podwire.upgrade.plan.values import UpgradeFinding, Wave


class WaveNode(Fact, frozen=True, kw_only=True):
    """A node that is to be scheduled."""

    name: str
    zone: str = ""
    ready: bool = True
    control_plane: bool = False
    pods: Mapping[str, int] = {}
    """By budget the number of its pods on this node."""


class WaveOptions(Fact, frozen=True, kw_only=True):
    """How nodes are scheduled."""

    max_unavailable: int | str = "10%"
    """Nodes of a wave: a number, or a percentage of all nodes, rounded down, at least 1."""
    zones: Literal["serial", "spread"] = "serial"
    canary: str = ""
    """The name of the canary; empty: chosen."""


def wave_size(options: WaveOptions, nodes: int) -> int:
    """The largest number of nodes of a wave.

    Raises: ConfigError for a text that is neither a positive number nor a percentage.
    """
    text = str(options.max_unavailable)
    digits = text.removesuffix("%")
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) <= (100 if text.endswith("%") else 10**6):
        problem = f"expected a number of nodes such as 3, or a percentage such as 10%, got {text!r}"
        raise ConfigError("--max-unavailable", "", problem)
    return max(1, nodes * int(digits) // 100) if text.endswith("%") else int(digits)


def schedule(nodes: Sequence[WaveNode], allowed: Mapping[str, int], options: WaveOptions) -> tuple[Wave, ...]:
    """The waves in their order; ``allowed`` has by budget how many of its pods may be disrupted at once.

    Raises: ConfigError when the named canary is not among the nodes, or the options are wrong.
    """
    size = wave_size(options, len(nodes))
    if not nodes:
        return ()
    canary = _canary(nodes, options)
    rest = [node for node in nodes if node is not canary]
    workers = [node for node in rest if node.ready and not node.control_plane]
    waves = [[canary]]
    groups = _by_zone(workers) if options.zones == "serial" else [list(_in_turn(workers))]
    for group in groups:
        waves += _filled(group, allowed, size)
    waves += [[node] for node in rest if node.ready and node.control_plane]
    for group in _by_zone([node for node in rest if not node.ready]):
        waves += _filled(group, allowed, size)
    return tuple(_wave(wave) for wave in waves)


def overfull(nodes: Iterable[WaveNode], allowed: Mapping[str, int]) -> tuple[UpgradeFinding, ...]:
    """A warning for each budget of which one node has more pods than may be disrupted."""
    worst: dict[str, tuple[int, str]] = {}
    for node in nodes:
        for budget, count in node.pods.items():
            if count > allowed.get(budget, 0):
                worst[budget] = max(worst.get(budget, (0, "")), (count, node.name))
    return tuple(
        UpgradeFinding(
            severity="warning",
            object=f"PodDisruptionBudget {budget}",
            field="status.disruptionsAllowed",
            message=f"node {name} has {count} of its pods and {allowed.get(budget, 0)} may be disrupted",
            remedy="spread the pods over more nodes, or expect that they lose their network together",
        )
        for budget, (count, name) in sorted(worst.items())
    )


def _canary(nodes: Sequence[WaveNode], options: WaveOptions) -> WaveNode:
    if options.canary:
        for node in nodes:
            if node.name == options.canary:
                return node
        raise ConfigError("--canary", "", f"expected a node on which the component runs, got {options.canary!r}")
    return min(nodes, key=lambda node: (not node.ready, node.control_plane, sum(node.pods.values()), node.name))


def _by_zone(nodes: Iterable[WaveNode]) -> list[list[WaveNode]]:
    zones: dict[str, list[WaveNode]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: (node.zone, node.name)):
        zones[node.zone].append(node)
    return list(zones.values())


def _in_turn(nodes: Iterable[WaveNode]) -> Iterator[WaveNode]:
    for row in zip_longest(*_by_zone(nodes)):
        yield from (node for node in row if node is not None)


def _filled(nodes: Iterable[WaveNode], allowed: Mapping[str, int], size: int) -> list[list[WaveNode]]:
    waves: list[list[WaveNode]] = []
    used: list[dict[str, int]] = []
    """By wave the pods of each budget; an empty table closes the wave of a node that exceeds a budget by itself."""
    opened = 0
    for node in nodes:
        if not _fits(node, {}, allowed):
            waves.append([node])
            used.append({})
            continue
        for number in range(opened, len(waves)):
            if len(waves[number]) < size and used[number] and _fits(node, used[number], allowed):
                break
        else:
            number = len(waves)
            waves.append([])
            used.append({"": 0})
        waves[number].append(node)
        for budget, count in node.pods.items():
            used[number][budget] = used[number].get(budget, 0) + count
        while opened < len(waves) and (len(waves[opened]) >= size or not used[opened]):
            opened += 1
    return waves


def _fits(node: WaveNode, used: Mapping[str, int], allowed: Mapping[str, int]) -> bool:
    return all(used.get(budget, 0) + count <= allowed.get(budget, 0) for budget, count in node.pods.items())


def _wave(nodes: Sequence[WaveNode]) -> Wave:
    zones = {node.zone for node in nodes}
    return Wave(nodes=tuple(node.name for node in nodes), zone=zones.pop() if len(zones) == 1 else "")
