"""Configuration of a local cluster: the file behind ``podwire up --config`` and its defaults.

Example::

    nodes: 3
    segments: 1
    podCIDRs: [10.244.0.0/16]
    serviceCIDRs: [10.96.0.0/16]
    routing: {backend: vxlan}
    proxy: {mode: nftables}
    images:
      - {name: registry.example/team/api, command: [./bin/api, --listen, ":8080"]}
      - {prefix: registry.example/jobs/, command: [python3, job.py]}

A field that is unknown, missing or of the wrong type is a ConfigError with its path.
"""

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

import msgspec
import yaml

from podwire.errors import ConfigError
from podwire.local.layout import NODES_PER_SEGMENT, SEGMENTS


class _Section(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The settings that every section shares."""


class RoutingSection(_Section, frozen=True):
    """Pod to pod between nodes."""

    backend: str = "vxlan"


class ProxySection(_Section, frozen=True):
    """Services."""

    mode: str = "nftables"


class ImageRule(_Section, frozen=True):
    """One entry of the image table: exactly one of ``name`` and ``prefix``, and the local command."""

    name: str = ""
    prefix: str = ""
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    working_dir: str = ""


class ClusterConfig(_Section, frozen=True):
    """What a local cluster is made of."""

    nodes: int = 3
    segments: int = 1
    pod_cidrs: tuple[str, ...] = msgspec.field(default=("10.244.0.0/16",), name="podCIDRs")
    service_cidrs: tuple[str, ...] = msgspec.field(default=("10.96.0.0/16",), name="serviceCIDRs")
    api_port: int = 0
    """TCP port of the API on loopback; 0 takes a free one."""
    routing: RoutingSection = RoutingSection()
    proxy: ProxySection = ProxySection()
    images: tuple[ImageRule, ...] = ()
    log_level: str = "info"


def read_config(path: str) -> ClusterConfig:
    """The configuration in a YAML file; an empty file is all defaults.

    Raises: ConfigError when the file cannot be read, is not YAML, or does not fit.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(path, "", f"cannot be read: {failure}") from failure
    return parse_config(text, path)


def parse_config(text: str, source: str) -> ClusterConfig:
    """The configuration in a YAML text.

    Raises: ConfigError with the field path.
    """
    try:
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as failure:
        raise ConfigError(source, "", f"not YAML: {' '.join(str(failure).split())}") from failure
    if document is None:
        document = {}
    try:
        config = msgspec.convert(document, ClusterConfig)
    except msgspec.ValidationError as failure:
        problem, _, path = str(failure).partition(" - at `$")
        raise ConfigError(source, path.rstrip("`").lstrip("."), problem) from failure
    check_config(config, source)
    return config


def check_config(config: ClusterConfig, source: str) -> None:
    """Checks what types alone cannot say.

    Raises: ConfigError with the field path.
    """
    if not 1 <= config.segments <= SEGMENTS:
        raise ConfigError(source, "segments", f"{config.segments}: expected 1 to {SEGMENTS}")
    most = NODES_PER_SEGMENT * config.segments
    if not 1 <= config.nodes <= most:
        raise ConfigError(source, "nodes", f"{config.nodes}: expected 1 to {most} with {config.segments} segments")
    if not 0 <= config.api_port <= 65535:
        raise ConfigError(source, "apiPort", f"{config.api_port}: expected 0 to 65535")
    _check_networks(config.pod_cidrs, source, "podCIDRs")
    _check_networks(config.service_cidrs, source, "serviceCIDRs")
    for number, rule in enumerate(config.images):
        if bool(rule.name) == bool(rule.prefix):
            raise ConfigError(source, f"images[{number}]", "expected exactly one of name and prefix")
        if not rule.command:
            raise ConfigError(source, f"images[{number}].command", "expected a command")


def _check_networks(cidrs: tuple[str, ...], source: str, path: str) -> None:
    families: list[int] = []
    for number, cidr in enumerate(cidrs):
        families.append(_network(cidr, source, f"{path}[{number}]").version)
    if not families or len(set(families)) != len(families):
        raise ConfigError(source, path, "expected one network, or one of each family")


def _network(cidr: str, source: str, path: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(cidr)
    except ValueError as failure:
        raise ConfigError(source, path, f"{failure}; expected a network such as 10.244.0.0/16") from failure
