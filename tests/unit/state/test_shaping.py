"""Bandwidth limits in the numbers of the kernel."""

import pytest

from podwire.state.shaping import TokenBucket, token_bucket

TICKS = 15.625


@pytest.mark.parametrize(
    ("rate", "burst", "expected"),
    [
        (8_000_000, 800_000, TokenBucket(1_000_000, 125_000, 1_562_500)),
        (8, 8, TokenBucket(1, 1, 15_625_000)),
        (80_000_000_000, 80_000, TokenBucket(10_000_000_000, 250_010_000, 15)),
    ],
)
def test_buckets_count_bytes_and_ticks(rate: int, burst: int, expected: TokenBucket) -> None:
    assert token_bucket(rate, burst, TICKS) == expected


def test_long_bursts_are_cut_to_what_the_kernel_counts() -> None:
    """The burst of containerd, 2^31-1 bits, at 1 Mbit/s."""
    assert token_bucket(1_000_000, 2**31 - 1, TICKS).buffer == 0xFFFFFFFF
