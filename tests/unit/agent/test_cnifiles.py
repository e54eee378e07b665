"""The program and the network configuration in the container runtime's directories."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock

from podwire.agent.cnifiles import CHECK_S, CniFiles
from podwire.agent.config import AgentConfig, CniSection
from podwire.cni import program


def keep(tmp_path: Path, steps: list[Callable[[], None]], *, served: bool = True) -> None:
    """Runs the steps, one in each interval."""
    section = CniSection(bin_dir=str(tmp_path / "bin"), conf_dir=str(tmp_path / "net.d"))
    clock = FakeClock()
    files = CniFiles(AgentConfig(node_name="n1", cni=section), clock)
    files.install_program()

    async def body() -> None:
        event = asyncio.Event()
        if served:
            event.set()
        task = asyncio.ensure_future(files.run(event.wait))
        for step in steps:
            await clock.advance(CHECK_S)
            step()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_deleted_and_changed_files_come_back(tmp_path: Path) -> None:
    plugin, conf = tmp_path / "bin" / "podwire-cni", tmp_path / "net.d" / "10-podwire.conflist"

    def complete() -> None:
        assert plugin.read_bytes() == program.path().read_bytes()
        assert json.loads(conf.read_bytes())["plugins"][0]["type"] == "podwire-cni"
        assert [entry.name for entry in conf.parent.iterdir()] == [conf.name]

    def delete() -> None:
        complete()
        plugin.unlink()
        conf.unlink()

    def change() -> None:
        complete()
        plugin.write_text("another")
        conf.write_text("{")

    def disable() -> None:
        complete()
        plugin.chmod(0o644)
        conf.unlink()
        conf.parent.rmdir()

    keep(tmp_path, [delete, change, disable, complete])


def test_configuration_waits_until_pods_can_be_added(tmp_path: Path) -> None:
    def check() -> None:
        assert (tmp_path / "bin" / "podwire-cni").exists()
        assert not (tmp_path / "net.d").exists()

    keep(tmp_path, [check], served=False)


def test_unwritable_directory_is_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "net.d"
    place.write_text("a file in the place of the directory")
    keep(tmp_path, [place.unlink, lambda: None])
    assert (place / "10-podwire.conflist").exists()


def test_unchanged_files_are_not_written_again(tmp_path: Path) -> None:
    numbers: list[int] = []

    def note() -> None:
        numbers.append(sum(entry.stat().st_ino for entry in tmp_path.glob("*/*")))

    keep(tmp_path, [note, note, note])
    assert len(set(numbers)) == 1


def test_missing_loopback_plugin_is_installed_and_kept(tmp_path: Path) -> None:
    loopback = tmp_path / "bin" / "loopback"

    def own() -> None:
        assert loopback.read_bytes() == program.path().read_bytes()

    def delete() -> None:
        own()
        loopback.unlink()

    keep(tmp_path, [delete, own])


def test_loopback_plugin_of_the_node_is_left_alone(tmp_path: Path) -> None:
    loopback = tmp_path / "bin" / "loopback"
    loopback.parent.mkdir()
    loopback.write_text("the plugin of containernetworking")

    def same() -> None:
        assert loopback.read_text() == "the plugin of containernetworking"

    keep(tmp_path, [same, same])


def test_programs_are_read_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, checks = tmp_path / "bin" / "podwire-cni", list[str]()
    is_installed = program.is_installed

    def counted(directory: Path, name: str) -> bool:
        checks.append(name)
        return is_installed(directory, name)

    def change_with_the_same_times() -> None:
        times = plugin.stat()
        plugin.write_bytes(plugin.read_bytes()[:-1] + b"x")
        os.utime(plugin, ns=(times.st_atime_ns, times.st_mtime_ns))
        checks.clear()

    def restored() -> None:
        assert plugin.read_bytes() == program.path().read_bytes()

    def unchanged() -> None:
        assert checks.count(program.NAME) == 2

    monkeypatch.setattr(program, "is_installed", counted)
    keep(tmp_path, [lambda: None] * 5 + [unchanged, change_with_the_same_times, restored])
