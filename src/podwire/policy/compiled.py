"""Policies in the form in which they are evaluated: selectors as numbers, ports as ranges (pure)."""

import msgspec

from podwire.model.pod import ContainerPort
from podwire.model.policy import IPBlock
from podwire.policy.ports import EVERYTHING, Selection, selection, union
from podwire.policy.selectors import SelectorIndex

NamedPort = tuple[str, str, int]
"""Name, protocol and number, as a pod declares it."""


class CompiledRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of one policy, compiled for matching."""

    tier: str
    """Admin, Namespace or Baseline."""
    policy: str
    place: int
    action: str = "Accept"
    everyone: bool = False
    """Whether the rule matches every peer."""
    selectors: frozenset[int] = frozenset()
    """Numbers of selectors of pods."""
    blocks: tuple[IPBlock, ...] = ()
    nodes: tuple[str, ...] = ()
    """Selectors of nodes in their JSON form."""
    ports: Selection = EVERYTHING
    names: tuple[tuple[str, str], ...] = ()
    """Named ports, each with its protocol (empty: any), in addition to ``ports``."""
    audit: bool = False
    """Whether the policy is in audit, and so not in force."""
    log: str = ""
    """The log setting of the policy, as in :class:`~podwire.policy.ports.Ruling`."""

    @property
    def only_selectors(self) -> bool:
        """Whether nothing but the selectors of pods decides which peers the rule matches."""
        return not (self.everyone or self.blocks or self.nodes)

    def ports_for(self, named: tuple[NamedPort, ...]) -> Selection:
        """The ports of the rule for a destination with these named ports."""
        if not self.names:
            return self.ports
        resolved = [
            selection({protocol: ((number, number),)})
            for port_name, wanted_protocol in self.names
            for name, protocol, number in named
            if name == port_name and wanted_protocol in ("", protocol)
        ]
        return union((self.ports, *resolved))


class CompiledPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of either kind."""

    key: str
    """``namespace/name``, or the name of a cluster policy."""
    tier: str
    """Admin, Namespace or Baseline."""
    priority: int = 0
    subject: int
    """The number of the selector of the pods that the policy selects."""
    selects: str = ""
    """That selector in its JSON form."""
    rules: dict[str, tuple[CompiledRule, ...]]
    """By direction; a NetworkPolicy isolates in each direction that is a key, also without rules."""
    names: dict[str, frozenset[str]]
    """The named ports of the rules, by direction."""
    audit: bool = False
    """Whether the policy is in audit, and so not in force."""
    log: str = ""
    """Which packets are logged: ``all``, ``drops`` or ``none``; empty: the node's settings decide."""
    selector_numbers: tuple[int, ...] = ()

    def concerns(self, direction: str) -> bool:
        """Whether the policy changes anything for its pods in a direction."""
        return direction in self.rules and (self.tier == "Namespace" or bool(self.rules[direction]))

    def in_direction(self, direction: str) -> tuple[object, ...]:
        """All that the policy means for its pods in a direction."""
        return self.rules[direction], self.tier, self.priority, self.audit, self.log

    def release(self, index: SelectorIndex) -> None:
        """Releases the selectors of the policy."""
        for number in self.selector_numbers:
            index.release(number)


def named_ports(ports: tuple[ContainerPort, ...]) -> tuple[NamedPort, ...]:
    """The named ports of a pod."""
    return tuple((port.name, port.protocol or "TCP", port.container_port) for port in ports if port.name)
