"""Reads a Corefile from disk, with the files that it imports."""

import os
from pathlib import Path

from podwire.dns.config import DnsConfig
from podwire.dns.corefile.settings import read_settings
from podwire.dns.corefile.syntax import parse_corefile
from podwire.dns.routes import resolve_upstreams
from podwire.errors import ConfigError


def load_corefile(path: str) -> DnsConfig:
    """The settings of a Corefile.

    Raises: ConfigError naming the line.
    """
    folder = Path(path).parent

    def read_files(pattern: str) -> dict[str, str]:
        base = Path(pattern).parent if Path(pattern).is_absolute() else folder / Path(pattern).parent
        return {str(file): read_text(str(file)) for file in sorted(base.glob(Path(pattern).name))}

    config = read_settings(parse_corefile(read_text(path), path, os.environ, read_files), path, read_files)
    for zone, forward in {".": config.forward, **config.stub_domains}.items():
        resolve_upstreams(forward.upstreams, f"{path}: forward {zone}")
    return config


def read_text(path: str) -> str:
    """The text of a file.

    Raises: ConfigError when it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        problem = failure.strerror if isinstance(failure, OSError) else "no UTF-8"
        raise ConfigError(path, "", f"cannot be read: {problem}") from failure
