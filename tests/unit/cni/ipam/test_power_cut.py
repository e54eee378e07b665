"""The address ledger after a power cut: its log ends anywhere, or its last bytes were never written.

A file system may keep any beginning of a file that was being written, and zeros or old bytes in its last block. The log
of SQLite has a checksum for each page, so what a cut leaves is a beginning of the transactions. All that were
acknowledged before the last ``fdatasync`` are among them.
"""

import datetime
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from ipaddress import ip_network
from pathlib import Path

import pytest

from podwire.cni.ipam import logsync
from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.protocol import AttachmentKey
from podwire.errors import CniError

RANGE = ip_network("10.244.1.0/28")
START = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
_HEADER, _FRAME = 32, 24 + 4096
"""Bytes of the header of the log, and of a frame: its header and a page (sqlite.org/fileformat2.html)."""


def attachment(number: int) -> Attachment:
    key = AttachmentKey("podwire", f"c-{number}", "eth0")
    address = str(RANGE[number])
    return Attachment(key=key, addresses=(address,), host_link=f"l-{number}", mac="02:00:00:00:00:01", netns="")


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[int]]:
    """A ledger with ten ADDs and two DELs as it is on the disk, and the length of its log after each of them."""
    ledger = Ledger(tmp_path / "ipam.db")
    log = tmp_path / "ipam.db-wal"
    lengths = []
    for number in range(2, 12):
        ledger.hold(attachment(number))
        lengths.append(log.stat().st_size)
    for number in (2, 3):
        ledger.release([attachment(number)], START.timestamp(), 0.0)
        lengths.append(log.stat().st_size)
    image = tmp_path / "image"
    image.mkdir()
    for name in ("ipam.db", "ipam.db-wal"):
        shutil.copy(tmp_path / name, image / name)
    ledger.close()
    return image, lengths


def expected(done: int) -> set[str]:
    """The addresses in use after so many of the changes."""
    return {str(RANGE[number]) for number in range(2, 2 + min(done, 10))} - {
        str(RANGE[number]) for number in range(2, 2 + max(0, done - 10))
    }


def after(image: Path, folder: Path, log: bytes) -> set[str]:
    """The addresses in use in a ledger that is opened after a cut; nothing of it may be damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(image, folder)
    (folder / "ipam.db-wal").write_bytes(log)
    with closing(Ledger(folder / "ipam.db")) as ledger:
        attachments = ledger.attachments()
        leases = Leases(ledger, lambda: START)
        leases.serve([RANGE])
        used = {ip for held in attachments.values() for ip in held.addresses}
        new = leases.choose()
        assert not used & set(map(str, new))
    assert not list(folder.glob("*.damaged"))
    return used


def test_log_that_ends_anywhere_holds_whole_transactions(written: tuple[Path, list[int]], tmp_path: Path) -> None:
    image, lengths = written
    log = (image / "ipam.db-wal").read_bytes()
    cuts = {*lengths, *(length - 1 for length in lengths), *(length + 1 for length in lengths[:-1])}
    cuts |= {_HEADER + _FRAME * number + 12 for number in range((len(log) - _HEADER) // _FRAME)}
    cuts |= {0, 7, _HEADER}
    for cut in sorted(cuts):
        done = sum(length <= cut for length in lengths)
        assert after(image, tmp_path / "cut", log[:cut]) == expected(done), cut


@pytest.mark.parametrize("tail", ["zeros", "old bytes", "half a page"])
def test_half_written_tail_is_left_out(written: tuple[Path, list[int]], tmp_path: Path, tail: str) -> None:
    image, lengths = written
    log = (image / "ipam.db-wal").read_bytes()
    for done, length in enumerate(lengths[:-1], 1):
        lost = lengths[done] - length
        garbage = {
            "zeros": bytes(lost),
            "old bytes": random.Random(done).randbytes(lost),
            "half a page": log[length : length + lost - 2048] + bytes(2048),
        }[tail]
        assert after(image, tmp_path / "cut", log[:length] + garbage) == expected(done)


def test_pages_written_out_of_order_count_for_nothing(written: tuple[Path, list[int]], tmp_path: Path) -> None:
    image, lengths = written
    log = (image / "ipam.db-wal").read_bytes()
    first, last = lengths[4], lengths[6]
    missing = log[:first] + bytes(_FRAME) + log[first + _FRAME : last]
    assert after(image, tmp_path / "cut", missing) == expected(5)


def test_every_change_is_a_transaction_of_its_own(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ipam.db")) as ledger:
        connection = ledger._db
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (1,)
        assert not connection.in_transaction
        ledger.hold(attachment(2))
        assert not connection.in_transaction
        with closing(sqlite3.connect(tmp_path / "ipam.db")) as reader:
            assert reader.execute("SELECT address FROM lease").fetchall() == [(str(RANGE[2]),)]
        frames = (tmp_path / "ipam.db-wal").read_bytes()[_HEADER:]
        commits = [struct.unpack(">I", frames[at + 4 : at + 8])[0] for at in range(0, len(frames), _FRAME)]
        assert commits[-1] > 0, "the last frame of the log ends a transaction"


WRITER = """
import os, sys
from pathlib import Path
from podwire.cni.ipam import logsync
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.protocol import AttachmentKey
from podwire.errors import CniError
logsync.FAST_S = float(sys.argv[2])
ledger = Ledger(Path(sys.argv[1]))
for number in range(3):
    key = AttachmentKey("podwire", f"c-{number}", "eth0")
    os.write(1, b"begin\\n")
    held = Attachment(key=key, addresses=(f"10.244.1.{number + 2}",), host_link="l", mac="", netns="")
    ledger.hold(held, waits=number == 1)
    ledger.wait()
    os.write(1, b"acknowledged\\n")
