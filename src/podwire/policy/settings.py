"""The policy settings: the ``policy`` section of an agent's configuration, or of that of a local cluster (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError

ENCAPSULATION_PORTS = (4789, 6081, 8472)
"""Where tunnels listen by default: VXLAN, Geneve, and VXLAN as Linux and Flannel have it."""


class PolicySettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What the API leaves open, and what is to become of packets that it does not speak of.

    ``own_node_egress``: whether pods reach their own node whatever NetworkPolicies say. ``established``: ``strict``
    judges every packet of a connection by the policies of the moment, ``keep`` lets a connection that was allowed when
    it began live on. ``encapsulation``: ``drop`` lets pods send VXLAN, Geneve, IP in IP and GRE to pods alone, because
    a node that unpacks such a packet would let in what is inside, past all policies; ``allow`` leaves that to policies.
    """

    own_node_egress: bool = True
    established: Literal["strict", "keep"] = "strict"
    encapsulation: Literal["drop", "allow"] = "drop"


def parse_settings(document: Mapping[str, Any], source: str = "configuration", path: str = "policy") -> PolicySettings:
    """The settings of a configuration section, which is at ``path`` in ``source``.

    Raises: ConfigError with the field that is wrong.
    """
    try:
        return msgspec.convert(document, PolicySettings)
    except msgspec.ValidationError as failure:
        problem, _, where = str(failure).partition(" - at `$")
        field = ".".join(filter(None, (path, where.rstrip("`").lstrip("."))))
        raise ConfigError(source, field, problem[:1].lower() + problem[1:]) from failure


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
