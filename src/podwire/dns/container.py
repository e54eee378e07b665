"""The DNS server as a container of a local cluster: a function in a forked process, without exec."""

import asyncio
import signal
from collections.abc import Callable

import msgspec

from podwire.dns.config import DnsConfig, load_config
from podwire.dns.server import run
from podwire.errors import ConfigError, PodwireError
from podwire.observe.log import Log, configure
from podwire.runtime.clock import SystemClock


class ContainerArguments(msgspec.Struct, frozen=True):
    """What the kubelet hands over: the container's command-line arguments."""

    args: tuple[str, ...] = ()


def config_of(arguments: tuple[str, ...]) -> DnsConfig:
    """The settings named by ``--config FILE``, or the defaults without arguments.

    Raises: ConfigError.
    """
    if not arguments:
        return DnsConfig()
    if len(arguments) != 2 or arguments[0] != "--config":
        raise ConfigError("arguments", "", f"expected --config FILE, got {' '.join(arguments)!r}")
    return load_config(arguments[1])


def run_container(payload: bytes, started: Callable[[], None]) -> None:
    """Serves until SIGTERM; ``payload`` is a JSON object with ``args``, ``started`` is called once it listens.

    Raises: SystemExit with 2 for a wrong configuration, 1 for any other failure.
    """
    configure()
    arguments = msgspec.json.decode(payload, type=ContainerArguments) if payload else ContainerArguments()
    try:
        asyncio.run(_serve(config_of(arguments.args), started))
    except (PodwireError, OSError) as failure:
        Log("dns").error("cannot serve", problem=failure)
        raise SystemExit(2 if isinstance(failure, ConfigError) else 1) from failure


async def _serve(config: DnsConfig, started: Callable[[], None]) -> None:
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    try:
        await run(config, SystemClock(), serving=started)
    except asyncio.CancelledError:
        return
