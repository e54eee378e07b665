"""The section ``policy``."""

import pytest

from podwire.errors import ConfigError
from podwire.policy.settings import PolicySettings, as_keys, parse_settings


def test_defaults_and_other_values() -> None:
    assert parse_settings({}) == PolicySettings(own_node_egress=True, established="strict", encapsulation="drop")
    found = parse_settings({"ownNodeEgress": False, "established": "keep", "encapsulation": "allow"})
    assert found == PolicySettings(own_node_egress=False, established="keep", encapsulation="allow")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"established": "maybe"}, r"^agent\.yaml: policy\.established: invalid enum value 'maybe'"),
        ({"encapsulation": True}, r"^agent\.yaml: policy\.encapsulation: expected `str`"),
        ({"encapsulated": "drop"}, r"^agent\.yaml: policy: object contains unknown field `encapsulated`"),
    ],
)
def test_a_wrong_value_is_named(document: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_settings(document, "agent.yaml")


def test_as_keys_of_a_configmap() -> None:
    assert as_keys(PolicySettings()) == {}
    keys = as_keys(PolicySettings(established="keep", own_node_egress=False))
    assert keys == {"policy.established": "keep", "policy.ownNodeEgress": "false"}
    assert as_keys(PolicySettings(), keys) == {"policy.established": "strict", "policy.ownNodeEgress": "true"}
