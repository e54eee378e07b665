"""The durable list of attachments and their addresses: one SQLite file per node.

A change survives a power cut: it waits for the disk, but for two. With ``waits=False`` :meth:`Ledger.hold` only begins
to write, and :meth:`Ledger.wait` must be called before ADD is answered (:mod:`podwire.cni.ipam.logsync`).
:meth:`Ledger.release` does not even begin to: a row that comes back after a power cut has no device, and the start of
the agent releases it; the next change that waits takes it along. A commit takes 0.03 ms, the disk 0.06 ms more
(measured). The key of an attachment is (network, container, interface); at most one attachment holds an address.
Release times are kept for the cooldown. A file whose content SQLite cannot read is renamed to ``.damaged`` and an empty
file takes its place; the caller then rebuilds the list from the kernel's links and routes. A file that cannot be opened
(a full disk, a folder that may not be written) is left as it is.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

import msgspec

from podwire.cni.ipam.logsync import LogSync
from podwire.cni.ipam.pool import Address
from podwire.cni.protocol import AttachmentKey
from podwire.cni.spec import IO_FAILURE, PortMapping
from podwire.errors import CniError, ConfigError
from podwire.model.ip import parse_address
from podwire.runtime.stateform import check_form

FORM = 1
"""The number of the form, SQLite's ``user_version``; 0 in files from before there were numbers, which have form 1."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS attachment (
    network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (network, container, ifname)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lease (
    address TEXT NOT NULL PRIMARY KEY, network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS released (address TEXT NOT NULL PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fact (name TEXT NOT NULL PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursor (family INTEGER NOT NULL PRIMARY KEY, address TEXT NOT NULL);
"""


class Attachment(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A pod's interface: the facts to check, remove and explain it; ``host_link`` is the name of the node's end.

    It is empty when another plugin wires the pod and podwire only assigned the addresses.

    ``beside`` are the IP families whose default route in the pod belongs to another interface. ``table`` is the routing
    table of an interface that is not the pod's first; 0 for the first one.
    ``pod_network`` is the pod network of its addresses, empty for the default one.
    ``bridge`` is the bridge of which the node's end is a port, empty for none; ``gateways`` are the pod's then, one of
    each family.
    """

    key: AttachmentKey
    addresses: tuple[str, ...]
    host_link: str
    mac: str
    netns: str
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    ports: tuple[PortMapping, ...] = ()
    beside: tuple[int, ...] = ()
    table: int = 0
    pod_network: str = ""
    bridge: str = ""
    gateways: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The device by which the node routes packets from and to the pod."""
        return self.bridge or self.host_link

    @property
    def ips(self) -> tuple[Address, ...]:
        """The addresses, parsed."""
        return tuple(map(_parsed, self.addresses))


@lru_cache(4096)
def _parsed(text: str) -> Address:
    return parse_address(text)


class Ledger:
    """The attachments of one node; every change is one durable transaction."""

    def __init__(self, path: Path) -> None:
        """Opens the file, and makes it when there is none.

        Raises: ConfigError when it cannot be opened for writing, or is of a later form; nothing is changed then.
        """
        self.path = path
        self._log = LogSync(path.with_name(f"{path.name}-wal"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = _open(path)
        except (OSError, sqlite3.OperationalError) as failure:
            expected = "expected a file that podwire may write, in a folder with free space"
            raise ConfigError(str(path), "", f"cannot be opened for writing: {failure}; {expected}") from failure
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                part = path.with_name(path.name + suffix)
                if part.exists():
                    part.replace(part.with_name(part.name + ".damaged"))
            self._db = _open(path)

    def close(self) -> None:
        """Waits for the disk and closes the file."""
        self._log.close()
        self._db.close()

    def wait(self) -> None:
        """Returns when all changes are on the disk.

        Raises: CniError 5 when they cannot be brought there.
        """
        try:
            self._log.wait()
        except OSError as failure:
            raise self._unwritable(failure) from failure

    @contextlib.contextmanager
    def _committing(self) -> Iterator[None]:
        """One transaction, which outlives the process but not a power cut; an error of SQLite becomes a CniError."""
        try:
            with self._db:
                yield
        except sqlite3.Error as failure:
            raise self._unwritable(failure) from failure

    @contextlib.contextmanager
    def _writing(self, *, waits: bool = True) -> Iterator[None]:
        """One transaction that begins to go to the disk, with ``waits`` on the disk behind it."""
        with self._committing():
            yield
        self._log.start()
        if waits:
            self.wait()

    def _unwritable(self, failure: Exception) -> CniError:
        return CniError(IO_FAILURE, f"cannot write the address ledger {self.path}", str(failure))

    def attachments(self) -> dict[AttachmentKey, Attachment]:
        """All attachments."""
        rows = self._db.execute("SELECT body FROM attachment")
        decoded = (msgspec.json.decode(body, type=Attachment) for (body,) in rows)
        return {attachment.key: attachment for attachment in decoded}

    def released(self) -> dict[Address, float]:
        """The time of each address's last release, in wall-clock seconds."""
        return {ip_address(text): at for text, at in self._db.execute("SELECT address, at FROM released")}

    def cursors(self) -> dict[int, Address]:
        """The address that was assigned last, by family."""
        return {family: ip_address(text) for family, text in self._db.execute("SELECT family, address FROM cursor")}

    def fact(self, name: str) -> bytes:
        """The value that :meth:`remember` stored under a name; empty when there is none."""
        row = self._db.execute("SELECT body FROM fact WHERE name = ?", (name,)).fetchone()
        return row[0] if row else b""

    def facts(self, beginning: str) -> dict[str, bytes]:
        """The values whose names have this beginning."""
        rows = self._db.execute("SELECT name, body FROM fact WHERE substr(name, 1, ?) = ?", (len(beginning), beginning))
        return dict(rows.fetchall())

    def remember(self, name: str, body: bytes) -> None:
        """Stores a value about the node under a name; an empty one deletes the name."""
        with self._writing():
            if not body:
                self._db.execute("DELETE FROM fact WHERE name = ?", (name,))
                return
            self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, body))

    def hold(self, *attachments: Attachment, waits: bool = True) -> None:
        """Writes attachments and their addresses; without ``waits`` :meth:`wait` must follow.

        Raises: CniError 5 when the disk cannot be written, or a key or an address is held; nothing is written then.
        """
        with self._writing(waits=waits):
            for attachment in attachments:
                self._insert(attachment)

    def _insert(self, attachment: Attachment) -> None:
        names = (attachment.key.network, attachment.key.container, attachment.key.ifname)
        self._db.execute("INSERT INTO attachment VALUES (?, ?, ?, ?)", (*names, msgspec.json.encode(attachment)))
        for text in attachment.addresses:
            self._db.execute("INSERT INTO lease VALUES (?, ?, ?, ?)", (text, *names))
            self._db.execute("DELETE FROM released WHERE address = ?", (text,))
            self._db.execute("INSERT OR REPLACE INTO cursor VALUES (?, ?)", (6 if ":" in text else 4, text))

    def continue_after(self, address: Address) -> None:
        """Makes assignment in the address's family continue after the address."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO cursor VALUES (?, ?)", (address.version, str(address)))

    def update(self, attachment: Attachment) -> None:
        """Writes changed facts of an attachment; its addresses are as before.

        Raises: CniError 5 when the disk cannot be written.
        """
        names = (attachment.key.network, attachment.key.container, attachment.key.ifname)
        statement = "UPDATE attachment SET body = ? WHERE network = ? AND container = ? AND ifname = ?"
        with self._writing():
            self._db.execute(statement, (msgspec.json.encode(attachment), *names))

    def release(self, attachments: Iterable[Attachment], now: float, forget_before: float) -> None:
        """Removes attachments and records ``now`` as release time; release times before ``forget_before`` are deleted.

        Raises: CniError 5 when the disk cannot be written; nothing is changed then.
        """
        with self._committing():
            self._db.execute("DELETE FROM released WHERE at < ?", (forget_before,))
            for attachment in attachments:
                names = (attachment.key.network, attachment.key.container, attachment.key.ifname)
                self._db.execute("DELETE FROM attachment WHERE network = ? AND container = ? AND ifname = ?", names)
                self._db.execute("DELETE FROM lease WHERE network = ? AND container = ? AND ifname = ?", names)
                self._db.executemany(
                    "INSERT OR REPLACE INTO released VALUES (?, ?)", [(text, now) for text in attachment.addresses]
                )


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False)
    try:
        (number,) = db.execute("PRAGMA user_version").fetchone()
        check_form(number, FORM, str(path), "user_version")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA cache_size = -256")
        db.executescript(_SCHEMA)
        if number != FORM:
            db.execute(f"PRAGMA user_version = {FORM}")
        if db.execute("PRAGMA quick_check").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("quick_check failed")
    except (sqlite3.DatabaseError, ConfigError):
        db.close()
        raise
    return db
