"""The bits of packet marks that a data plane may use while a packet is in its rules (pure)."""

MARKS = 0xFFF00000
"""Bits that kube-proxy (0xc000), Cilium (0xf00), Tailscale (0xff0000 with values of 0xc0000) and the AWS VPC plugin
(0x80) do not use. Calico uses 0xffff0000 for its own policies; two programs must not enforce policies on one node."""
LEAST = 6
"""The fewest bits that a data plane needs."""


def check_marks(mask: int) -> None:
    """Checks a mask.

    Raises: ValueError for a mask that cannot be used.
    """
    if not 0 < mask <= 0xFFFFFFFF:
        raise ValueError(f"{mask:#x} is not a 32-bit mask between 0x1 and 0xffffffff")
    bits = f"{mask:032b}".strip("0")
    if "0" in bits or len(bits) < LEAST:
        raise ValueError(f"{mask:#x} is not {LEAST} or more adjacent bits")
