"""The entries of the maps: which names have one, and what it says."""

import pytest
from tests.unit.dns.test_zone import endpoints, service

from podwire.dns.bpf.entries import (
    MAX_ADDRESSES,
    MAX_HOSTS,
    NO_DATA,
    SERVED,
    Entries,
    EntryPlan,
    NameEntry,
    client_key,
    key_of,
    unpack_entry,
)
from podwire.dns.index import RecordIndex
from podwire.dns.names import encode_name
from podwire.dns.zone import ZoneOptions

ZONE = "cluster.local"


def named(entries: Entries) -> dict[str, NameEntry]:
    """The entries by the labels in front of the zone."""
    shown = {}
    for key, entry in entries.items():
        labels, at = [], 0
        while at < len(key) and key[at]:
            labels.append(key[at + 1 : at + 1 + key[at]].decode())
            at += 1 + key[at]
        shown[".".join(labels)] = entry
    return shown


@pytest.fixture
def index() -> RecordIndex:
    return RecordIndex()


def entries_of(index: RecordIndex, name: str, options: ZoneOptions | None = None) -> dict[str, NameEntry]:
    owner = ("shop", name)
    return named(EntryPlan(options or ZoneOptions()).service(owner, index.records.get(owner)))


def test_service_has_one_entry_with_its_address(index: RecordIndex) -> None:
    index.set_service("shop/web", service("web", "10.96.0.7"), 1)
    index.set_slice("shop/web-x", endpoints("web", "10.244.0.1"), 1)
    assert entries_of(index, "web") == {"web.shop.svc": NameEntry((bytes((10, 96, 0, 7)),))}


def test_headless_service_has_entries_for_its_hosts(index: RecordIndex) -> None:
    index.set_service("shop/db", service("db", "None"), 1)
    assert entries_of(index, "db") == {}, "without endpoints the name does not exist"
    index.set_slice("shop/db-x", endpoints("db", "10.244.0.1", "10.244.0.2", hostnames=("db-0", "db-1")), 1)
    first, second = bytes((10, 244, 0, 1)), bytes((10, 244, 0, 2))
    assert entries_of(index, "db") == {
        "db.shop.svc": NameEntry((first, second)),
        "db-0.db.shop.svc": NameEntry((first,)),
        "db-1.db.shop.svc": NameEntry((second,)),
    }


def test_server_answers_for_aliases_and_many_addresses(index: RecordIndex) -> None:
    index.set_service("shop/alias", service("alias", "", "ExternalName", "example.com"), 1)
    assert entries_of(index, "alias") == {"alias.shop.svc": SERVED}
    for count, entry in ((MAX_ADDRESSES, None), (MAX_ADDRESSES + 1, SERVED), (MAX_HOSTS + 1, SERVED)):
        index.set_service("shop/db", service("db", "None"), 1)
        ips = [f"10.244.{at // 250}.{at % 250}" for at in range(count)]
        index.set_slice("shop/db-x", endpoints("db", *ips), 1)
        entries = entries_of(index, "db")
        assert (entries["db.shop.svc"] == SERVED) is (entry is SERVED)
        assert len(entries) == (1 if count > MAX_HOSTS else 1 + count)


def test_fixed_names_and_namespaces() -> None:
    plan = EntryPlan(ZoneOptions(hosts={"printer.cluster.local": ("192.0.2.7",)}))
    fixed = named(plan.fixed())
    assert fixed["svc"] == NO_DATA
    assert fixed[""] == fixed["dns-version"] == fixed["printer"] == SERVED
    assert named(plan.namespace("shop")) == {"shop.svc": NO_DATA, "shop.pod": NO_DATA}
    assert EntryPlan(ZoneOptions(namespaces=("other",))).namespace("shop") == {}


def test_zone_with_fallthrough_is_not_closed() -> None:
    assert EntryPlan(ZoneOptions()).closed
    assert not EntryPlan(ZoneOptions(fallthrough=("Cluster.local.",))).closed


def test_names_that_the_program_cannot_hold_have_no_key() -> None:
    domain = encode_name(ZONE)
    assert key_of(("WEB", "shop", "svc"), domain) == b"\x03web\x04shop\x03svc".ljust(56, b"\0")
    assert key_of(("a" * 41, "b" * 8, "svc"), domain) == b"\x29" + b"a" * 41 + b"\x08" + b"b" * 8 + b"\x03svc" + b"\0"
    assert key_of(("a" * 43, "b" * 8, "svc"), domain) == b""
    assert key_of(("a" * 63, "b" * 63, "svc"), domain) == b""
    assert key_of(tuple("abcdefghijklmn"), domain) == b""


def test_plan_knows_whether_names_are_too_long_for_keys() -> None:
    plan = EntryPlan(ZoneOptions())
    assert not plan.has_long_names(["shop"], [("shop", "web")])
    assert plan.has_long_names(["a" * 52], [])
    assert plan.has_long_names([], [("shop", "a" * 47)])
    hosts: dict[str, tuple[str, ...]] = {f"{'a' * 60}.cluster.local": ("192.0.2.7",), "b.example": ("192.0.2.7",)}
    assert EntryPlan(ZoneOptions(hosts=hosts)).has_long_names([], [])


def test_entry_packs_and_unpacks() -> None:
    for entry in (SERVED, NO_DATA, NameEntry((b"\x01\x02\x03\x04",) * 12, (bytes(range(16)),) * 12)):
        packed, more = entry.pack(0xDEADBEEF), entry.pack_more(0xDEADBEEF)
        assert (len(packed), len(more)) == (80, 192)
        assert unpack_entry(packed, more) == entry
        assert entry.has_more or unpack_entry(packed) == entry


def test_values_that_do_not_belong_together_are_no_entry() -> None:
    entry = NameEntry((), (bytes(range(16)), bytes(16)))
    assert unpack_entry(entry.pack(7), entry.pack_more(8)) is None
    assert unpack_entry(entry.pack(7)) is None


def test_settings_have_one_address_of_the_service_in_each_family() -> None:
    plan, v4, v6 = EntryPlan(ZoneOptions()), bytes((10, 96, 0, 10)), bytes(range(16))
    both = plan.settings(1, 2, 3, (v6, v4), 1232, long_names=False)
    assert both[16:48] == bytes(10) + b"\xff\xff" + v4 + v6
    assert plan.settings(1, 2, 3, (v6,), 1232, long_names=False)[16:48] == bytes(16) + v6
    assert plan.settings(1, 2, 3, (), 1232, long_names=False)[16:48] == bytes(32)


def test_client_key_has_device_and_address() -> None:
    assert client_key(7, bytes((10, 0, 0, 1))) == b"\x07\0\0\0" + bytes(10) + b"\xff\xff\x0a\0\0\x01"
