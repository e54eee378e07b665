"""The bits of packet marks that a data plane may use, for as long as a packet is in its rules (pure)."""

MARKS = 0xFFF00000
"""Bits that kube-proxy (0xc000), Cilium (0xf00), Tailscale (0xff0000 with values of 0xc0000) and the AWS VPC plugin
(0x80) leave alone. Calico's 0xffff0000 are those of its own policies, beside which no other ones belong."""
LEAST = 6


def check_marks(mask: int) -> None:
    """Raises: ValueError for a mask that cannot be used."""
    if not 0 < mask <= 0xFFFFFFFF:
        raise ValueError(f"{mask:#x} is not a 32-bit mask between 0x1 and 0xffffffff")
    bits = f"{mask:032b}".strip("0")
    if "0" in bits or len(bits) < LEAST:
        raise ValueError(f"{mask:#x} is not {LEAST} or more adjacent bits")
