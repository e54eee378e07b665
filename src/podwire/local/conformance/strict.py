"""Finds unknown fields in the NetworkPolicies of cases: an API server drops them, which changes the case's meaning.

Cluster policies are not checked: their API still grows, and cases may use newer fields.
"""

from collections.abc import Iterator

from podwire.embedded.apiserver.kinds import BY_KIND
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.validate import fields
from podwire.errors import ConfigError, ConfigErrors
from podwire.local.conformance.casefile import CaseFile
from podwire.local.conformance.stage import NETWORK_POLICY, Manifest


def check(file: CaseFile) -> None:
    """Raises: ConfigErrors with file, case and path of each unknown field."""
    if wrong := list(_wrong(file)):
        raise ConfigErrors(wrong)


def _wrong(file: CaseFile) -> Iterator[ConfigError]:
    for case in file.cases:
        for step in case.steps:
            for number, action in enumerate(step.actions):
                for field in _unknown(action.policy):
                    path = f"steps[{step.number}].actions[{number}].policy.{field}"
                    yield ConfigError(f"{file.source}: case {case.id}", path, "there is no such field")


def _unknown(policy: Manifest | None) -> list[str]:
    if policy is None or policy["kind"] != NETWORK_POLICY[1]:
        return []
    group, _, version = NETWORK_POLICY[0].rpartition("/")
    schema = data.for_kind(group, version, NETWORK_POLICY[1])
    assert schema is not None, "every API server has NetworkPolicy"
    return fields.decode(dict(policy), schema, BY_KIND[group, version, NETWORK_POLICY[1]]).unknown
