"""What a worker leaves to the next one."""

import os
from typing import Any

import pytest

from podwire.dns.config import DnsConfig, ForwardConfig
from podwire.dns.snapshot import Snapshot
from podwire.model.meta import ObjectMeta
from podwire.model.service import Service, ServiceSpec

TYPES: dict[str, type[Any]] = {"services": Service}


def a_service(name: str, ip: str = "10.96.0.1") -> Service:
    return Service(metadata=ObjectMeta(name=name, namespace="shop"), spec=ServiceSpec(cluster_ip=ip))


@pytest.fixture
def snapshot() -> Any:
    created = Snapshot()
    yield created
    created.close()


def successor(snapshot: Snapshot) -> Snapshot:
    """The snapshot as the next worker inherits it."""
    inherited = object.__new__(Snapshot)
    inherited.__dict__.update(snapshot.__dict__)
    inherited.__dict__.update({"_objects": {}, "_living": 0, "_size": 0})
    return inherited


def test_objects_are_restored_in_their_last_form(snapshot: Snapshot) -> None:
    assert snapshot.collections == 0 and snapshot.heard_s == 0
    snapshot.record("services", "shop/a", a_service("a"))
    snapshot.record("services", "shop/b", a_service("b"))
    snapshot.record("services", "shop/b", a_service("b", "10.96.0.2"))
    snapshot.record("services", "shop/a", None)
    snapshot.mark_complete(3)
    snapshot.mark_heard(1700000000.5)
    second = successor(snapshot)
    assert second.collections == 3 and second.heard_s == 1700000000.5
    assert second.restore(TYPES) == {"services": {"shop/b": a_service("b", "10.96.0.2")}}


@pytest.mark.parametrize("damage", [b"\0\0\0\x50", b"\0\0\0\x03\0\0\0\0abc", b"\0" * 20, b"x"])
def test_cut_entry_is_ignored_and_the_next_takes_its_room(snapshot: Snapshot, damage: bytes) -> None:
    snapshot.record("services", "shop/a", a_service("a"))
    file = snapshot._files[0]
    os.pwrite(file, damage, os.fstat(file).st_size)
    second = successor(snapshot)
    assert set(second.restore(TYPES)["services"]) == {"shop/a"}
    second.record("services", "shop/b", a_service("b"))
    assert set(successor(second).restore(TYPES)["services"]) == {"shop/a", "shop/b"}


def test_obsolete_entries_are_left_behind(snapshot: Snapshot) -> None:
    for index in range(30_000):
        snapshot.record("services", f"shop/{index % 3}", a_service(str(index)))
    assert sum(os.fstat(file).st_size for file in snapshot._files) < 3 << 20
    restored = successor(snapshot).restore(TYPES)["services"]
    assert {key: service.metadata.name for key, service in restored.items()} == {
        "shop/0": "29997",
        "shop/1": "29998",
        "shop/2": "29999",
    }


def test_saved_configuration_is_that_of_the_next_worker(snapshot: Snapshot) -> None:
    assert snapshot.saved_config() is None
    snapshot.save_config(DnsConfig(domain="a.rather.long.domain.example"))
    snapshot.save_config(DnsConfig(domain="b.example", stub_domains={"c.example": ForwardConfig(force_tcp=True)}))
    expected = DnsConfig(domain="b.example", stub_domains={"c.example": ForwardConfig(force_tcp=True)})
    assert successor(snapshot).saved_config() == expected
