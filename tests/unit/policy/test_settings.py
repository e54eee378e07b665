"""The section ``policy``."""

import pytest
import yaml

from podwire.errors import ConfigError
from podwire.policy.settings import LogSettings, PolicySettings, as_keys, parse_settings


def test_defaults_and_configured_values() -> None:
    assert parse_settings({}) == PolicySettings(own_node_egress=True, established="strict", encapsulation="drop")
    result = parse_settings({"ownNodeEgress": False, "established": "keep", "encapsulation": "allow"})
    assert result == PolicySettings(own_node_egress=False, established="keep", encapsulation="allow")


@pytest.mark.parametrize(
    ("document", "arguments"),
    [
        (
            {"established": "maybe"},
            r"^agent\.yaml: policy\.established: 'maybe' is not valid; expected one of keep, strict",
        ),
        ({"encapsulation": True}, r"^agent\.yaml: policy\.encapsulation: expected a text"),
        (
            {"mode": "ipfw"},
            r"^agent\.yaml: policy\.mode: 'ipfw' is not a data plane of policies; expected one of auto, nft",
        ),
        ({"marks": 0x101}, r"^agent\.yaml: policy\.marks: 0x101 is not 6 or more adjacent bits"),
        (
            {"marks": 1 << 32},
            r"^agent\.yaml: policy\.marks: 0x100000000 is not a 32-bit mask between 0x1 and 0xffffffff",
        ),
        ({"log": {"rate": 0}}, r"^agent\.yaml: policy\.log\.rate: expected a number from 1 to 100000, got 0"),
        ({"log": {"group": 65536}}, r"^agent\.yaml: policy\.log\.group: expected a number from 0 to 65535, got 65536"),
        ({"log": {"drop": True}}, r"^agent\.yaml: policy\.log: unknown field `drop`; expected one of drops, allows, "),
        ({"encapsulated": "drop"}, r"^agent\.yaml: policy: unknown field `encapsulated`"),
    ],
)
def test_a_wrong_value_is_named(document: dict[str, object], arguments: str) -> None:
    with pytest.raises(ConfigError, match=arguments):
        parse_settings(document, "agent.yaml")


def test_as_keys_of_a_configmap() -> None:
    assert as_keys(PolicySettings()) == {}
    keys = as_keys(PolicySettings(established="keep", own_node_egress=False))
    assert keys == {"policy.established": "keep", "policy.ownNodeEgress": "false"}
    loud = as_keys(PolicySettings(log=LogSettings(allows=True)))
    assert loud == {"policy.log": '{"drops":true,"allows":true,"rate":10,"burst":50,"group":9440}'}
    assert parse_settings({"log": yaml.load(loud["policy.log"], Loader=yaml.CSafeLoader)}).log.allows
    assert as_keys(PolicySettings(), keys) == {"policy.established": "strict", "policy.ownNodeEgress": "true"}
