"""Key pairs of backends: made once, kept over restarts, readable by root alone."""

from pathlib import Path

from podwire.kernel import x25519
from podwire.kernel.wireguard_codec import base64_key
from podwire.routing.keys import KeyStore
from podwire.state.wireguard import key_bytes


def test_a_key_is_made_once_and_kept_over_restarts(tmp_path: Path) -> None:
    folder = tmp_path / "routing"
    created = KeyStore(folder).keep("wireguard", ["0"])
    assert KeyStore(folder).keep("wireguard", ["0"]) == created
    file = Path(created["0"].file)
    assert file == folder / "wireguard-0.key" and file.stat().st_mode & 0o777 == 0o400
    assert folder.stat().st_mode & 0o777 == 0o700
    private = key_bytes(file.read_text().strip())
    assert base64_key(x25519.public_key(private)) == created["0"].public != base64_key(private)


def test_keys_that_no_backend_names_any_more_are_deleted(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    old = store.keep("wireguard", ["0"])
    both = store.keep("wireguard", ["0", "1"])
    assert both["0"] == old["0"] != both["1"]
    store.keep("other", ["0"])
    store.keep("wireguard", ["1"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other-0.key", "wireguard-1.key"]
    assert store.keep("wireguard", ["0", "1"])["0"] != old["0"]


def test_a_lost_or_damaged_key_is_replaced(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    first = store.keep("wireguard", ["0"])["0"]
    Path(first.file).unlink()
    second = store.keep("wireguard", ["0"])["0"]
    assert second.public != first.public
    Path(first.file).unlink()
    Path(first.file).write_text("half a ke")
    assert KeyStore(tmp_path).keep("wireguard", ["0"])["0"].public not in (first.public, second.public)


def test_a_public_key_follows_from_the_private_key() -> None:
    """The pair is as wg(8) shows it."""
    private = bytes([0xA8] * 31 + [0x68])
    assert base64_key(x25519.public_key(private)) == "9MRwbGGJod1aX4P/tNPNT+z/114HLH2rnjx76hw44XM="
    assert len(x25519.generate()) == 32
