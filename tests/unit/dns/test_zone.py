"""The zone as it changes: what appears, what goes, and what no change is."""

from typing import Any

import msgspec
import pytest

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.names import address_bytes, decode_name, encode_name
from podwire.dns.zone import Zone, ZoneOptions
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service


def service(name: str, ip: str = "10.96.0.1", kind: str = "ClusterIP", target: str = "", port: int = 80) -> Service:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "type": kind,
                "externalName": target,
                "clusterIP": ip,
                "clusterIPs": [ip] if ip else [],
                "ports": [{"name": "http", "port": port}],
            },
        },
        Service,
    )


def endpoints(owner: str, *addresses: str, ready: bool | None = True, hostnames: tuple[str, ...] = ()) -> EndpointSlice:
    listed = [
        {"addresses": [ip], "conditions": {"ready": ready}, **({"hostname": hostnames[i]} if hostnames else {})}
        for i, ip in enumerate(addresses)
    ]
    return msgspec.convert(
        {
            "metadata": {"name": f"{owner}-x", "namespace": "shop", "labels": {"kubernetes.io/service-name": owner}},
            "endpoints": listed,
            "ports": [{"name": "http", "port": 8080}],
        },
        EndpointSlice,
    )


@pytest.fixture
def zone() -> Zone:
    created = Zone(ZoneOptions())
    created.index.set_namespace("shop", present=True)
    created.index.mark_synced()
    return created


def ask(zone: Zone, name: str, qtype: int = wire.A) -> ZoneAnswer:
    return zone.look_up(encode_name(name), qtype)


def addresses(answer: ZoneAnswer) -> list[bytes]:
    if answer.ring is None:
        return []
    data, step = answer.ring.data, answer.ring.step
    return [data[at + 12 : at + step] for at in range(0, len(data), step)]


def test_a_service_appears_changes_and_goes(zone: Zone) -> None:
    name = "web.shop.svc.cluster.local"
    assert ask(zone, name).rcode == wire.NXDOMAIN
    assert zone.index.set_service("shop/web", service("web", "10.96.0.1"), 1)
    assert addresses(ask(zone, name)) == [address_bytes("10.96.0.1")]
    assert zone.index.set_service("shop/web", service("web", "10.96.0.2"), 2)
    assert addresses(ask(zone, name)) == [address_bytes("10.96.0.2")]
    assert ask(zone, "1.0.96.10.in-addr.arpa", wire.PTR).foreign
    pointer = ask(zone, "2.0.96.10.in-addr.arpa", wire.PTR).ring
    assert pointer is not None and pointer.data.endswith(encode_name(name))
    assert zone.index.set_service("shop/web", None, 3)
    assert ask(zone, name).rcode == wire.NXDOMAIN
    assert ask(zone, "2.0.96.10.in-addr.arpa", wire.PTR).foreign
    assert zone.index.service_count() == 0


def test_equal_objects_change_no_answer(zone: Zone) -> None:
    zone.index.set_service("shop/web", service("web"), 1)
    zone.index.set_slice("shop/web-x", endpoints("web", "10.244.0.5"), 1)
    assert not zone.index.set_service("shop/web", service("web"), 2)
    assert not zone.index.set_slice("shop/web-x", endpoints("web", "10.244.0.5"), 2)
    assert not zone.index.set_namespace("shop", present=True)


def test_a_headless_service_exists_with_ready_endpoints(zone: Zone) -> None:
    name = "db.shop.svc.cluster.local"
    zone.index.set_service("shop/db", service("db", "None"), 1)
    assert ask(zone, name).rcode == wire.NXDOMAIN
    zone.index.set_slice("shop/db-x", endpoints("db", "10.244.0.5", hostnames=("db-0",), ready=False), 1)
    assert ask(zone, name).rcode == wire.NXDOMAIN
    zone.index.set_slice("shop/db-x", endpoints("db", "10.244.0.5", hostnames=("db-0",), ready=None), 1)
    assert addresses(ask(zone, name)) == addresses(ask(zone, "db-0." + name)) == [address_bytes("10.244.0.5")]
    assert ask(zone, name, wire.AAAA).rcode == wire.NOERROR and ask(zone, name, wire.AAAA).empty
    zone.index.set_slice("shop/db-x", None, 2)
    assert ask(zone, name).rcode == ask(zone, "db-0." + name).rcode == wire.NXDOMAIN


