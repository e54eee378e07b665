"""The signature of a call of Alibaba Cloud's APIs in RPC style, version 1.0 (pure).

All parameters are sorted by name and percent-encoded (RFC 3986). The text ``METHOD&%2F&<that, encoded again>`` is
signed by HMAC-SHA1; the key is the secret with ``&`` behind it. The result in base64 is one more parameter.
Source: "Request signatures" of the ECS API reference, whose example is a test.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

METHOD = "HMAC-SHA1"
VERSION = "1.0"


def flattened(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as the API takes them: elements of lists are numbered from 1, fields follow a dot."""
    flat: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            flat |= flattened({f"{name}.{field}": inner for field, inner in value.items()})
        elif isinstance(value, Sequence) and not isinstance(value, str):
            flat |= flattened({f"{name}.{number}": inner for number, inner in enumerate(value, 1)})
        elif value != "":
            flat[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def canonical_query(parameters: Mapping[str, str]) -> str:
    """The parameters in the form that is signed and sent."""
    return "&".join(f"{_encoded(name)}={_encoded(parameters[name])}" for name in sorted(parameters))


def signature(parameters: Mapping[str, str], secret: str, method: str = "POST") -> str:
    """The signature in base64."""
    text = f"{method}&{_encoded('/')}&{_encoded(canonical_query(parameters))}"
    digest = hmac.new(f"{secret}&".encode(), text.encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


def _encoded(text: str) -> str:
    return quote(text, safe="-_.~")
