"""Counters and their text."""

from podwire.dns.metrics import QueryCounters, QueryLabels, render


def test_requests_and_responses_are_added_up_by_their_labels() -> None:
    counters = QueryCounters("dns://:53")
    counters.cell(QueryLabels("cluster.local.", "udp", "1", "A", "NOERROR"))[0] += 2
    counters.cell(QueryLabels("cluster.local.", "udp", "1", "A", "NXDOMAIN"))[0] += 3
    text = render(counters.series()).decode()
    labels = 'server="dns://:53",zone="cluster.local.",view=""'
    assert f'coredns_dns_requests_total{{{labels},proto="udp",family="1",type="A"}} 5\n' in text
    assert f'coredns_dns_responses_total{{{labels},rcode="NXDOMAIN",plugin="kubernetes"}} 3\n' in text
    assert text.count("# TYPE coredns_dns_requests_total counter") == 1


def test_label_values_are_escaped() -> None:
    assert render([("x", (("a", 'b"\\\n'),), 1.5)]) == b'# TYPE x gauge\nx{a="b\\"\\\\\\n"} 1.5\n'
