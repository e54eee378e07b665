"""When the kernel refuses a change, the last rules stay, the failure is reported, and the change is retried."""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from tests.cases.service_table import NODE
from tests.kernel.service_namespaces import World, by_name, inside, path, traffic, until
from tests.kernel.service_owner import ServiceOwner
from tests.kernel.test_proxy_metrics import FOUR, Bench

from podwire.errors import KernelError
from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import open_socket
from podwire.model.service import Service
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.dataplanes.nftables.layout import TABLE
from podwire.state.nft_diff import AddElements, DeleteElements, Transaction

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

CAP_NET_ADMIN = 12
FAILURES = "sync_proxy_rules_nftables_sync_failures_total"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


def net_admin(*, allowed: bool) -> None:
    """Gives or takes CAP_NET_ADMIN from this thread; without it the kernel refuses changes with EPERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(24)
    assert libc.capget(header, data) == 0
    arguments = list(struct.unpack("=6I", data.raw))
    arguments[0] = arguments[0] | 1 << CAP_NET_ADMIN if allowed else arguments[0] & ~(1 << CAP_NET_ADMIN)
    assert libc.capset(header, ctypes.create_string_buffer(struct.pack("=6I", *arguments))) == 0


def held() -> str:
    return inside("node", "nft", "-s", "list", "table", "ip", TABLE)


def test_refused_change_is_reported_and_retried_with_old_rules(world: World) -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        bench = Bench("nftables")
        async with bench.running():
            bench.put("ClusterIP")
            await until(bench.proxy.programmed.is_set)
            before = held()
            net_admin(allowed=False)
            await asyncio.to_thread(net_admin, allowed=False)
            try:
                bench.services.put("default/more", _renamed("more", "10.96.0.20"))
                await until(lambda: len(bench.told) > 1)
                assert held() == before
                assert not bench.proxy.programmed.is_set()
            finally:
                net_admin(allowed=True)
                await asyncio.to_thread(net_admin, allowed=True)
            assert all(
                "Operation not permitted" in text and "Services stay as they were" in text for text in bench.told
            )
            await until(bench.proxy.programmed.is_set)
            assert held() != before
            assert "10.96.0.20" in held()
            assert bench.value(FAILURES, **FOUR) >= len(bench.told)
            assert bench.value("sync_proxy_rules_service_changes_pending", **FOUR) == 0

    asyncio.run(scenario())


def _renamed(name: str, address: str) -> Service:
    (service,) = by_name("ClusterIP").services
    meta = msgspec.structs.replace(service.metadata, name=name)
    spec = msgspec.structs.replace(service.spec, cluster_ip=address, cluster_ips=(address,))
    return msgspec.structs.replace(service, metadata=meta, spec=spec)


def test_services_keep_working_while_changes_are_refused(world: World) -> None:
    with contextlib.closing(ServiceOwner(NftablesDataPlane(NODE, path("node")))) as plane:
        both = by_name("ClusterIP").resolved()
        plane.load(both)
        with traffic(world, "far", "10.96.0.10") as results:
            net_admin(allowed=False)
            try:
                deadline = time.monotonic() + 60
                while len(results) < 50 and time.monotonic() < deadline:
                    with pytest.raises(KernelError, match="not permitted"):
                        plane.update({"default/web": ()})
            finally:
                net_admin(allowed=True)
        assert len(results) >= 50
        assert set(results) <= {"one", "two"}
        plane.update({"default/web": ()})
        assert world.connect("far", "10.96.0.10", 80)[0] == "dropped"
        plane.remove()


def test_a_foreign_set_that_is_too_small_is_replaced(world: World) -> None:
    with contextlib.closing(ServiceOwner(NftablesDataPlane(NODE, path("node")))) as plane:
        case = by_name("NodePort with policy Cluster").resolved()
        plane.load(case)
        text = held().replace("map endpoints {\n", "map endpoints {\n\t\tsize 2\n", 1)
        inside("node", "nft", f"delete table ip {TABLE}; {text}")
        assert "size 2" in held()
        (web,) = case["default/web"]
        more = msgspec.structs.replace(web, service="default/more", cluster_ip="10.96.0.20", node_port=0)
        plane.update({"default/more": (more,)})
        assert plane.counts().refused_updates == 1
        assert "size 2" not in held()
        assert {world.connect("one", "10.96.0.20", 80)[0] for _ in range(24)} == {"two", "far"}
        assert world.connect("outside", "192.168.99.1", 30080)[0] in ("two", "far")
        plane.remove()


def test_a_refusal_is_reported_even_when_answers_overflow(world: World) -> None:
    """When the kernel sends more errors than the socket holds (ENOBUFS), the first error is reported."""
    with contextlib.closing(ServiceOwner(NftablesDataPlane(NODE, path("node")))) as plane, Nft(path("node")) as nft:
        plane.load(by_name("ClusterIP").resolved())
        before = held()
        nft._socket._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        addresses = plane.desired()[0].set("cluster-ips").without_elements()
        gone = (addresses.element(f"10.97.{number >> 8}.{number & 255}") for number in range(3000))
        operations = tuple(DeleteElements(addresses, {key: element}) for key, element in gone)
        with pytest.raises(KernelError, match=r"10\.97\.0\.0"):
            nft.commit(Transaction("ip", TABLE, operations))
        assert held() == before
        nft.commit(Transaction("ip", TABLE, (AddElements(addresses, dict([addresses.element("10.97.0.1")])),)))
        assert any(plane.heal())
        assert held() == before
        plane.remove()


def test_proxy_waits_for_its_table_owned_by_another_process(world: World) -> None:
    async def scenario() -> None:
        owner = own_table(TABLE)
        try:
            bench = Bench("nftables")
            running = asyncio.get_running_loop().create_task(bench.proxy.run())
            bench.put("ClusterIP")
            await until(lambda: len(bench.told) > 1)
            assert not bench.proxy.programmed.is_set()
        finally:
            owner.close()
        await until(bench.proxy.programmed.is_set)
        assert (await asyncio.to_thread(world.connect, "far", "10.96.0.10", 80))[0] in ("one", "two")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        bench.plane._plane.remove()
        bench.plane.close()

    asyncio.run(scenario())


def own_table(name: str) -> socket.socket:
    """A table that only this socket may change, and that goes with it (NFT_TABLE_F_OWNER)."""
    sock = open_socket(path("node"))
    begin = nl.message(uapi.NFNL_MSG_BATCH_BEGIN, 0, 1, 0, b"", batch=True)
    table = nl.message(uapi.NFT_MSG_NEWTABLE, uapi.NLM_F_CREATE | uapi.NLM_F_ACK, 2, 2, nl.text(1, name) + nl.u32(2, 2))
    sock.send(begin + table + nl.message(uapi.NFNL_MSG_BATCH_END, 0, 3, 0, b"", batch=True))
    (answer,) = nl.messages(sock.recv(4096))
    assert answer[3][:4] == b"\0\0\0\0", "the table is there"
    return sock
