"""Reads a Corefile from disk, with the files that it imports."""

import os
from pathlib import Path

from podwire.dns.config import DnsConfig
from podwire.dns.corefile.settings import read_settings
from podwire.dns.corefile.syntax import parse_corefile
from podwire.dns.routes import resolve_upstreams
from podwire.dns.streams import make_context, serving_context
from podwire.errors import ConfigError


def load_corefile(path: str) -> DnsConfig:
    """The settings of a Corefile.

    Raises: ConfigError naming the line.
    """
    folder = Path(path).parent

    def read_files(pattern: str) -> dict[str, str]:
        base = Path(pattern).parent if Path(pattern).is_absolute() else folder / Path(pattern).parent
        # Folders of a mounted ConfigMap have hidden folders beside the files.
        files = sorted(file for file in base.glob(Path(pattern).name) if file.is_file() and file.name[0] != ".")
        return {str(file): read_text(str(file)) for file in files}

    config = read_settings(parse_corefile(read_text(path), path, os.environ, read_files), path, read_files)
    views = (forwards for forwards in config.view_forwards.values())
    for forwards in ({".": config.forward}, config.stub_domains, *views):
        for zone, forward in forwards.items():
            where = f"{path}: forward {zone}"
            for own in forward.chain:
                if any(upstream.server_name is not None for upstream in resolve_upstreams(own.upstreams, where)):
                    make_context(own.tls, where)
    if config.tls_port:
        serving_context(config.serving_tls, path)
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
