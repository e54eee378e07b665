"""Values of clusters and routes in the form that the engine reads."""

import pytest
from google.protobuf import duration_pb2

from podwire.gateway.envoy.clusters import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.001, "0.001s"),
        (0.25, "0.25s"),
        (100, "100s"),
        (100_000.5, "100000.5s"),
        (31_536_000, "31536000s"),
        (300 * 3600, "1080000s"),
        (999_999_999 * 3600, "3153600000s"),
    ],
)
def test_durations_are_written_without_an_exponent(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    message = duration_pb2.Duration()
    message.FromJsonString(text)
    assert message.ToTimedelta().total_seconds() == min(seconds, 3_153_600_000)
