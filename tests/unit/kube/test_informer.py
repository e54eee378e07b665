"""Informer, index and shared informers against a scripted server."""

import asyncio

import msgspec

from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.index import Index
from podwire.kube.informer import Informer
from podwire.kube.resources import CONFIGMAPS, PODS
from podwire.model.pod import Pod, PodSpec
from podwire.runtime.clock import SystemClock


def pod(name, version, node=""):
    return {"metadata": {"name": name, "namespace": "d", "resourceVersion": version}, "spec": {"nodeName": node}}


def event(kind, item):
    return {"type": kind, "object": item}


class Script:
    """Lists and watches in the order given; the last watch stays open."""

    def __init__(self, http, lists, watches) -> None:
        self.http = http
        self.lists = list(lists)
        self.watches = list(watches)
        self.targets = []

    async def __call__(self, seen, writer):
        self.targets.append(seen.target)
        if "watch=true" not in seen.target:
            version, items = self.lists.pop(0)
            return self.http.answer(writer, {"metadata": {"resourceVersion": version}, "items": items})
        if not self.watches:
            self.http.open_stream(writer)
            await writer.drain()
            await asyncio.sleep(3600)
        self.http.open_stream(writer)
        for one in self.watches.pop(0):
            self.http.chunk(writer, one)
        writer.write(b"0\r\n\r\n")
        return True


def follow(http, script, until, resource=PODS, trim=None, **options):
    """Runs an informer until ``until(informer)``; its changes as (key, had, has)."""

    async def run():
        async with http.Server(script) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            informer = Informer(client, resource, **options)
            informer.trim = trim
            changes = []
            informer.subscribe(lambda key, old, new: changes.append((key, old is not None, new is not None)))
            async with asyncio.TaskGroup() as group:
                task = group.create_task(informer.run())
                async with asyncio.timeout(5):
                    while not until(informer, changes):  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                task.cancel()
            await client.close()
            server.server.close_clients() if hasattr(server.server, "close_clients") else None
            for waiting in asyncio.all_tasks() - {asyncio.current_task()}:
                waiting.cancel()
            return informer, changes

    return asyncio.run(run())


def test_list_then_watch(http) -> None:
    script = Script(
        http,
        [("3", [pod("a", "1"), pod("b", "2")])],
        [[event("MODIFIED", pod("a", "4", "n1")), event("ADDED", pod("c", "5")), event("DELETED", pod("b", "6"))]],
    )
    informer, changes = follow(http, script, lambda i, c: len(c) == 5)
    assert changes == [
        ("d/a", False, True),
        ("d/b", False, True),
        ("d/a", True, True),
        ("d/c", False, True),
        ("d/b", True, False),
    ]
    assert sorted(informer.objects) == ["d/a", "d/c"]
    assert isinstance(informer.objects["d/a"], Pod)
    assert "resourceVersion=3" in script.targets[1]
    assert informer.resource_version == "6"


def test_a_bookmark_moves_the_version_and_the_watch_goes_on_from_there(http) -> None:
    script = Script(http, [("3", [])], [[event("BOOKMARK", {"metadata": {"resourceVersion": "99"}})]])
    follow(http, script, lambda i, c: len(script.targets) == 3)
    assert "resourceVersion=99" in script.targets[2]


def test_gone_lists_again_and_reports_the_difference(http) -> None:
    gone = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    script = Script(http, [("3", [pod("a", "1"), pod("b", "2")]), ("9", [pod("a", "1"), pod("c", "8")])], [[gone]])
    _, changes = follow(http, script, lambda i, c: len(c) == 4)
    assert changes[2:] == [("d/b", True, False), ("d/c", False, True)]


def test_only_what_is_left_of_an_object_is_kept(http) -> None:
    def trim(whole):
        return msgspec.structs.replace(whole, spec=PodSpec())

    script = Script(http, [("3", [pod("a", "1", "n1")])], [[event("ADDED", pod("b", "5", "n2"))]])
    informer, changes = follow(http, script, lambda i, c: len(c) == 2, trim=trim)
    assert [one.spec for one in informer.objects.values()] == [PodSpec(), PodSpec()]
    assert (informer.resource_version, changes) == ("5", [("d/a", False, True), ("d/b", False, True)])


def test_an_object_that_does_not_decode_keeps_its_last_form(http) -> None:
    broken = pod("a", "4")
    broken["spec"]["containers"] = 7
    script = Script(http, [("3", [pod("a", "1")])], [[event("MODIFIED", broken), event("ADDED", pod("b", "5"))]])
    informer, _ = follow(http, script, lambda i, c: len(c) == 2)
    assert informer.objects["d/a"].metadata.resource_version == "1"


def test_decode_as_dict_and_selectors(http) -> None:
    script = Script(http, [("3", [{"metadata": {"name": "x", "namespace": "d"}, "data": {"k": "v"}}])], [])
    informer, _ = follow(
        http,
        script,
        lambda i, c: i.synced.is_set() and len(script.targets) == 2,
        CONFIGMAPS,
        namespace="d",
        label_selector="a=b",
    )
    assert informer.objects["d/x"]["data"] == {"k": "v"}
    assert script.targets[0].startswith("/api/v1/namespaces/d/configmaps?labelSelector=a%3Db")
    assert "labelSelector=a%3Db" in script.targets[1]


def test_the_last_state_is_kept_while_the_api_is_away() -> None:
    async def run() -> None:
        client = Client(ApiConfig("http://127.0.0.1:1"), SystemClock())
        informer = Informer(client, PODS)
        informer.objects["d/a"] = Pod()
        task = asyncio.ensure_future(informer.run())
        await asyncio.sleep(0.1)
        task.cancel()
        assert list(informer.objects) == ["d/a"]
        assert not informer.synced.is_set()

    asyncio.run(run())


def test_an_index_follows_changes(http) -> None:
    script = Script(
        http,
        [("3", [pod("a", "1", "n1"), pod("b", "2", "n1")])],
        [[event("MODIFIED", pod("a", "4", "n2")), event("DELETED", pod("b", "5"))]],
    )
    seen = []

    class Holder:
        index = None

    def until(informer, changes):
        if Holder.index is None:
            Holder.index = Index(informer, lambda p: (p.spec.node_name,))
        seen.append(None)
        return len(changes) == 4

    follow(http, script, until)
    assert list(Holder.index.values()) == ["n2"]
    assert list(Holder.index.of("n2")) == ["d/a"]
    assert Holder.index.of("n1") == {}
