"""The bandwidth limits of a pod as disciplines of the kernel's traffic control (pure).

A limit is a token bucket (tbf): packets leave at its rate, as many bytes as the burst leave at once, and packets that
would wait for longer than :data:`LATENCY_US` are dropped. Traffic to the pod is limited where the node's end of the
pod's veth pair sends. Traffic from the pod arrives there, and a device cannot queue what it receives: it is redirected
to an ifb device, which sends it on at the rate and gives it back to the node's end.

Sources: tc-tbf(8), net/sched/sch_tbf.c; the numbers are those of plugins/meta/bandwidth of containernetworking.
"""

import msgspec

LATENCY_US = 25_000
_MICROSECONDS = 1_000_000
_U32 = 0xFFFFFFFF
_BITS = 8


class TokenBucket(msgspec.Struct, frozen=True, gc=False):
    """A limit: bytes per second, the bytes that may wait, and the time to send the burst in ticks of the kernel."""

    rate: int
    limit: int
    buffer: int


class PodLimits(msgspec.Struct, frozen=True, gc=False):
    """The limits of a pod's interface; ``device`` is the node's end, ``ifb`` the device for traffic from the pod.

    ``alias`` is the alias of the ifb device, and marks it as podwire's.
    """

    device: str
    ifb: str
    alias: str
    to_pod: TokenBucket | None = None
    from_pod: TokenBucket | None = None


def token_bucket(rate_bits: int, burst_bits: int, ticks_per_us: float) -> TokenBucket:
    """The bucket for a rate in bits per second and a burst in bits, as the kernel counts.

    A burst that takes longer than the kernel can count (275 s) is cut to that.
    """
    rate, burst = rate_bits // _BITS, burst_bits // _BITS
    buffer = int(int(burst * _MICROSECONDS / rate) * ticks_per_us)
    return TokenBucket(rate, min(_U32, int(rate * LATENCY_US / _MICROSECONDS) + burst), min(_U32, buffer))