def test_a_moved_slice_leaves_its_first_service(zone: Zone) -> None:
    zone.index.set_service("shop/a", service("a", "None"), 1)
    zone.index.set_service("shop/b", service("b", "None"), 1)
    zone.index.set_slice("shop/s", endpoints("a", "10.244.0.5"), 1)
    zone.index.set_slice("shop/s", endpoints("b", "10.244.0.5"), 2)
    assert ask(zone, "a.shop.svc.cluster.local").rcode == wire.NXDOMAIN
    assert addresses(ask(zone, "b.shop.svc.cluster.local")) == [address_bytes("10.244.0.5")]
    pointers = ask(zone, "5.0.244.10.in-addr.arpa", wire.PTR).records
    assert [decode_name(record.names[0]) for record in pointers] == ["10-244-0-5.b.shop.svc.cluster.local."]


def test_an_address_shared_by_services_has_a_pointer_for_each(zone: Zone) -> None:
    for owner in ("a", "b"):
        zone.index.set_service(f"shop/{owner}", service(owner, "None"), 1)
        zone.index.set_slice(f"shop/{owner}-x", endpoints(owner, "10.244.0.5"), 1)
    assert len(ask(zone, "5.0.244.10.in-addr.arpa", wire.PTR).records) == 2
    zone.index.set_slice("shop/a-x", None, 2)
    assert len(ask(zone, "5.0.244.10.in-addr.arpa", wire.PTR).records) == 1


def test_chosen_host_names_precede_names_made_of_addresses(zone: Zone) -> None:
    for owner, hostnames in (("a", ()), ("b", ("db-0",))):
        zone.index.set_service(f"shop/{owner}", service(owner, "None"), 1)
        zone.index.set_slice(f"shop/{owner}-x", endpoints(owner, "10.244.0.5", hostnames=hostnames), 1)
    pointers = ask(zone, "5.0.244.10.in-addr.arpa", wire.PTR).records
    assert [decode_name(record.names[0]) for record in pointers] == [
        "db-0.b.shop.svc.cluster.local.",
        "10-244-0-5.a.shop.svc.cluster.local.",
    ]


def test_srv_records_hold_the_service_port_or_the_target_port(zone: Zone) -> None:
    zone.index.set_service("shop/web", service("web"), 1)
    zone.index.set_service("shop/db", service("db", "None"), 1)
    zone.index.set_slice("shop/db-x", endpoints("db", "10.244.0.5", "10.244.0.6"), 1)
    virtual = ask(zone, "_http._tcp.web.shop.svc.cluster.local", wire.SRV)
    headless = ask(zone, "_http._tcp.db.shop.svc.cluster.local", wire.SRV)
    assert [record.head for record in virtual.records] == [bytes([0, 0, 0, 100, 0, 80])]
    assert [record.head for record in headless.records] == [b"\0\0\0\x32\x1f\x90"] * 2
    assert len(headless.additional) == 2
    assert ask(zone, "_dns._tcp.web.shop.svc.cluster.local", wire.SRV).rcode == wire.NXDOMAIN


