"""Informer, index and shared informers against a scripted server."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from tests.fakes import scripted_http as http
from tests.fakes.collection import Collection

from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.index import Index
from podwire.kube.informer import Informer
from podwire.kube.resources import CONFIGMAPS, PODS, Resource
from podwire.model.pod import Pod, PodSpec
from podwire.runtime.clock import SystemClock

JsonObject = dict[str, Any]
Change = tuple[str, bool, bool]
"""Key, whether the object existed before, and whether it exists afterwards."""


def pod(name: str, version: str, node: str = "") -> JsonObject:
    return {"metadata": {"name": name, "namespace": "d", "resourceVersion": version}, "spec": {"nodeName": node}}


def event(kind: str, item: JsonObject) -> JsonObject:
    return {"type": kind, "object": item}


class Script:
    """Lists and watches in the order given; the last watch stays open."""

    def __init__(self, lists: Iterable[tuple[str, list[JsonObject]]], watches: Iterable[list[JsonObject]]) -> None:
        self.lists = list(lists)
        self.watches = list(watches)
        self.targets: list[str] = []

    async def __call__(self, received_request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        self.targets.append(received_request.target)
        if "watch=true" not in received_request.target:
            version, items = self.lists.pop(0)
            return http.answer(writer, {"metadata": {"resourceVersion": version}, "items": items})
        if not self.watches:
            http.open_stream(writer)
            await writer.drain()
            await asyncio.sleep(3600)
        http.open_stream(writer)
        for item in self.watches.pop(0):
            http.chunk(writer, item)
        writer.write(b"0\r\n\r\n")
        return True


def follow(
    script: Script,
    until: Callable[[Informer[Any], list[Change]], bool],
    resource: Resource[Any] = PODS,
    trim: Callable[[Any], Any] | None = None,
    clock: SystemClock | None = None,
    kind: type[Informer[Any]] = Informer,
    **options: Any,
) -> tuple[Informer[Any], list[Change]]:
    """Runs an informer until ``until(informer)``; its changes as (key, had, has)."""

    async def run() -> tuple[Informer[Any], list[Change]]:
        async with http.ScriptedServer(script) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), clock or SystemClock())
            informer = kind(client, resource, **options)
            informer.trim = trim
            changes: list[Change] = []
            informer.subscribe(lambda key, old, new: changes.append((key, old is not None, new is not None)))
            async with asyncio.TaskGroup() as group:
                task = group.create_task(informer.run())
                async with asyncio.timeout(5):
                    while not until(informer, changes):  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                task.cancel()
            await client.close()
            for waiting in asyncio.all_tasks() - {asyncio.current_task()}:
                waiting.cancel()
            return informer, changes

    return asyncio.run(run())


def test_list_then_watch() -> None:
    script = Script(
        [("3", [pod("a", "1"), pod("b", "2")])],
        [[event("MODIFIED", pod("a", "4", "n1")), event("ADDED", pod("c", "5")), event("DELETED", pod("b", "6"))]],
    )
    informer, changes = follow(script, lambda i, c: len(c) == 5)
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


def test_bookmark_moves_the_version_where_the_watch_resumes() -> None:
    script = Script([("3", [])], [[event("BOOKMARK", {"metadata": {"resourceVersion": "99"}})]])
    follow(script, lambda i, c: len(script.targets) == 3)
    assert "resourceVersion=99" in script.targets[2]


def test_gone_lists_again_and_reports_the_difference() -> None:
    gone = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    script = Script([("3", [pod("a", "1"), pod("b", "2")]), ("9", [pod("a", "1"), pod("c", "8")])], [[gone]])
    _, changes = follow(script, lambda i, c: len(c) == 4)
    assert changes[2:] == [("d/b", True, False), ("d/c", False, True)]


def test_objects_are_kept_in_their_trimmed_form() -> None:
    def trim(whole: Pod) -> Pod:
        return msgspec.structs.replace(whole, spec=PodSpec())

    script = Script([("3", [pod("a", "1", "n1")])], [[event("ADDED", pod("b", "5", "n2"))]])
    informer, changes = follow(script, lambda i, c: len(c) == 2, trim=trim)
    assert [obj.spec for obj in informer.objects.values()] == [PodSpec(), PodSpec()]
    assert (informer.resource_version, changes) == ("5", [("d/a", False, True), ("d/b", False, True)])


def test_an_object_that_does_not_decode_keeps_its_last_form() -> None:
    broken = pod("a", "4")
    broken["spec"]["containers"] = 7
    script = Script([("3", [pod("a", "1")])], [[event("MODIFIED", broken), event("ADDED", pod("b", "5"))]])
    informer, _ = follow(script, lambda i, c: len(c) == 2)
    assert informer.objects["d/a"].metadata.resource_version == "1"


class FragileInformer(Informer[Any]):
    """An informer whose first subscriber fails on every object."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.failed: list[str] = []
        self.subscribe(self._fail)

    def _fail(self, key: str, _old: Pod | None, _new: Pod | None) -> None:
        self.failed.append(key)
        raise ValueError(key)


