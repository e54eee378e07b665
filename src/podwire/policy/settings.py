"""The policy settings: the ``policy`` section of an agent's configuration, or of that of a local cluster (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError
from podwire.model.document import convert
from podwire.policy.marks import MARKS, check_marks
from podwire.policy.registry import AUTO, DATAPLANES

ENCAPSULATION_PORTS = (4789, 6081, 8472)
"""Where tunnels listen by default: VXLAN, Geneve, and VXLAN as Linux and Flannel have it."""


class LogSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What of policies is logged; a policy's annotation ``podwire.io/log`` wins over ``drops`` and ``allows``.

    ``drops``: what policies drop, or would drop if they were not in audit. ``allows``: the first packets of connections
    that a rule allows. ``rate`` and ``burst``: packets a second that the kernel tells of each rule, and lines a second
    that an agent writes in all. ``group``: the netlink group (nflog) of each node's network namespace; 0: the kernel
    tells nothing.
    """

    drops: bool = True
    allows: bool = False
    rate: int = 10
    burst: int = 50
    group: int = 9440


SILENT = LogSettings(group=0)
"""Nothing is logged."""


class PolicySettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """How policies are enforced, and what the API leaves open.

    ``mode``: the data plane, a name of :mod:`podwire.policy.registry`, or ``auto`` for the first that the node has.
    ``marks``: the bits of packets' marks that the data plane ``iptables`` may use.
    ``own_node_egress``: whether pods reach their own node whatever NetworkPolicies say. ``established``: ``strict``
    judges every packet of a connection by the policies of the moment, ``keep`` lets a connection that was allowed when
    it began live on. ``encapsulation``: ``drop`` lets pods send VXLAN, Geneve, IP in IP and GRE to pods alone, because
    a node that unpacks such a packet would let in what is inside, past all policies; ``allow`` leaves that to policies.
    ``bridge_netfilter``, where other CNI plugins make pods ports of a bridge: ``check`` says when the kernel does not
    show the packets between them, ``set`` turns that on for those bridges, and loads the module br_netfilter for it.
    ``log``: what is logged, and how much.
    """

    mode: str = AUTO
    marks: int = MARKS
    own_node_egress: bool = True
    established: Literal["strict", "keep"] = "strict"
    encapsulation: Literal["drop", "allow"] = "drop"
    bridge_netfilter: Literal["check", "set"] = "check"
    log: LogSettings = LogSettings()


def parse_settings(document: Mapping[str, Any], source: str = "configuration", path: str = "policy") -> PolicySettings:
    """The settings of a configuration section, which is at ``path`` in ``source``.

    Raises: ConfigError with the field that is wrong.
    """
    made = convert(document, PolicySettings, source, path)
    check_settings(made, source, path)
    return made


def check_settings(settings: PolicySettings, source: str, path: str = "policy") -> None:
    """What types do not say.

    Raises: ConfigError with the field that is wrong.
    """
    DATAPLANES.check(settings.mode, source, f"{path}.mode", besides=(AUTO,))
    try:
        check_marks(settings.marks)
    except ValueError as problem:
        raise ConfigError(source, f"{path}.marks", str(problem)) from problem
    for field, value, low, high in (
        ("rate", settings.log.rate, 1, 100_000),
        ("burst", settings.log.burst, 1, 100_000),
        ("group", settings.log.group, 0, 65535),
    ):
        if not low <= value <= high:
            raise ConfigError(source, f"{path}.log.{field}", f"expected a number from {low} to {high}, got {value}")


def as_keys(settings: PolicySettings, named: Iterable[str] = ()) -> dict[str, str]:
    """The settings that differ from the defaults, and those of ``named``, as keys of a cluster's ConfigMap."""
    own, default = msgspec.to_builtins(settings), msgspec.to_builtins(PolicySettings())
    values = {f"policy.{field}": value for field, value in own.items()}
    defaults = {f"policy.{field}": value for field, value in default.items()}
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in values.items()
        if value != defaults[key] or key in named
    }