@pytest.mark.parametrize(
    "name",
    [
        "",
        "svc",
        "pod",
        "shop.svc",
        "shop.pod",
        "web.shop.svc",
        "_tcp.web.shop.svc",
        "_http._tcp.web.shop.svc",
        "dns-version",
        "dns",
        "ns.dns",
        "10-1-1-1.shop.pod",
    ],
)
@pytest.mark.parametrize("qtype", [wire.A, wire.AAAA, wire.TXT, wire.MX, wire.ANY, wire.SRV, 65])
def test_a_name_that_exists_is_never_nxdomain(zone: Zone, name: str, qtype: int) -> None:
    zone.index.set_service("shop/web", service("web"), 1)
    answer = ask(zone, f"{name}.cluster.local".removeprefix("."), qtype)
    assert answer.rcode == wire.NOERROR
    assert not answer.empty or answer.soa


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "x.svc",
        "web.x.svc",
        "x.shop.svc",
        "x.web.shop.svc",
        "_udp.web.shop.svc",
        "a.b.c.web.shop.svc",
        "*.shop.svc",
        "any.shop.svc",
        "pod.shop.pod",
        "x.10-1-1-1.shop.pod",
        "shop.svc.svc.x",
    ],
)
def test_a_name_that_does_not_exist_is_nxdomain_with_soa(zone: Zone, name: str) -> None:
    zone.index.set_service("shop/web", service("web"), 1)
    answer = ask(zone, f"{name}.cluster.local")
    assert answer.rcode == wire.NXDOMAIN
    assert answer.soa


def test_a_missing_name_is_servfail_until_all_lists_are_there() -> None:
    zone = Zone(ZoneOptions())
    zone.index.set_service("shop/web", service("web"), 1)
    assert ask(zone, "other.shop.svc.cluster.local").rcode == wire.SERVFAIL
    assert ask(zone, "web.shop.svc.cluster.local").rcode == wire.NOERROR
    zone.index.mark_synced()
    assert ask(zone, "other.shop.svc.cluster.local").rcode == wire.NXDOMAIN


def test_aliases(zone: Zone) -> None:
    zone.index.set_service("shop/web", service("web"), 1)
    for name, target in [
        ("out", "example.com"),
        ("in", "web.shop.svc.cluster.local"),
        ("self", "self.shop.svc.cluster.local"),
        ("gone", "nothing.shop.svc.cluster.local"),
        ("number", "192.0.2.1"),
        ("chain", "out.shop.svc.cluster.local"),
    ]:
        zone.index.set_service(f"shop/{name}", service(name, "", "ExternalName", target), 1)
    out = ask(zone, "out.shop.svc.cluster.local")
    assert out.follow == encode_name("example.com") and [r.type for r in out.records] == [wire.CNAME]
    inside = ask(zone, "in.shop.svc.cluster.local")
    assert [r.type for r in inside.records] == [wire.CNAME] and addresses(inside) == [address_bytes("10.96.0.1")]
    assert ask(zone, "in.shop.svc.cluster.local", wire.AAAA).empty
    for name in ("self", "gone"):
        answer = ask(zone, f"{name}.shop.svc.cluster.local")
        assert answer.rcode == wire.NOERROR and answer.empty
    assert ask(zone, "number.shop.svc.cluster.local").rcode == wire.NXDOMAIN
    chain = ask(zone, "chain.shop.svc.cluster.local")
    assert [r.type for r in chain.records] == [wire.CNAME, wire.CNAME] and chain.follow == encode_name("example.com")
    assert ask(zone, "x.out.shop.svc.cluster.local").rcode == wire.NXDOMAIN


def test_verified_pods_answer_for_both_families_while_they_live() -> None:
    zone = Zone(ZoneOptions(pods="verified"))
    zone.index.set_namespace("shop", present=True)
    zone.index.mark_synced()
    document: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "shop"},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.244.0.9"}, {"ip": "fd00::9"}]},
    }
    assert zone.index.set_pod("shop/p", msgspec.convert(document, Pod))
    assert addresses(ask(zone, "10-244-0-9.shop.pod.cluster.local")) == [address_bytes("10.244.0.9")]
    assert addresses(ask(zone, "fd00--9.shop.pod.cluster.local", wire.AAAA)) == [address_bytes("fd00::9")]
    document["status"]["phase"] = "Succeeded"
    assert zone.index.set_pod("shop/p", msgspec.convert(document, Pod))
    assert ask(zone, "10-244-0-9.shop.pod.cluster.local").rcode == wire.NXDOMAIN


def test_the_serial_is_the_time_of_the_last_visible_change(zone: Zone) -> None:
    def serial() -> int:
        return int.from_bytes(ask(zone, "cluster.local", wire.SOA).records[0].tail[:4], "big")

    zone.index.set_service("shop/web", service("web"), 1700000000)
    assert serial() == 1700000000
    zone.index.set_service("shop/web", service("web"), 1700000009)
    assert serial() == 1700000000


