import pytest

from podwire.errors import ConfigError
from podwire.local.config import ClusterConfig, parse_config, read_config


def test_an_empty_file_is_all_defaults() -> None:
    assert parse_config("", "c.yaml") == ClusterConfig()


def test_fields_are_read() -> None:
    config = parse_config("nodes: 5\nrouting: {backend: hostgw}\npodCIDRs: [10.1.0.0/16, 'fd01::/48']\n", "c.yaml")
    assert (config.nodes, config.routing.backend, config.pod_cidrs) == (5, "hostgw", ("10.1.0.0/16", "fd01::/48"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: many", "c.yaml: nodes: Expected `int`, got `str`"),
        ("nodez: 3", "unknown field `nodez`"),
        ("nodes: [", "c.yaml: not YAML"),
        ("nodes: 0", "c.yaml: nodes: 0: expected 1 to 240"),
        ("segments: 9", "c.yaml: segments: 9: expected 1 to 8"),
        ("apiPort: 70000", "c.yaml: apiPort: 70000: expected 0 to 65535"),
        ("podCIDRs: [10.0.0.1/8]", "c.yaml: podCIDRs[0]: 10.0.0.1/8 has host bits set"),
        ("podCIDRs: []", "c.yaml: podCIDRs: expected one network, or one of each family"),
        ("serviceCIDRs: [10.1.0.0/16, 10.2.0.0/16]", "c.yaml: serviceCIDRs: expected one network"),
        ("routing: {backend: 3}", "c.yaml: routing.backend: Expected `str`, got `int`"),
        ("images: [{command: [a]}]", "c.yaml: images[0]: expected exactly one of name and prefix"),
        ("images: [{name: a, prefix: b, command: [a]}]", "c.yaml: images[0]: expected exactly one"),
        ("images: [{name: a}]", "c.yaml: images[0].command: expected a command"),
        ("- 1", "Expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "c.yaml")
    assert message in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nonexistent/c\.yaml: cannot be read"):
        read_config("/nonexistent/c.yaml")
