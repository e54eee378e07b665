"""The metrics of CNI and of address management."""

from collections.abc import Mapping

from podwire.cni.ipam.leases import Leases
from podwire.observe.health import Sample


def request_samples(requests: Mapping[tuple[str, str], int]) -> list[Sample]:
    """The numbers of requests by command and outcome."""
    return [
        Sample(
            "podwire_cni_requests_total",
            "CNI requests.",
            count,
            {"command": command, "outcome": outcome},
            kind="counter",
        )
        for (command, outcome), count in sorted(requests.items())
    ]


def samples(requests: Mapping[tuple[str, str], int], leases: Leases) -> list[Sample]:
    """All samples; ``requests`` are the numbers of requests by command and outcome."""
    samples = request_samples(requests)
    for pool in leases.all_pools:
        cidr = str(pool.network)
        for state, value in (("held", pool.held), ("free", pool.free)):
            samples.append(
                Sample("podwire_ipam_addresses", "Addresses of a pod CIDR.", value, {"cidr": cidr, "state": state})
            )
    samples.append(
        Sample(
            "podwire_ipam_early_total",
            "Addresses handed out before their cooldown had ended.",
            leases.early,
            kind="counter",
        )
    )
    return samples