def test_a_failing_subscriber_does_not_affect_the_others() -> None:
    script = Script([("3", [pod("a", "1"), pod("b", "2")])], [[event("ADDED", pod("c", "5"))]])
    informer, changes = follow(script, lambda _, changes: len(changes) == 3, kind=FragileInformer)
    assert isinstance(informer, FragileInformer)
    assert informer.failed == ["d/a", "d/b", "d/c"] == [key for key, _, _ in changes]
    assert [target for target in script.targets if "watch" not in target] == script.targets[:1], "listed once"


def many(*numbers: int) -> list[JsonObject]:
    return [pod(f"p{number}", "1") for number in numbers]


class Leaping(SystemClock):
    """A clock whose sleeps take no time."""

    def __init__(self) -> None:
        self.leapt = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.leapt

    async def sleep(self, seconds: float) -> None:
        self.leapt += seconds
        await asyncio.sleep(0)


TOO_OLD: list[list[JsonObject]] = [[{"type": "ERROR", "object": {"code": 410}}]]


def test_sudden_empty_list_is_accepted_after_30_s() -> None:
    clock, script = Leaping(), Script([("9", many(*range(20))), *[("2", many(100))] * 7], TOO_OLD[:])
    _, changes = follow(script, lambda informer, _: len(informer.objects) == 1, clock=clock)
    assert changes[20:] == [*((f"d/p{number}", True, False) for number in range(20)), ("d/p100", False, True)]
    assert not script.lists and 30 <= clock.leapt < 40


def test_list_that_was_empty_once_changes_nothing() -> None:
    script = Script([("9", many(*range(20))), ("2", []), ("12", many(*range(21)))], TOO_OLD[:])
    _, changes = follow(script, lambda informer, _: len(informer.objects) == 21, clock=Leaping())
    assert changes[20:] == [("d/p20", False, True)]


def test_a_short_list_may_become_empty_at_once() -> None:
    clock, script = Leaping(), Script([("9", many(*range(9))), ("12", [])], TOO_OLD[:])
    follow(script, lambda _, changes: len(changes) == 18, clock=clock)
    assert clock.leapt < 10


def test_decode_as_dict_and_selectors() -> None:
    script = Script([("3", [{"metadata": {"name": "x", "namespace": "d"}, "data": {"k": "v"}}])], [])
    informer, _ = follow(
        script,
        lambda i, c: i.synced.is_set() and len(script.targets) == 2,
        CONFIGMAPS,
        namespace="d",
        label_selector="a=b",
    )
    assert informer.objects["d/x"]["data"] == {"k": "v"}
    assert script.targets[0].startswith("/api/v1/namespaces/d/configmaps?labelSelector=a%3Db")
    assert "labelSelector=a%3Db" in script.targets[1]


def test_the_last_state_is_kept_while_the_api_is_unreachable() -> None:
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


def test_an_index_follows_changes() -> None:
    script = Script(
        [("3", [pod("a", "1", "n1"), pod("b", "2", "n1")])],
        [[event("MODIFIED", pod("a", "4", "n2")), event("DELETED", pod("b", "5"))]],
    )
    index: list[Index[Pod]] = []

    def until(informer: Informer[Pod], changes: list[Change]) -> bool:
        if not index:
            index.append(Index(informer, lambda p: (p.spec.node_name,)))
        return len(changes) == 4

    follow(script, until)
    assert list(index[0].values()) == ["n2"]
    assert list(index[0].of("n2")) == ["d/a"]
    assert index[0].of("n1") == {}


def test_the_fake_informer_reports_the_same_changes() -> None:
    watch = [event("ADDED", pod("c", "5")), event("MODIFIED", pod("a", "6", "n1")), event("DELETED", pod("b", "7"))]
    script = Script([("3", [pod("a", "1"), pod("b", "2")])], [watch])
    informer, changes = follow(script, lambda i, c: len(c) == 5)
    fake, reported = Collection[Pod](), list[Change]()
    fake.put("d/a", Pod())
    fake.subscribe(lambda key, old, new: reported.append((key, old is not None, new is not None)))
    for key, value in (("d/b", Pod()), ("d/c", Pod()), ("d/a", Pod()), ("d/b", None)):
        fake.put(key, value)
    assert (reported, sorted(fake.objects)) == (changes, sorted(informer.objects))
    assert (fake.get("d/b"), informer.get("d/b")) == (None, None)
