"""What a node sends by its log arrives whole, or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ClusterError
from podwire.upgrade.backup import transfer
from podwire.upgrade.backup.transfer import NodeFile

FILES = (
    NodeFile(kind="configuration", name="10-a.conflist", data=b'{"name": "a"}\n'),
    NodeFile(kind="kernel", name="nft", data=bytes(range(256)) * 500),
    NodeFile(kind="kernel", name="ipvs"),
)


def test_files_of_a_log_are_those_that_were_sent() -> None:
    lines = list(transfer.lines(FILES))
    assert transfer.parse("\n".join(["a warning", *lines]), "node-1") == FILES
    assert max(map(len, lines)) < 16 * 1024


@given(st.lists(st.binary(max_size=20_000), max_size=3))
def test_any_content_arrives(contents: list[bytes]) -> None:
    files = tuple(NodeFile(kind="kernel", name=str(n), data=data) for n, data in enumerate(contents))
    assert transfer.parse("\n".join(transfer.lines(files)), "node-1") == files


def test_every_cut_off_log_is_recognized() -> None:
    lines = list(transfer.lines(FILES))
    for number in range(len(lines)):
        without = lines[:number] + lines[number + 1 :]
        with pytest.raises(ClusterError, match=r"node-1: (cannot decode )?the answer"):
            transfer.parse("\n".join(without), "node-1")


def test_the_last_words_of_a_failed_pod_are_named() -> None:
    with pytest.raises(ClusterError, match="the pod's last lines: podwire: no nf_tables"):
        transfer.parse("podwire: no nf_tables", "node-1")
