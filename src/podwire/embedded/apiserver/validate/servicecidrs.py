"""Checks ServiceCIDRs. Source: ``pkg/apis/networking/validation`` (``ValidateServiceCIDR``)."""

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names

Json = dict[str, Any]

_PATH = "spec.cidrs"
_ONE_EACH = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
_IMMUTABLE = "field is immutable"


def check_service_cidr(new: Json, old: Json | None) -> Iterator[Cause]:
    """One range, or two of different families; the second may be added later, and nothing else may change."""
    cidrs: list[str] = (new.get("spec") or {}).get("cidrs") or []
    if old is not None:
        before: list[str] = (old.get("spec") or {}).get("cidrs") or []
        if cidrs == before:
            return
        if len(before) == 2 or cidrs[:1] != before[:1]:
            yield causes.invalid(_PATH, cidrs, _IMMUTABLE)
            return
    if not cidrs:
        yield causes.required(_PATH, "at least one CIDR required")
        return
    if len(cidrs) > 2:
        yield causes.invalid(_PATH, cidrs, "may only hold up to 2 values")
        return
    wrong = list(_check_each(cidrs))
    if not wrong and len({":" in cidr for cidr in cidrs}) < len(cidrs):
        wrong.append(causes.invalid(_PATH, cidrs, _ONE_EACH))
    yield from wrong


def _check_each(cidrs: list[str]) -> Iterator[Cause]:
    for index, text in enumerate(cidrs):
        path = f"{_PATH}[{index}]"
        if problem := names.cidr(text):
            yield causes.invalid(path, text, problem)
        elif str(network := ip_network(text, strict=False)) != text:
            yield causes.invalid(path, text, f'must be in canonical form ("{network}")')
