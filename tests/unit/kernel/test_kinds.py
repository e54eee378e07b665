"""Both halves of the kinds of state."""

from podwire.kernel.kinds import KERNEL_KINDS
from podwire.state.kinds import KINDS


def test_every_kind_has_both_halves() -> None:
    assert KERNEL_KINDS.keys() == KINDS.keys()
