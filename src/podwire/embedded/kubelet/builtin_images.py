"""The images that are Python functions of podwire, run in a forked container without exec."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from podwire.dns import server as dns_server
from podwire.dns.config import DnsConfig, load_config
from podwire.embedded.kubelet.container_init import Started
from podwire.embedded.kubelet.shim import Entry
from podwire.embedded.standin.server import run_standin
from podwire.observe.log import configure
from podwire.runtime.clock import SystemClock


class _Arguments(msgspec.Struct, frozen=True):
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}


def run_dns(payload: bytes, started: Started) -> None:
    """``podwire/dns``: cluster DNS with the file that ``--config`` in the container's arguments names."""
    arguments = msgspec.json.decode(payload, type=_Arguments)
    options = [option for argument in arguments.args for option in argument.split("=", 1)]
    settings = DnsConfig()
    if "--config" in options[:-1]:
        settings = load_config(str(Path(options[options.index("--config") + 1])))
    configure()
    dns_server.serve(settings, SystemClock(), serving=started)


ENTRIES: Mapping[str, Entry] = {"dns": run_dns, "standin": run_standin}
"""By the name after ``podwire/``."""