def test_other_names_are_asked_upstream(zone: Zone) -> None:
    for name in ("example.com", ".", "local", "xcluster.local", "9.9.9.9.in-addr.arpa"):
        assert ask(zone, name).foreign


def set_chain(zone: Zone, steps: int) -> None:
    zone.index.set_service("shop/web", service("web"), 1)
    for number in range(steps):
        target = "web" if number == steps - 1 else f"alias-{number + 1}"
        alias = service(f"alias-{number}", "", "ExternalName", f"{target}.shop.svc.cluster.local")
        zone.index.set_service(f"shop/alias-{number}", alias, 1)


@pytest.mark.parametrize("steps", [1, 12, 32])
def test_chain_of_aliases_is_followed_to_its_end(zone: Zone, steps: int) -> None:
    set_chain(zone, steps)
    answer = ask(zone, "alias-0.shop.svc.cluster.local")
    assert len(answer.records) == steps and addresses(answer) == [address_bytes("10.96.0.1")]


def test_chain_that_is_too_long_fails(zone: Zone) -> None:
    set_chain(zone, 40)
    assert ask(zone, "alias-0.shop.svc.cluster.local").rcode == wire.SERVFAIL


def test_loop_of_aliases_has_no_data(zone: Zone) -> None:
    for name, target in (("a", "b"), ("b", "c"), ("c", "b")):
        zone.index.set_service(f"shop/{name}", service(name, "", "ExternalName", f"{target}.shop.svc.cluster.local"), 1)
    answer = ask(zone, "a.shop.svc.cluster.local")
    assert answer.rcode == wire.NOERROR and answer.empty


def test_headless_service_of_names_is_an_alias(zone: Zone) -> None:
    zone.index.set_service("shop/db", service("db", "None"), 1)
    named = msgspec.structs.replace(endpoints("db", "db.example.com"), address_type="FQDN")
    zone.index.set_slice("shop/db-x", named, 1)
    for qtype in (wire.A, wire.AAAA):
        answer = ask(zone, "db.shop.svc.cluster.local", qtype)
        assert answer.follow == encode_name("db.example.com") and [r.type for r in answer.records] == [wire.CNAME]
    assert ask(zone, "db.shop.svc.cluster.local", wire.SRV).empty


@pytest.mark.parametrize("label", [b"10.1.1.1", b"fd00::1", b"fe80--1%0", b"01-1-1-1"])
def test_label_that_only_looks_like_an_address_is_no_pod(zone: Zone, label: bytes) -> None:
    name = bytes([len(label)]) + label + encode_name("shop.pod.cluster.local")
    assert zone.look_up(name, wire.A).rcode == wire.NXDOMAIN


def test_octet_with_leading_zero_is_another_name(zone: Zone) -> None:
    zone.index.set_service("shop/web", service("web", "10.96.1.1"), 1)
    assert ask(zone, "1.1.96.10.in-addr.arpa", wire.PTR).ring
    assert ask(zone, "01.1.96.10.in-addr.arpa", wire.PTR).foreign


def test_hosts_come_before_all_other_names() -> None:
    hosts = {"web.shop.svc.cluster.local": ("192.0.2.1",), "www.example.com": ("192.0.2.2", "2001:db8::2")}
    zone = Zone(ZoneOptions(hosts=hosts, hosts_ttl_s=60))
    zone.index.set_service("shop/web", service("web"), 1)
    assert addresses(ask(zone, "Web.shop.svc.cluster.local")) == [address_bytes("192.0.2.1")]
    assert addresses(ask(zone, "www.example.com", wire.AAAA)) == [address_bytes("2001:db8::2")]
    assert ask(zone, "www.example.com", wire.MX).empty and ask(zone, "other.example.com").foreign
    pointer = ask(zone, "2.2.0.192.in-addr.arpa", wire.PTR)
    assert [decode_name(record.names[0]) for record in pointer.records] == ["www.example.com."]
