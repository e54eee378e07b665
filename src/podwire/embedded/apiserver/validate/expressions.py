"""Checks the expressions of webhooks and admission policies.

Source: ``k8s.io/kubernetes/pkg/apis/admissionregistration/validation``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.embedded.apiserver.cel import requests
from podwire.embedded.apiserver.cel.expressions import CompileError, compiled
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names

Json = dict[str, Any]

_MOST_CONDITIONS = 64


def check_expression(source: str, types: Mapping[str, str], expected_type: str, path: str) -> Iterator[Cause]:
    """An expression whose value must have the expected type."""
    try:
        compiled(source, types, expected_type)
    except CompileError as failure:
        yield causes.invalid(path, source, str(failure))


def check_conditions(conditions: list[Json], path: str, *, params: bool) -> Iterator[Cause]:
    """The match conditions of a webhook or a policy; ``params`` tells whether they may use parameters."""
    types = requests.variables(params=params)
    if len(conditions) > _MOST_CONDITIONS:
        yield causes.too_many(path, len(conditions), _MOST_CONDITIONS)
    known_names: set[str] = set()
    for index, condition in enumerate(conditions):
        condition_path, name = f"{path}[{index}]", str(condition.get("name") or "")
        source = str(condition.get("expression") or "").strip()
        if source:
            yield from check_expression(source, types, "bool", f"{condition_path}.expression")
        else:
            yield causes.required(f"{condition_path}.expression")
        if not name:
            yield causes.required(f"{condition_path}.name")
        elif problem := names.qualified(name):
            yield causes.invalid(f"{condition_path}.name", name, problem)
        if name and name in known_names:
            yield causes.duplicate(f"{condition_path}.name", name)
        known_names.add(name)
