"""Headers of answers from a ConfigMap (``custom-headers``): names and values.

The ConfigMap of the controller says which names are allowed (``global-allowed-response-headers``). Source:
ingress-nginx documentation, "Custom Headers".
"""

import re
from collections.abc import Container, Mapping

import msgspec

_NAME = re.compile(r"[0-9A-Za-z_-]+")


class CustomHeaders(msgspec.Struct, frozen=True):
    """Headers to set, and the entries that are none."""

    headers: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def custom_headers(data: Mapping[str, str], allowed: Container[str]) -> CustomHeaders:
    """The headers in a ConfigMap; ``allowed`` names are in lower case."""
    headers, problems = [], []
    for name, text in sorted(data.items()):
        if not _NAME.fullmatch(name) or not text.isprintable():
            problems.append(f"{name}: expected the name of a header and a value of one line")
        elif name.lower() not in allowed:
            problems.append(f"{name}: expected one of global-allowed-response-headers")
        else:
            headers.append((name, text))
    return CustomHeaders(tuple(headers), tuple(problems))
