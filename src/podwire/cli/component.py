"""The commands that run one component in the foreground, as containers and service files do.

Each takes a configuration file, talks to whatever API server its kubeconfig names, logs to standard error, and ends
in order on SIGTERM or SIGINT. What a component runs is chosen in its configuration (``parts``), so that, for example,
the Service proxy alone can run beside another CNI plugin.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from podwire.errors import ConfigError

_config = click.option("--config", "config_file", metavar="FILE", required=True, help="Configuration (YAML).")
_kubeconfig = click.option("--kubeconfig", metavar="FILE", help="How to reach the API; wins over the configuration.")

Body = Callable[[], Coroutine[Any, Any, None]]


def run_until_signal(body: Body) -> None:
    """Runs a component until it returns or a signal asks it to end."""
    asyncio.run(_guarded(body))


async def _guarded(body: Body) -> None:
    main = asyncio.current_task()
    assert main is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main.cancel)
    try:
        await body()
    except asyncio.CancelledError:
        return


def text_of(path: str) -> str:
    """The text of a configuration file.

    Raises: ConfigError.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(path, "", f"cannot be read: {failure}") from failure
