"""Files for NetworkManager, systemd-networkd and udev: their text, who owns them, and their removal."""

from configparser import ConfigParser
from pathlib import Path

from podwire.routing import hostfiles
from podwire.routing.linkfiles import MARK, link_files

MAC = "02:70:77:00:00:01"


def test_each_file_leaves_the_devices_alone() -> None:
    files = {file.path: file.text for file in link_files(MAC)}
    sections: dict[str, dict[str, dict[str, str]]] = {}
    for path, text in files.items():
        assert text.startswith(MARK)
        parser = ConfigParser(delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(text)
        sections[path] = {name: dict(parser[name]) for name in parser.sections()}
    assert sections == {
        "NetworkManager/conf.d/90-podwire.conf": {
            "keyfile": {"unmanaged-devices+": f"interface-name:podwire-*;mac:{MAC}"}
        },
        "systemd/network/10-podwire.network": {"Match": {"Name": "podwire-*"}, "Link": {"Unmanaged": "yes"}},
        "systemd/network/10-podwire-pods.network": {"Match": {"MACAddress": MAC}, "Link": {"Unmanaged": "yes"}},
        "systemd/network/10-podwire.link": {
            "Match": {"OriginalName": "podwire-*"},
            "Link": {"MACAddressPolicy": "none", "NamePolicy": "keep kernel"},
        },
    }


def test_files_are_written_once_and_deleted(tmp_path: Path) -> None:
    (tmp_path / "systemd").mkdir()
    files = list(link_files(MAC))
    assert len(list(hostfiles.write(tmp_path, files))) == 3, "NetworkManager is not installed"
    assert list(hostfiles.write(tmp_path, files)) == []
    target = tmp_path / "systemd/network/10-podwire.link"
    target.write_text(f"{MARK} of an older version\n")
    assert list(hostfiles.write(tmp_path, files)) == [f"wrote {target}"]
    assert len(list(hostfiles.remove(tmp_path, files))) == 3
    assert list((tmp_path / "systemd/network").iterdir()) == [] and list(hostfiles.remove(tmp_path, files)) == []


def test_files_of_other_programs_stay(tmp_path: Path) -> None:
    target = tmp_path / "NetworkManager/conf.d/90-podwire.conf"
    target.parent.mkdir(parents=True)
    target.write_text("[keyfile]\nunmanaged-devices=eth9\n")
    files = list(link_files(MAC))
    assert list(hostfiles.write(tmp_path, files)) == [f"{target} belongs to another program and stays"]
    assert list(hostfiles.remove(tmp_path, files)) == [] and "eth9" in target.read_text()


def test_a_directory_in_the_way_is_reported(tmp_path: Path) -> None:
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd/network").write_text("a file")
    texts = list(hostfiles.write(tmp_path, link_files(MAC)))
    assert len(texts) == 3 and all(text.startswith("cannot write ") for text in texts)
