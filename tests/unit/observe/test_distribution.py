"""Histograms, and how they read in the page of metrics."""

from podwire.observe.distribution import Distribution, doubling_bounds
from podwire.observe.health import Health


def test_buckets_count_up_to_their_bound() -> None:
    distribution = Distribution((1, 2, 4))
    for value in (0.5, 1, 1.5, 9):
        distribution.observe(value)
    histogram = distribution.histogram("x", "X.")
    assert histogram.buckets == (("1.0", 2), ("2.0", 3), ("4.0", 3), ("+Inf", 4))
    assert (histogram.sum, distribution.count) == (12, 4)


def test_doubling() -> None:
    assert doubling_bounds(0.001, 3) == (0.001, 0.002, 0.004)


def test_the_text_form() -> None:
    distribution = Distribution((0.5,))
    distribution.observe(0.25)
    health = Health()
    health.metrics["proxy"] = lambda: [
        distribution.histogram("sync_seconds", "Time.", {"ip_family": f}) for f in ("IPv4", "IPv6")
    ]
    assert health.render().decode() == (
        "# HELP sync_seconds Time.\n"
        "# TYPE sync_seconds histogram\n"
        'sync_seconds_bucket{ip_family="IPv4",le="0.5"} 1.0\n'
        'sync_seconds_bucket{ip_family="IPv4",le="+Inf"} 1.0\n'
        'sync_seconds_count{ip_family="IPv4"} 1.0\n'
        'sync_seconds_sum{ip_family="IPv4"} 0.25\n'
        'sync_seconds_bucket{ip_family="IPv6",le="0.5"} 1.0\n'
        'sync_seconds_bucket{ip_family="IPv6",le="+Inf"} 1.0\n'
        'sync_seconds_count{ip_family="IPv6"} 1.0\n'
        'sync_seconds_sum{ip_family="IPv6"} 0.25\n'
    )
