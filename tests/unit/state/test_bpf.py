"""BPF programs, maps and attachments as text."""

import pytest

from podwire.state import bpf, drift
from podwire.state.bpf import BpfAttachment, BpfFolder, BpfMap, BpfProgram

FOLDER = BpfFolder(
    "node-1-dns",
    (BpfProgram("dns_answers", "0123456789ab"),),
    (BpfMap("dns_names", "hash", 128, 256, 131072), BpfMap("counters", "percpu_array", 4, 8, 14)),
    (BpfAttachment("pod2", "ingress", "dns_answers"), BpfAttachment("eth0", "xdp", "dns_answers")),
)
TEXT = """\
bpf-program node-1-dns dns_answers digest 0123456789ab
bpf-map node-1-dns counters type percpu_array key 4 value 8 entries 14
bpf-map node-1-dns dns_names type hash key 128 value 256 entries 131072
bpf-attach node-1-dns eth0 hook xdp program dns_answers
bpf-attach node-1-dns pod2 hook ingress program dns_answers"""


def test_folder_prints_and_parses_back() -> None:
    assert str(FOLDER) == TEXT
    assert bpf.parse(TEXT.splitlines()) == (FOLDER,)


def test_order_of_the_contents_does_not_matter() -> None:
    turned = BpfFolder("node-1-dns", FOLDER.programs, FOLDER.maps[::-1], FOLDER.attachments[::-1])
    assert turned == FOLDER


@pytest.mark.parametrize(
    "line",
    [
        "bpf-attach a eth0 hook sideways program p",
        "bpf-attach a eth0 hook ingress",
        "bpf-map a m type hash key x value 1 entries 1",
        "bpf-program a",
        "bpf-link a b",
    ],
)
def test_wrong_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        bpf.parse([line])


def test_missing_and_surplus_attachments_are_differences() -> None:
    present = BpfFolder(FOLDER.folder, FOLDER.programs, FOLDER.maps, FOLDER.attachments[:1])
    found = [(d.sign, d.text) for d in drift.compare_bpf("dns", [present], [FOLDER])]
    assert found == [("+", "bpf-attach node-1-dns pod2 hook ingress program dns_answers")]
    assert len(list(drift.compare_bpf("dns", [], [FOLDER]))) == len(TEXT.splitlines())
