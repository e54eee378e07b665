"""Steps between sets of virtual servers, told as ipvsadm would be."""

from collections.abc import Mapping

import pytest

from podwire.state.ipvs import Destination, Key, VirtualServer, parse
from podwire.state.ipvs_changes import Step, after, draining, idle, plan

WEB = "-t 10.96.0.10:80"


def servers(*lines: str) -> dict[Key, VirtualServer]:
    return {server.key: server for server in parse(lines)}


def web(*ends: str, how: str = "-s rr", name: str = WEB) -> dict[Key, VirtualServer]:
    return servers(f"-A {name} {how}", *(f"-a {name} -r 10.180.0.{end}" for end in ends))


def planned_steps(have: Mapping[Key, VirtualServer], want: Mapping[Key, VirtualServer]) -> list[str]:
    return [str(step) for step in plan(have, want)]


def test_equal_servers_need_no_step() -> None:
    there = web("1:8080 -m -w 1", "2:8080 -m -w 1")
    assert planned_steps(there, there) == []


def test_a_new_virtual_server_and_one_that_changes() -> None:
    assert planned_steps({}, web("1:8080 -m -w 1", how="-s rr -p 60")) == [
        f"-A {WEB} -s rr -p 60",
        f"-a {WEB} -r 10.180.0.1:8080 -m -w 1",
    ]
    assert planned_steps(web("1:8080 -m -w 1"), web("1:8080 -m -w 1", how="-s wlc")) == [f"-E {WEB} -s wlc"]


def test_tcp_real_server_loses_and_regains_its_weight() -> None:
    both, item = web("1:8080 -m -w 1", "2:8080 -m -w 1"), web("1:8080 -m -w 1")
    leaving = f"-e {WEB} -r 10.180.0.2:8080 -m -w 0"
    assert planned_steps(both, item) == [leaving]
    drained = after(both, plan(both, item))
    assert planned_steps(drained, item) == [], "it is on its way already"
    assert planned_steps(drained, both) == [f"-e {WEB} -r 10.180.0.2:8080 -m -w 1"]


def test_a_new_real_server_comes_before_an_old_one_goes() -> None:
    verbs = [step.split()[0] for step in planned_steps(web("1:8080 -m -w 1"), web("2:8080 -m -w 1"))]
    assert verbs == ["-a", "-e"]


@pytest.mark.parametrize(
    ("name", "how"), [("-u 10.96.0.10:53", "-s rr"), (WEB, "-s dh"), ("--sctp-service [::1]:9", "-s rr")]
)
def test_servers_that_do_not_drain_are_deleted_at_once(name: str, how: str) -> None:
    both = web("1:8080 -m -w 1", "2:8080 -m -w 1", how=how, name=name)
    item = web("1:8080 -m -w 1", how=how, name=name)
    assert planned_steps(both, item) == [f"-d {name} -r 10.180.0.2:8080"]
    assert planned_steps(item, {}) == [f"-D {name}"]


def test_a_virtual_server_goes_with_its_last_connection() -> None:
    there = web("1:8080 -m -w 1", "2:8080 -m -w 1")
    steps = plan(there, {})
    assert {str(step) for step in steps} == {f"-e {WEB} -r 10.180.0.{n}:8080 -m -w 0" for n in (1, 2)}
    remaining = after(there, steps)
    ((key, retired),) = draining(remaining, {}).items()
    server = remaining[key]
    first, second = retired
    assert [str(s) for s in idle(server, [(first, 0), (second, 4)], desired=False)] == [f"-d {WEB} -r 10.180.0.1:8080"]
    assert [str(s) for s in idle(server, [(first, 0), (second, 0)], desired=False)] == [f"-D {WEB}"]
    assert len(idle(server, [(first, 0), (second, 0)], desired=True)) == 2
    assert after(remaining, idle(server, [(first, 0), (second, 0)], desired=False)) == {}


def test_unwanted_empty_virtual_server_is_deleted() -> None:
    empty = web()
    assert planned_steps(empty, {}) == [f"-D {WEB}"]
    assert draining(empty, {}) == {next(iter(empty)): ()}


def test_only_tcp_servers_drain() -> None:
    have = web("1:8080 -m -w 1", "2:8080 -m -w 0", "3:8080 -m -w 0")
    want = web("1:8080 -m -w 1", "3:8080 -m -w 1")
    (retired,) = draining(have, want).values()
    assert retired == (Destination("10.180.0.2", 8080, 0),)
    assert draining(want, want) == {}


def test_another_way_to_forward_is_another_real_server() -> None:
    assert planned_steps(web("1:8080 -g -w 1"), web("1:8080 -m -w 1")) == [
        f"-d {WEB} -r 10.180.0.1:8080",
        f"-a {WEB} -r 10.180.0.1:8080 -m -w 1",
    ]


def test_a_step_says_what_it_is_about() -> None:
    (server,) = web("1:8080 -m -w 1").values()
    assert Step("add", server).subject == f"virtual server {WEB}"
    assert Step("add", server, server.destinations[0]).subject == f"real server {WEB} -r 10.180.0.1:8080 -m -w 1"


def test_chosen_keys_alone() -> None:
    there = web("1:8080 -m -w 1") | web(name="-t 10.96.0.11:80")
    first, second = there
    assert [str(step) for step in plan(there, {}, [second])] == ["-D -t 10.96.0.11:80"]
    assert first != second
