"""The policy settings: the ``policy`` section of an agent's configuration, or of that of a local cluster (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError
from podwire.model.document import convert
from podwire.policy.marks import MARKS, check_marks
from podwire.policy.registry import AUTO, DATAPLANES

ENCAPSULATION_PORTS = (4789, 6081, 8472)
"""The default UDP ports of tunnels: VXLAN, Geneve, and VXLAN of Linux and Flannel."""


class LogSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Which packets are logged; a policy's annotation ``podwire.io/log`` overrides ``drops`` and ``allows``.

    ``drops``: packets that policies drop, or would drop if they were not in audit. ``allows``: the first packets of
    connections that a rule allows. ``rate`` and ``burst``: packets per second that the kernel reports for each rule,
    and lines per second that an agent writes in total. ``group``: the netlink group (nflog) in each node's network
    namespace; 0: the kernel reports no packets.
    """

    drops: bool = True
    allows: bool = False
    rate: int = 10
    burst: int = 50
    group: int = 9440


SILENT = LogSettings(group=0)
"""Nothing is logged."""


class PolicySettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """How policies are enforced, and how podwire behaves where the API does not define it.

    ``mode``: the data plane, a name of :mod:`podwire.policy.registry`, or ``auto`` for the first data plane that the
    node supports. ``marks``: the bits of packet marks that the data plane ``iptables`` may use. ``own_node_egress``:
    whether pods reach their own node independently of NetworkPolicies. ``established``: ``strict`` checks every packet
    of a connection with the current policies; ``keep`` accepts later packets of a connection that was allowed at its
    start. ``encapsulation``: ``drop`` lets pods send VXLAN, Geneve, IP in IP and GRE only to pods, because a node that
    decapsulates such a packet would accept the inner packet without any policy; ``allow`` leaves the decision to
    policies. ``bridge_netfilter``, for pods that other CNI plugins made ports of a bridge: ``check`` reports bridges
    where the IP hooks do not see the packets between ports, ``set`` turns netfilter on for those bridges and loads the
    module br_netfilter. ``log``: what is logged, and how much.
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

    Raises: ConfigError that names the invalid field.
    """
    settings = convert(document, PolicySettings, source, path)
    check_settings(settings, source, path)
    return settings


def check_settings(settings: PolicySettings, source: str, path: str = "policy") -> None:
    """Checks the values that their types do not restrict.

    Raises: ConfigError that names the invalid field.
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
    """The settings that differ from the defaults, and the keys in ``named``, as keys of a cluster's ConfigMap."""
    own, default = msgspec.to_builtins(settings), msgspec.to_builtins(PolicySettings())
    values = {f"policy.{field}": value for field, value in own.items()}
    defaults = {f"policy.{field}": value for field, value in default.items()}
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in values.items()
        if value != defaults[key] or key in named
    }
