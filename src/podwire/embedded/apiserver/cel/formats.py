"""Named formats of texts: ``format.dns1123Label().validate(x)`` gives the problems of a text, or none.

Functions that give optionals return lists here (see :mod:`podwire.embedded.apiserver.cel.sources`). Source:
``k8s.io/apiserver/pkg/cel/library/format.go``.
"""

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date, datetime
from urllib.parse import urlsplit

from podwire.embedded.apiserver.cel.signature import Signature, Value
from podwire.embedded.apiserver.validate import names

_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)


def _prefix(check: Callable[[str], str]) -> Callable[[str], str]:
    """The check of a prefix, which may end in a hyphen."""
    return lambda text: check(f"{text[:-1]}a" if text.endswith("-") and len(text) > 1 else text)


def _matches(problem: str, holds: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            return "" if holds(text) else problem
        except (ValueError, binascii.Error):
            return problem

    return check


def _is_uri(text: str) -> bool:
    split_url = urlsplit(text)
    return bool(split_url.scheme and split_url.netloc) or text.startswith("/")


FORMATS: dict[str, Callable[[str], str]] = {
    "dns1123Label": names.label,
    "dns1123Subdomain": names.subdomain,
    "dns1035Label": names.label_1035,
    "qualifiedName": names.qualified,
    "dns1123LabelPrefix": _prefix(names.label),
    "dns1123SubdomainPrefix": _prefix(names.subdomain),
    "dns1035LabelPrefix": _prefix(names.label_1035),
    "labelValue": names.label_value,
    "uri": _matches("invalid URI", _is_uri),
    "uuid": _matches("does not match the UUID format", _UUID.fullmatch),
    "byte": _matches("invalid base64", lambda text: base64.b64decode(text, validate=True) or not text),
    "date": _matches("invalid date", date.fromisoformat),
    "datetime": _matches("invalid datetime", lambda text: "T" in text and datetime.fromisoformat(text)),
}
"""The check of each format by its name; a check returns the problem of a text, empty for none."""


def _named(name: str) -> list[Value]:
    return [{"kind": "NamedFormat", "name": name}] if name in FORMATS else []


def _validate(value: Value, text: str) -> list[list[str]]:
    problem = FORMATS[value["name"]](text)
    return [[problem]] if problem else []


def _constant(name: str) -> Signature:
    return Signature(f"format.{name}", (), "NamedFormat", lambda: {"kind": "NamedFormat", "name": name})


FUNCTIONS: tuple[Signature, ...] = (
    Signature("format.named", ("string",), "optional(NamedFormat)", _named),
    Signature("validate", ("NamedFormat", "string"), "optional(list(string))", _validate, method=True),
    *(_constant(name) for name in FORMATS),
)
