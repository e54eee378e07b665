"""The policy that a namespace's labels name."""

import pytest

from podwire.embedded.apiserver.admission.podsecurity.labels import parse_policy

P = "pod-security.kubernetes.io/"


@pytest.mark.parametrize(
    ("labels", "modes"),
    [
        ({}, ("privileged:latest", "privileged:latest", "privileged:latest")),
        ({"enforce": "baseline"}, ("baseline:latest", "privileged:latest", "baseline:latest")),
        ({"enforce": "baseline", "enforce-version": "v1.25"},
         ("baseline:v1.25", "privileged:latest", "baseline:v1.25")),
        ({"enforce": "baseline", "warn": "privileged"}, ("baseline:latest", "privileged:latest", "privileged:latest")),
        ({"enforce": "baseline", "enforce-version": "v1.25", "warn-version": "v1.30"},
         ("baseline:v1.25", "privileged:latest", "baseline:v1.30")),
        ({"warn": "restricted", "audit": "baseline"}, ("privileged:latest", "baseline:latest", "restricted:latest")),
        ({"enforce": "strict", "audit": "strict", "warn": "strict"},
         ("restricted:latest", "privileged:latest", "privileged:latest")),
        ({"enforce": "baseline", "enforce-version": "1.25"},
         ("baseline:latest", "privileged:latest", "baseline:latest")),
    ],
)  # fmt: skip
def test_labels_name_a_policy(labels: dict[str, str], modes: tuple[str, str, str]) -> None:
    policy, _ = parse_policy({P + key: value for key, value in labels.items()})
    assert (str(policy.enforce), str(policy.audit), str(policy.warn)) == modes


@pytest.mark.parametrize(
    ("label", "value", "message"),
    [
        ("enforce", "strict", "must be one of privileged, baseline, restricted"),
        ("warn-version", "v1.x", 'must be "latest" or "v1.x"'),
        ("audit-version", "v1.01", 'must be "latest" or "v1.x"'),
    ],
)
def test_wrong_labels_are_named(label: str, value: str, message: str) -> None:
    (cause,) = parse_policy({P + label: value})[1]
    assert (cause.field, cause.message) == (f"metadata.labels[{P}{label}]", f'Invalid value: "{value}": {message}')
