"""Numbers of forms of state: a later one is refused, by every reader, and nothing is changed."""

import sqlite3
from pathlib import Path

import msgspec
import pytest

from podwire.cni.ipam.ledger import FORM, Ledger
from podwire.errors import ConfigError
from podwire.kernel.sysctl_record import SysctlRecord, read
from podwire.local import inventory
from podwire.local.topology import Topology
from podwire.runtime.childrecord import Record, read_record
from podwire.runtime.stateform import check_form


def test_a_known_form_is_accepted_and_a_later_one_named() -> None:
    check_form(1, 1, "ledger.db")
    with pytest.raises(ConfigError, match=r"ledger\.db: format: form 2, written by a later podwire: this one knows"):
        check_form(2, 1, "ledger.db")


def number_of(file: Path) -> int:
    with sqlite3.connect(file) as db:
        (number,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return int(number)


def test_a_ledger_of_before_there_were_numbers_gets_one(tmp_path: Path) -> None:
    file = tmp_path / "addresses.db"
    Ledger(file).close()
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 0")
    db.close()
    ledger = Ledger(file)
    ledger.remember("x", b"1")
    ledger.close()
    assert number_of(file) == FORM


def test_a_ledger_of_a_later_form_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "addresses.db"
    Ledger(file).close()
    with sqlite3.connect(file) as db:
        db.execute(f"PRAGMA user_version = {FORM + 1}")
    db.close()
    with pytest.raises(ConfigError, match="user_version: form 2"):
        Ledger(file)
    assert number_of(file) == FORM + 1
    assert not list(tmp_path.glob("*.damaged")), "a later form is not damage"


def test_a_later_record_of_sysctls_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "sysctls.json"
    text = '{"devices": ["eth0"], "values": {}, "format": 2, "more": 1}'
    file.write_text(text)
    with pytest.raises(ConfigError, match="form 2"):
        SysctlRecord(file, ["eth0"])
    assert file.read_text() == text
    file.write_text(text.replace('"format": 2', '"format": 1'))
    assert read(file).devices == ("eth0",), "a field that is not known is left out"


def test_a_record_of_a_process_tells_its_form(tmp_path: Path) -> None:
    file = tmp_path / "agent.json"
    file.write_text('{"pid": 7, "started": 3, "command": "c", "files": [], "more": true}')
    assert read_record(file) == Record(7, 3, "c")
    file.write_text('{"pid": 7, "started": 3, "command": "c", "format": 9}')
    with pytest.raises(ConfigError, match="form 9"):
        read_record(file)


def test_a_later_cluster_is_not_taken_for_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "RUN_ROOT", tmp_path)
    (tmp_path / "one").mkdir()
    topology = Topology(name="one", index=0, segment_count=1, run="/r", state="/s", format=2)
    (tmp_path / "one" / "layout.json").write_bytes(msgspec.json.encode(topology))
    with pytest.raises(ConfigError, match=r"layout\.json: format: form 2"):
        inventory.find("one")
