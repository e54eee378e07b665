"""``autopath``: the server walks the search path of a pod."""

import pytest
from tests.unit.dns.plugins.corefiles import CLUSTER, Plugins, code, lines, settings

from podwire.errors import ConfigErrors

_UPSTREAM = {"www.example.com. A": "www.example.com. 60 A 192.0.2.1\nwww.example.com. 60 A 192.0.2.2"}
_ASKED = "www.example.com.shop.svc.cluster.local."


def completing(source: str = "@kubernetes", files: dict[str, str] | None = None) -> Plugins:
    return Plugins(f". {{\n autopath {source}\n{CLUSTER}}}\n", _UPSTREAM, files)


def test_first_request_of_the_search_path_gets_the_final_answer() -> None:
    plugins = completing()
    answer = lines(plugins.ask(_ASKED))
    assert answer[0] == f"{_ASKED} 60 CNAME www.example.com."
    assert sorted(answer[1:]) == ["www.example.com. 60 A 192.0.2.1", "www.example.com. 60 A 192.0.2.2"]
    assert plugins.asked == ["www.example.com. A"] and not plugins.kept


def test_name_of_another_namespace_is_completed_in_the_cluster() -> None:
    answer = lines(completing().ask("db.shop.shop.svc.cluster.local.", "A"))
    assert answer[0] == "db.shop.shop.svc.cluster.local. 5 CNAME db.shop.svc.cluster.local."
    assert len(answer) == 3


@pytest.mark.parametrize("client", ["10.244.9.9", "192.0.2.7"])
def test_clients_that_are_no_pods_are_answered_as_they_ask(client: str) -> None:
    plugins = completing()
    assert code(plugins.ask(_ASKED, client=client)) == "NXDOMAIN" and not plugins.asked


@pytest.mark.parametrize("name", ["www.example.com.svc.cluster.local.", "www.example.com.empty.svc.cluster.local."])
def test_only_the_first_domain_of_the_own_path_is_completed(name: str) -> None:
    plugins = completing()
    assert code(plugins.ask(name)) == "NXDOMAIN" and not plugins.asked


def test_when_nothing_exists_the_first_answer_counts() -> None:
    plugins = completing()
    plugins._upstream = {"gone.example. A": "rcode NXDOMAIN"}
    reply = plugins.ask("gone.example.shop.svc.cluster.local.")
    assert code(reply) == "NXDOMAIN" and plugins.asked == ["gone.example. A"]
    assert lines(reply, "authority")[0].startswith("cluster.local. 5 SOA")


def test_upstream_that_is_away_leaves_the_search_to_the_resolver() -> None:
    assert code(completing().ask("dead.example.shop.svc.cluster.local.")) == "NXDOMAIN"


def test_path_may_come_from_a_file() -> None:
    files = {"/etc/resolv.conf": "nameserver 192.0.2.1\nsearch corp.example shop.svc.cluster.local\n"}
    plugins = Plugins(
        f". {{\n autopath /etc/resolv.conf\n{CLUSTER}}}\n", {"web.corp.example. A": "rcode NXDOMAIN"}, files
    )
    answer = lines(plugins.ask("web.corp.example.", client="192.0.2.7"))
    assert answer == [
        "web.corp.example. 5 CNAME web.shop.svc.cluster.local.",
        "web.shop.svc.cluster.local. 5 A 10.96.0.1",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("autopath", "expected zones and @kubernetes or a file"),
        ("autopath @erratic", "search paths of @kubernetes, not of @erratic"),
        ("autopath /nonexistent", "cannot read /nonexistent"),
    ],
)
def test_wrong_source_is_named_with_its_line(line: str, problem: str) -> None:
    with pytest.raises(ConfigErrors, match=f"line 7: autopath: .*{problem}"):
        settings(". {\n" + CLUSTER + f" {line}\n}}\n")


def test_autopath_needs_pods_by_address() -> None:
    with pytest.raises(ConfigErrors, match="expected pods verified"):
        settings(". {\n kubernetes cluster.local\n autopath @kubernetes\n}\n")
