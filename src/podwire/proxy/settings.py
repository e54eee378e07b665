"""The proxy's settings, read from the ``proxy`` section of an agent's configuration."""

from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.errors import ConfigError
from podwire.proxy.registry import DATAPLANES


class ProxySettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """How Services are programmed on this node.

    ``mode`` is a data plane of the registry. ``masquerade_bit`` (0 to 29) is the bit of the packet mark that asks for
    masquerade; ``masquerade_all`` hides the source of everything that goes to a cluster address.
    """

    mode: str = "nftables"
    masquerade_bit: int = 14
    masquerade_all: bool = False


def parse_settings(document: Mapping[str, Any], source: str = "proxy") -> ProxySettings:
    """The settings of a configuration section.

    Raises: ConfigError with the field that is wrong.
    """
    try:
        settings = msgspec.convert(dict(document), ProxySettings)
    except msgspec.ValidationError as failure:
        raise ConfigError(source, "", str(failure)) from failure
    if settings.mode not in DATAPLANES:
        raise ConfigError(source, "mode", f"unknown data plane {settings.mode!r}: expected {', '.join(DATAPLANES)}")
    if not 0 <= settings.masquerade_bit <= 29:
        raise ConfigError(source, "masqueradeBit", f"{settings.masquerade_bit} is not between 0 and 29")
    return settings
