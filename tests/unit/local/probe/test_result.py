import json

from podwire.local.probe.plan import HOST, Attempt, PacketSource, ProbePort
from podwire.local.probe.result import ProbeResult, as_json, overview, summary
from podwire.local.probe.table import as_table

WEB = PacketSource(name="shop/web", pod_uid="1", node="node-1")
DB = PacketSource(name="shop/db", pod_uid="2", node="node-2")


def result(
    source: PacketSource, target: str, *, reached: bool = True, named: bool = False, error: str = ""
) -> ProbeResult:
    attempt = Attempt(source=source, target=target, address="10.0.0.1", port=ProbePort(number=80), named=named)
    return ProbeResult(attempt, reached=reached, ms=1.25, answered_by="shop/db", source_seen="10.1.1.1", error=error)


def test_json_lines_have_the_documented_fields() -> None:
    line = json.loads(as_json(result(WEB, "shop/db")))
    assert line == {
        "from": "shop/web", "to": "shop/db", "protocol": "TCP", "port": 80, "reached": True,
        "answered_by": "shop/db", "source_seen": "10.1.1.1", "ms": 1.25,
    }  # fmt: skip


def test_the_table_marks_surprises() -> None:
    text = as_table([result(WEB, "shop/db"), result(DB, "shop/web", reached=False, error="timed out")])
    assert text.splitlines()[2].split()[:4] == ["shop/web", "shop/db", "80/TCP", "yes"]
    assert "no (timed out)" in text
    assert text.splitlines()[1].endswith("<- expected to be reached")


def test_summary_counts_and_gives_the_median() -> None:
    assert summary([result(WEB, "shop/db")]) == "1 of 1 as expected, median 1.2 ms"
    assert summary([result(WEB, "shop/db", reached=False)]) == "0 of 1 as expected; 1 NOT as expected"


def test_the_overview_has_three_parts_and_names_failures() -> None:
    text = overview(
        [
            result(WEB, "shop/db"),
            result(DB, "shop/web", reached=False, error="refused"),
            result(WEB, "svc/shop/db", named=True),
            result(PacketSource(name=HOST), "node-1:30080 of svc/shop/web"),
        ]
    )
    assert text.splitlines()[:4] == [
        "Pods to pods (o reached, X not):",
        "  #  POD       NODE    1  2",
        "  1  shop/web  node-1  -  o",
        "  2  shop/db   node-2  X  -",
    ]
    assert "  shop/db 80/TCP  o" in text
    assert "  shop/web 80/TCP  o" in text
    assert "shop/db  ->  shop/web  80/TCP  refused" in text
    assert text.endswith("3 of 4 as expected, median 1.2 ms; 1 NOT as expected")


def denied(source: PacketSource, target: str, *, reached: bool = False, either: bool = False) -> ProbeResult:
    because = "cluster DNS: shop/web -> shop/db TCP 80: dropped at ingress: isolated by shop/db; nearest rule shop/db"
    attempt = Attempt(
        source=source,
        target=target,
        address="10.0.0.1",
        port=ProbePort(number=80),
        expected=either,
        either=either,
        because=because,
    )
    return ProbeResult(attempt, reached=reached, error="" if reached else "timed out")


def test_denied_connections_are_expected_and_explained() -> None:
    text = as_table([denied(WEB, "shop/db"), denied(WEB, "shop/db", reached=True), denied(WEB, "x", either=True)])
    assert text.splitlines()[2].endswith("no (timed out)  -            -            0.0  "
                                         "cluster DNS: dropped at ingress: isolated by shop/db")  # fmt: skip
    assert text.splitlines()[1].endswith(
        "<- not expected to be reached: cluster DNS: dropped at ingress: isolated by shop/db"
    )
    assert "depends on the endpoint" in text.splitlines()[3]
    assert summary([denied(WEB, "shop/db")]) == "1 of 1 as expected, 1 denied by policies"


def test_the_overview_distinguishes_denied_from_lost() -> None:
    text = overview([denied(WEB, "shop/db"), result(DB, "shop/web", reached=False, error="timed out")])
    assert text.splitlines()[:4] == [
        "Pods to pods (o reached, . denied by policies, X not as expected):",
        "  #  POD       NODE    1  2",
        "  1  shop/web  node-1  -  .",
        "  2  shop/db   node-2  X  -",
    ]
    leaked = overview([denied(WEB, "shop/db", reached=True)])
    assert "reached, yet: cluster DNS: shop/web -> shop/db TCP 80: dropped at ingress" in leaked


def test_the_overview_distinguishes_absent_from_reached() -> None:
    attempt = Attempt(
        source=WEB, target="svc/shop/db", address="db", port=ProbePort(number=80), named=True, expected=False
    )
    text = overview([result(WEB, "shop/db"), ProbeResult(attempt, reached=False, error="refused")])
    assert text.startswith("Pods to pods (o reached, - nobody there, X not as expected):")
    assert "  shop/db 80/TCP  -" in text
