"""The images that are Python functions of podwire, run in a forked container without exec."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from podwire.dns import server as dns_server
from podwire.dns.config import DnsConfig, load_config
from podwire.embedded.kubelet.container_init import Started
from podwire.embedded.kubelet.shim import Entry
from podwire.embedded.standin.server import run_standin
from podwire.gateway.config import GatewayConfig, load_gateway_config
from podwire.observe.log import configure
from podwire.runtime.clock import SystemClock
from podwire.runtime.foreground import run_until_signal
from podwire.runtime.keeper import keep_worker


class _Arguments(msgspec.Struct, frozen=True):
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}


def run_dns(payload: bytes, started: Started) -> None:
    """``podwire/dns``: cluster DNS with the file that ``--config`` in the container's arguments names."""
    file = _config_file(payload)
    settings = load_config(str(Path(file))) if file else DnsConfig()
    configure()
    dns_server.serve(settings, SystemClock(), serving=started)


def run_gateway(payload: bytes, started: Started) -> None:
    """``podwire/gateway``: follows Ingresses, with the file that ``--config`` names."""
    settings = _gateway_config(payload)
    configure()
    started()
    keep_worker()
    from podwire.gateway import daemon as gateway_daemon

    run_until_signal(lambda: gateway_daemon.run(settings, SystemClock()))


def run_gateway_engine(payload: bytes, started: Started) -> None:
    """``podwire/gateway-engine``: becomes Envoy."""
    from podwire.gateway.envoy.engine import become_engine

    settings = _gateway_config(payload)
    started()
    become_engine(settings)


def _gateway_config(payload: bytes) -> GatewayConfig:
    file = _config_file(payload)
    return load_gateway_config(file) if file else GatewayConfig()


def _config_file(payload: bytes) -> str:
    """The file that ``--config`` in the container's arguments names; empty for none."""
    arguments = msgspec.json.decode(payload, type=_Arguments)
    options = [option for argument in arguments.args for option in argument.split("=", 1)]
    return options[options.index("--config") + 1] if "--config" in options[:-1] else ""


ENTRIES: Mapping[str, Entry] = {
    "dns": run_dns,
    "gateway": run_gateway,
    "gateway-engine": run_gateway_engine,
    "standin": run_standin,
}
"""By the name after ``podwire/``."""
