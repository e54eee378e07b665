import pytest

from podwire.policy.marks import MARKS, check_marks


def usable(mask: int) -> bool:
    try:
        check_marks(mask)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("mask", [MARKS, 0x3F, 0xFFFFFFFF, 0x00FF0000])
def test_masks_that_can_be_used(mask: int) -> None:
    assert usable(mask)


@pytest.mark.parametrize("mask", [0, -1, 0x1F, 0xF0F, 1 << 32])
def test_masks_that_cannot(mask: int) -> None:
    with pytest.raises(ValueError, match=hex(mask)):
        check_marks(mask)


def test_default_bits_are_unused_by_other_programs() -> None:
    kube_proxy, cilium, tailscale, aws = 0xC000, 0xF00, 0xC0000, 0x80
    assert not MARKS & (kube_proxy | cilium | tailscale | aws)
