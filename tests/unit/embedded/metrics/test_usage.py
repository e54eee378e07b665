"""Rates of CPU time between samples, and the sum of a pod."""

import pytest

from podwire.embedded.metrics.usage import CpuSample, rate

START = CpuSample(0.0, 0)
CASES = {
    "younger than two thirds of an interval": ((START,), CpuSample(9.9, 5_000_000), (0.0, 0)),
    "start counts as the first sample": ((START,), CpuSample(10.0, 5_000_000), (10.0, 500_000_000)),
    "newest sample that is old enough": (
        (START, CpuSample(15.0, 15_000_000), CpuSample(30.0, 15_000_000)), CpuSample(35.0, 35_000_000),
        (20.0, 1_000_000_000),
    ),
    "only samples of the last minute": ((START,), CpuSample(61.0, 5_000_000), (0.0, 0)),
    "idle": ((CpuSample(100.0, 7),), CpuSample(115.0, 7), (15.0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rate_is_counted_from_the_newest_old_sample(name: str) -> None:
    samples, now, expected = CASES[name]
    assert rate(samples, now, 15.0) == expected
