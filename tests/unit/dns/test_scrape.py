"""The series of a scrape: the names and labels that dashboards for CoreDNS use."""

import re

import dns.exception
import pytest
from tests.fakes.name_server import address_answer, name_server
from tests.unit.dns.test_plugin_server import ask, root, run, serving

from podwire.dns.metrics import DURATION_BOUNDS, SIZE_BOUNDS, Buckets

_DASHBOARD = {
    "coredns_build_info": "version goversion revision",
    "coredns_panics_total": "",
    "coredns_plugin_enabled": "server zone view name",
    "coredns_dns_requests_total": "server zone view proto family type",
    "coredns_dns_responses_total": "server zone view rcode plugin",
    "coredns_dns_do_requests_total": "server zone view",
    "coredns_dns_request_duration_seconds_bucket": "server zone view le",
    "coredns_dns_request_duration_seconds_sum": "server zone view",
    "coredns_dns_request_duration_seconds_count": "server zone view",
    "coredns_dns_request_size_bytes_bucket": "server zone view proto le",
    "coredns_dns_request_size_bytes_sum": "server zone view proto",
    "coredns_dns_response_size_bytes_bucket": "server zone view proto le",
    "coredns_dns_response_size_bytes_count": "server zone view proto",
    "coredns_cache_entries": "server type zones view",
    "coredns_cache_hits_total": "server type zones view",
    "coredns_cache_evictions_total": "server type zones view",
    "coredns_cache_requests_total": "server zones view",
    "coredns_cache_misses_total": "server zones view",
    "coredns_cache_prefetch_total": "server zones view",
    "coredns_cache_served_stale_total": "server zones view",
    "coredns_cache_drops_total": "server zones view",
    "coredns_forward_healthcheck_broken_total": "",
    "coredns_forward_max_concurrent_rejects_total": "",
    "coredns_proxy_request_duration_seconds_bucket": "proxy_name to rcode le",
    "coredns_proxy_request_duration_seconds_count": "proxy_name to rcode",
    "coredns_proxy_healthcheck_failures_total": "proxy_name to rcode",
    "coredns_proxy_conn_cache_hits_total": "proxy_name to proto",
    "coredns_proxy_conn_cache_misses_total": "proxy_name to proto",
    "coredns_hosts_entries": "",
    "coredns_autopath_success_total": "server",
}
"""The labels of each series."""

_ROW = re.compile(r"^(\w+?)(?:\{(.*)\})? (\S+)$")


def rows(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each series."""
    matches = (_ROW.match(line) for line in text.splitlines() if not line.startswith("#"))
    return [
        (match[1], dict(re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', match[2] or "")), float(match[3]))
        for match in matches
        if match is not None
    ]


def test_scrape_has_the_series_and_labels_of_dashboards() -> None:
    async def body() -> None:
        async with name_server(address_answer) as upstream:
            text = root(f"autopath @kubernetes\n cache\n forward . {upstream.address}").replace(
                "kubernetes cluster.local\n", "kubernetes cluster.local {\n pods verified\n }\n"
            )
            async with serving(text) as server:
                for tcp in (False, True):
                    for name in ("web.shop.svc.cluster.local.", "gone.shop.svc.cluster.local.", "www.example."):
                        for _ in range(2):
                            await ask(server, name, tcp=tcp)
                await ask(server, "www.example.", dnssec=True)
                listed = rows(server.metrics().decode())
        series = {name: labels for name, labels, _ in listed}
        assert {name: " ".join(series[name]) for name in _DASHBOARD if name in series} == _DASHBOARD
        totals = [sum(value for name, _, value in listed if name == total) for total in (
            "coredns_dns_requests_total", "coredns_dns_responses_total", "coredns_dns_request_size_bytes_count",
        )]  # fmt: skip
        assert totals == [13, 13, 13]
        durations = [value for name, _, value in listed if name == "coredns_dns_request_duration_seconds_count"]
        assert sum(durations) == 13

    run(body())


_PLUGINS = """
example.org {
 view inside {
  expr type() == 'A'
 }
 acl {
  block net 192.0.2.0/24
  filter type TXT
 }
 template IN A {
  match ^a
  answer "{{ .Name }} 60 IN A 192.0.2.1"
  fallthrough
 }
 template IN A bad.example.org {
  answer "{{ .Name }} 60 IN A no-address"
 }
}
example.net {
 acl {
  drop type AAAA
  block type TXT
  filter type MX
 }
 template IN A {
  answer "{{ .Name }} 60 IN A 192.0.2.1"
 }
}
"""


def test_scrape_counts_access_rules_templates_and_views() -> None:
    async def body() -> None:
        async with serving(root("errors") + _PLUGINS) as server:
            for name, kind in (
                ("a1.example.org.", "A"),
                ("x.bad.example.org.", "A"),
                ("b.example.net.", "A"),
                ("b.example.net.", "A"),
                ("b.example.net.", "TXT"),
                ("b.example.net.", "MX"),
            ):
                await ask(server, name, kind=kind)
            with pytest.raises(dns.exception.Timeout):
                await ask(server, "b.example.net.", kind="AAAA", timeout_s=0.2)
            listed = rows(server.metrics().decode())
        address = f"dns://:{server.config.port}"
        assert all(labels.pop("server") == address for _, labels, _ in listed if "server" in labels)
        counted = {
            (name.removeprefix("coredns_"), " ".join(labels.values())): value
            for name, labels, value in listed
            if name.startswith(("coredns_acl", "coredns_template"))
        }
        line = "{{ .Name }} 60 IN A no-address"
        assert counted == {
            ("acl_allowed_requests_total", "inside"): 2,
            ("acl_allowed_requests_total", ""): 2,
            ("acl_blocked_requests_total", " example.net."): 1,
            ("acl_filtered_requests_total", " example.net."): 1,
            ("acl_dropped_requests_total", " example.net."): 1,
            ("template_matches_total", "example.org. inside IN A"): 1,
            ("template_matches_total", "bad.example.org. inside IN A"): 1,
            ("template_matches_total", "example.net.  IN A"): 2,
            ("template_rr_failures_total", f"inside bad.example.org. IN A answer {line}"): 1,
        }
        for name in ("coredns_dns_requests_total", "coredns_dns_request_duration_seconds_count"):
            views = [(labels["view"], value) for own, labels, value in listed if own == name and labels["view"]]
            assert views == [("inside", 2)]

    run(body())


def test_kept_replies_are_measured_one_of_many() -> None:
    async def body() -> None:
        async with serving(root("errors")) as server:
            for _ in range(130):
                await ask(server, "web.shop.svc.cluster.local.")
            listed = rows(server.metrics().decode())
        (requests,) = (value for name, _, value in listed if name == "coredns_dns_requests_total")
        (measured,) = (value for name, _, value in listed if name == "coredns_dns_request_duration_seconds_count")
        assert (requests, measured) == (130, 128)

    run(body())


@pytest.mark.parametrize("bounds", [SIZE_BOUNDS, DURATION_BOUNDS])
def test_buckets_count_values_up_to_their_bound(bounds: tuple[float, ...]) -> None:
    buckets = Buckets(bounds)
    for value in (bounds[1], bounds[1] + 0.00001, bounds[-1] + 1):
        buckets.observe(value, 2)
    counts = {labels[-1][1]: value for name, labels, value in buckets.series("x", ()) if name == "x_bucket"}
    assert list(counts.values())[:3] == [0, 2, 4] and counts["+Inf"] == 6
    assert list(counts)[1] == f"{bounds[1]:g}"