"""


DISKS = pytest.mark.parametrize("fast_s", [0.0, 3600.0], ids=["slow disk", "fast disk"])
"""On a slow disk a thread writes the log, on a fast one the caller."""


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@DISKS
def test_log_reaches_the_disk_before_the_acknowledgement(tmp_path: Path, fast_s: float) -> None:
    trace = tmp_path / "trace"
    calls = "trace=pwrite64,fdatasync,fsync,write"
    command = ["strace", "-f", "-y", "-o", str(trace), "-e", calls, sys.executable, "-c", WRITER]
    subprocess.run([*command, str(tmp_path / "ipam.db"), str(fast_s)], check=True, capture_output=True, timeout=120)
    steps = []
    for line in trace.read_text().splitlines():
        if "write(1" in line:
            steps.append("begin" if "begin" in line else "acknowledged")
        elif "ipam.db-wal" in line:
            steps.append("sync" if "sync(" in line else "write")
        elif "sync resumed" in line:
            steps.append("sync")
    begins = [index for index, step in enumerate(steps) if step == "begin"]
    assert len(begins) == 3
    for index in begins:
        change = steps[index + 1 : steps.index("acknowledged", index)]
        assert "write" in change
        assert change[-1] == "sync", change


@DISKS
def test_release_leaves_the_disk_to_the_next_change(
    tmp_path: Path, fast_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logsync, "FAST_S", fast_s)
    brought: list[int] = []
    to_disk = os.fdatasync

    def count(log: int) -> None:
        brought.append(log)
        to_disk(log)

    with closing(Ledger(tmp_path / "ipam.db")) as ledger:
        ledger.hold(attachment(2))
        monkeypatch.setattr(os, "fdatasync", count)
        ledger.release([attachment(2)], START.timestamp(), 0.0)
        assert not brought, "a row that comes back after a power cut has no device, so DEL need not wait"
        ledger.hold(attachment(3))
        assert brought


@pytest.mark.parametrize("keep", [0, 50, 4096, 6000])
def test_truncated_database_is_set_aside(written: tuple[Path, list[int]], tmp_path: Path, keep: int) -> None:
    image, _ = written
    with closing(sqlite3.connect(image / "ipam.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (image / "ipam.db-wal").unlink(missing_ok=True)
    data = (image / "ipam.db").read_bytes()
    (image / "ipam.db").write_bytes(data[:keep])
    with closing(Ledger(image / "ipam.db")) as ledger:
        assert ledger.attachments() == {}
        ledger.hold(attachment(2))
    assert (image / "ipam.db.damaged").exists() == (keep > 0)


@DISKS
def test_log_that_cannot_reach_the_disk_fails_the_change(
    tmp_path: Path, fast_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logsync, "FAST_S", fast_s)
    with closing(Ledger(tmp_path / "ipam.db")) as ledger:
        ledger.hold(attachment(2))
        (tmp_path / "ipam.db-wal").rename(tmp_path / "away")
        ledger.hold(attachment(3), waits=False)
        with pytest.raises(CniError, match="cannot write the address ledger") as failure:
            ledger.wait()
        assert failure.value.code == 5
        (tmp_path / "away").rename(tmp_path / "ipam.db-wal")
        ledger.release([attachment(3)], START.timestamp(), 0.0)
        ledger.hold(attachment(4))
        assert [key.container for key in ledger.attachments()] == ["c-2", "c-4"]
