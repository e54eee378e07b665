"""The proxy's settings, read from the ``proxy`` section of an agent's configuration."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from podwire.errors import ConfigError
from podwire.proxy.registry import DATAPLANES


class ProxySettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """How Services are programmed on this node.

    ``mode`` is a data plane of the registry. ``masquerade_bit`` (0 to 29) is the bit of the packet mark that asks for
    masquerade; ``masquerade_all`` hides the source of everything that goes to a cluster address.
    ``healthz_bind_address`` is where ``/healthz`` and ``/livez`` of the proxy are answered; empty: nowhere.
    """

    mode: str = "nftables"
    masquerade_bit: int = 14
    masquerade_all: bool = False
    healthz_bind_address: str = "0.0.0.0:10256"

    @property
    def healthz(self) -> tuple[str, int] | None:
        """Address and port of ``healthz_bind_address``, None for nowhere."""
        return parse_address(self.healthz_bind_address) if self.healthz_bind_address else None


def parse_address(text: str) -> tuple[str, int]:
    """Address and port of ``192.0.2.1:80`` or ``[::]:80``.

    Raises: ValueError.
    """
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not an address and port, such as 0.0.0.0:10256 or [::]:10256")
    return str(ip_address(address.removeprefix("[").removesuffix("]"))), int(port)


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
    try:
        _ = settings.healthz
    except ValueError as problem:
        raise ConfigError(source, "healthzBindAddress", str(problem)) from problem
    return settings
