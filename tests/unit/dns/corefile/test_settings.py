"""The plugins of a Corefile as settings, and those that podwire does not have."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.upgrade.corefile_texts import KUBEADM_1_35

from podwire.cli.component import dns
from podwire.dns.config import CacheConfig, DnsConfig, ForwardConfig, ServingTls, TlsConfig
from podwire.dns.corefile.load import load_corefile
from podwire.dns.corefile.settings import read_settings
from podwire.dns.corefile.syntax import parse_corefile
from podwire.errors import ConfigError, ConfigErrors

ROOT = ". {\n kubernetes cluster.local\n %s\n}\n"


def read(text: str) -> DnsConfig:
    def read_files(name: str) -> dict[str, str]:
        return {name: "192.0.2.9 File.example # tail\n\n# head\n"} if name == "/etc/hosts" else {}

    return read_settings(parse_corefile(text, "Corefile", {}, read_files), "Corefile", read_files)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        read(text)
    return str(raised.value).splitlines()


def test_corefile_of_kubeadm_is_read_as_it_is() -> None:
    assert read(KUBEADM_1_35) == DnsConfig(
        domain="cluster.local",
        ttl_seconds=30,
        pods="insecure",
        lameduck_seconds=5.0,
        resolv_conf="",
        forward=ForwardConfig(upstreams=("/etc/resolv.conf",), policy="random", max_concurrent=1000),
        cache_seconds=30,
        reload_seconds=30.0,
    )


def test_plugins_that_are_absent_are_off() -> None:
    config = read(ROOT % "")
    assert (config.health_port, config.ready_port, config.metrics_port, config.cache_seconds) == (0, 0, 0, 0)
    assert (config.pods, config.reverse_zones, config.fallthrough) == ("disabled", (), ())


def test_stub_domains_have_servers_of_their_own() -> None:
    text = ROOT % "forward a.example 192.0.2.1" + "b.example:53 c.example {\n cache 30\n forward . 192.0.2.2:54 {\n"
    config = read(text + "  policy sequential\n  force_tcp\n  prefer_udp\n  health_check 2s\n  max_fails 3\n }\n}\n")
    second = ForwardConfig(
        upstreams=("192.0.2.2:54",), force_tcp=True, prefer_udp=True, health_check_seconds=2.0, max_fails=3
    )
    assert config.stub_domains == {
        "a.example": ForwardConfig(upstreams=("192.0.2.1",), policy="random"),
        "b.example": second,
        "c.example": second,
    }


def test_forward_leads_to_the_next_one_of_its_block() -> None:
    text = (
        "forward a.example 192.0.2.1 {\n next nxdomain SERVFAIL\n next_on_nodata\n}\n"
        "forward b.example 192.0.2.2\n"
        "forward . 192.0.2.3 {\n except c.example\n}\n"
        "forward . 192.0.2.4"
    )
    config = read(ROOT % text)
    last = ForwardConfig(upstreams=("192.0.2.4",), policy="random")
    root = ForwardConfig(upstreams=("192.0.2.3",), policy="random", except_zones=("c.example",), next_forward=last)
    assert config.forward == root
    assert config.stub_domains == {
        "a.example": ForwardConfig(
            upstreams=("192.0.2.1",),
            policy="random",
            next_codes=("NXDOMAIN", "SERVFAIL"),
            next_without_data=True,
            next_forward=root,
        ),
        "b.example": ForwardConfig(upstreams=("192.0.2.2",), policy="random"),
    }


def test_options_of_kubernetes_become_settings() -> None:
    options = (
        "endpoint_pod_names\nnamespaces a b\nignore empty_service\nkubeconfig /etc/k\nfallthrough\npods verified\n"
    )
    config = read(f". {{\n kubernetes k.example 10.in-addr.arpa {{\n{options}}}\n bind 127.0.0.1 ::1\n}}\n")
    assert (config.domain, config.reverse_zones) == ("k.example", ("10.in-addr.arpa",))
    assert config.fallthrough == ("k.example", "10.in-addr.arpa")
    assert config.endpoint_pod_names and config.ignore_empty_service and config.namespaces == ("a", "b")
    assert (config.kubeconfig, config.pods, config.listen) == ("/etc/k", "verified", ("127.0.0.1", "::1"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("etcd", "podwire does not have this plugin"),
        ("kubernetes x.example", "expected this plugin once"),
        ("forward . https://192.0.2.1", "podwire forwards over UDP, TCP and TLS"),
        ("forward . 192.0.2.1 {\n  tls_servername x\n }", "expected a server tls:// with tls"),
        ("forward . tls://192.0.2.1%a {\n  tls_servername x\n }", "either behind the address or in tls_servername"),
        ("forward . 192.0.2.1 {\n  failover NOERROR\n }", "expected a response code other than NOERROR"),
        ("forward . 192.0.2.1 {\n  health_check 1s recursive\n }", "expected no_rec, or domain and a name"),
        ("forward . 192.0.2.1 {\n  except a..b\n }", "expected a domain name"),
        ("forward .", "expected a zone and at least one server"),
        ("forward . 192.0.2.1 {\n  resolver 192.0.2.9\n }", "podwire does not have this option of forward"),
        ("forward . 192.0.2.1 {\n  next NODATA\n }", "expected a response code, got 'NODATA'"),
        ("forward . 192.0.2.1\n forward . 192.0.2.2", "expected one forward for the root zone"),
        (
            "forward . 192.0.2.1 {\n  next NXDOMAIN\n }\n forward . 192.0.2.2\n forward . 192.0.2.3",
            "expected one forward for the root zone",
        ),
        ("forward . 192.0.2.1 {\n  policy least\n }", "or not with 'least'"),
        ("forward web.cluster.local 192.0.2.1", "podwire answers web.cluster.local from the cluster"),
        ("cache 30 {\n  keepttl\n }", "podwire does not have this option of cache"),
        ("cache 30 {\n  serve_stale verify immediate\n }", "expected a time, and immediate or verify"),
        ("cache 30 {\n  disable success a.example\n }", "expected the cluster's zone, got 'a.example'"),
        ("cache x", "expected a whole number, got 'x'"),
        ("health {\n  lameduck soon\n }", "expected a time such as 5s"),
        ("errors {\n  consolidate 5m x\n }", "podwire does not have options of this plugin"),
        ("bind eth0", "expected an address, got 'eth0'"),
        ("loadbalance weighted", "expected round_robin"),
        ("cache 30 {\n  prefetch 10 1m 5%\n }", "expected 10% to 90%, got 5%"),
        ("cache 30 {\n  servfail 10m\n }", "expected at most 5m"),
        ("hosts {\n  a.example 192.0.2.1\n  fallthrough\n }", "expected an address and names"),
        ("hosts /nonexistent {\n  fallthrough\n }", "cannot read /nonexistent"),
        ("log . {\n  class denials\n }", "expected class and success, denial, error or all"),
        ('log . "{nothing}"', "podwire does not log {nothing}"),
        ("log example.org", "podwire logs all names"),
    ],
)
def test_unknown_is_named_with_its_line(line: str, problem: str) -> None:
    (message,) = problems(ROOT % line)
    assert message.startswith("Corefile: line ") and problem in message


def test_hosts_of_the_corefile_and_of_a_file() -> None:
    lines = [
        "hosts /etc/hosts {",
        "192.0.2.1 A.example b.example.",
        "2001:db8::1 a.example",
        "ttl 60",
        "fallthrough",
        "}",
    ]
    config = read(ROOT % "\n".join([*lines, "log"]))
    assert config.hosts == {
        "a.example": ("192.0.2.1", "2001:db8::1"),
        "b.example": ("192.0.2.1",),
        "file.example": ("192.0.2.9",),
    }
    assert config.hosts_ttl_seconds == 60 and config.query_log


def test_options_of_forward_become_settings() -> None:
    text = """forward . tls://192.0.2.1 tls://[2001:db8::1]:8853 {
 tls /c /k /a
 tls_servername dns.example
 expire 20s
 except a.example B.example.
 failover SERVFAIL REFUSED
 failfast_all_unhealthy_upstreams
 health_check 2s no_rec domain probe.example
 }"""
    assert read(ROOT % text).forward == ForwardConfig(
        upstreams=("tls://192.0.2.1", "tls://[2001:db8::1]:8853"),
        policy="random",
        tls=TlsConfig(certificate="/c", key="/k", authorities="/a"),
        tls_server_name="dns.example",
        expire_seconds=20.0,
        except_zones=("a.example", "b.example"),
        failover=("SERVFAIL", "REFUSED"),
        fail_fast=True,
        health_check_seconds=2.0,
        health_check_recursion=False,
        health_check_domain="probe.example",
    )


def test_options_of_cache_become_settings() -> None:
    text = (
        "cache {\n success 5000 600 10\n denial 2500 60\n prefetch 10 2m 20%\n servfail 5s\n }"
        "\n}\na.example {\n cache 7\n forward . 192.0.2.1"
    )
    caches = read(ROOT % text).caches
    assert caches["."] == CacheConfig(
        success_capacity=5000,
        success_seconds=600.0,
        success_least_seconds=10.0,
        denial_capacity=2500,
        denial_seconds=60.0,
        prefetch_amount=10,
        prefetch_seconds=120.0,
        prefetch_percent=20,
        failure_seconds=5.0,
    )
    assert (caches["a.example"].success_seconds, caches["a.example"].denial_seconds) == (7.0, 7.0)


def test_settings_alone_make_no_chain_of_plugins() -> None:
    assert read(KUBEADM_1_35).blocks == ()
    (block,) = read(ROOT % "any\n forward . 192.0.2.1").blocks
    assert (block.zones, block.cluster, block.forwards) == (("",), True, True)
    assert [directive.name for directive in block.directives] == ["any"]


def test_networks_stand_for_their_reverse_zones() -> None:
    config = read("10.0.0.0/15 .:53 {\n kubernetes cluster.local\n any\n}\n")
    assert config.blocks[0].zones == ("0.10.in-addr.arpa", "1.10.in-addr.arpa", "")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("https://.", "podwire serves DNS over UDP, TCP and TLS"),
        (".:x", "expected one port"),
        ("10.0.0.0/x", "IPv4 or IPv6"),
    ],
)
def test_wrong_key_of_a_server_block_is_named(key: str, problem: str) -> None:
    assert problem in problems(f"{key} {{\n kubernetes cluster.local\n}}\n")[0]


TLS = "tls /certificate /key /authorities {\n client_auth require_and_verify\n }"
FILES = {"/certificate": "one", "/key": "two"}


def encrypted(text: str, files: dict[str, str] | None = None) -> DnsConfig:
    held = FILES if files is None else files
    read_files = lambda name: {name: held[name]} if name in held else {}  # noqa: E731
    return read_settings(parse_corefile(text, "Corefile", {}, read_files), "Corefile", read_files)


@pytest.mark.parametrize(
    "text",
    [
        f". tls://. {{\n kubernetes cluster.local\n {TLS}\n}}\n",
        f"tls://.:853 {{\n {TLS}\n kubernetes cluster.local\n cache 30\n}}\n" + ROOT % "errors\n ready\n cache 30",
        f"(all) {{\n kubernetes cluster.local\n forward . 192.0.2.1\n}}\n"
        f".:53 {{\n import all\n}}\ntls://. {{\n import all\n {TLS}\n}}\n",
    ],
)
def test_server_block_may_be_served_over_tls(text: str) -> None:
    config = encrypted(text)
    assert (config.port, config.tls_port) == (53, 853)
    assert config.serving_tls == ServingTls(
        certificate="/certificate", key="/key", authorities="/authorities", clients="required"
    )


def test_changed_certificate_is_a_changed_configuration() -> None:
    text = f". tls://. {{\n kubernetes cluster.local\n {TLS}\n}}\n"
    assert encrypted(text) == encrypted(text) != encrypted(text, FILES | {"/key": "three"})
    assert "two" not in str(encrypted(text)), "the key stays in its file"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"tls://. {{\n kubernetes cluster.local\n {TLS}\n}}\n", "that answers . over UDP and TCP, too"),
        (ROOT % "" + f"tls://. {{\n {TLS}\n whoami\n}}\n", "expected the plugins of line 1"),
        (ROOT % "" + f"tls://a.example {{\n {TLS}\n}}\n", "that answers a.example over UDP and TCP, too"),
        (". tls://. {\n kubernetes cluster.local\n}\n", "expected the plugin tls with a certificate and a key"),
        (f". tls://. tls://.:8853 {{\n kubernetes cluster.local\n {TLS}\n}}\n", "expected one port"),
        (ROOT % "tls /certificate", "expected a certificate, a key"),
        (ROOT % "tls /a /b {\n client_auth require\n }", "podwire verifies certificates of clients"),
        (ROOT % "tls /a /b {\n keylog /c\n }", "expected client_auth"),
        (ROOT % f"tls /a /b\n {TLS}", "expected the same certificate in all server blocks"),
    ],
)
def test_wrong_encrypted_server_block_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        encrypted(text)
    (message,) = str(raised.value).splitlines()[-1:]
    assert "line " in message and problem in message


def test_certificate_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "Corefile"
    file.write_text(". tls://. {\n kubernetes cluster.local\n tls /nonexistent/a /nonexistent/b\n}\n")
    with pytest.raises(ConfigError, match="cannot use /nonexistent/a, /nonexistent/b: No such file"):
        load_corefile(str(file))


@pytest.mark.parametrize(
    ("option", "expected"),
    [("serve_stale", (3600.0, False)), ("serve_stale 10m", (600.0, False)), ("serve_stale 5s verify", (5.0, True))],
)
def test_expired_names_may_be_served(option: str, expected: tuple[float, bool]) -> None:
    config = read(ROOT % f"cache 30 {{\n  {option}\n }}")
    assert (config.serve_stale_seconds, config.serve_stale_verify) == expected


def test_all_problems_are_reported_at_once() -> None:
    assert [message.split(": ")[1] for message in problems(ROOT % "etcd\n route53\n")] == ["line 3", "line 4"]


def test_corefile_needs_the_cluster_and_one_port() -> None:
    assert problems(".:53 {\n errors\n}\n") == ["Corefile: expected the plugin kubernetes in a server block"]
    assert "expected one port" in problems(ROOT % "" + "a.example:54 {\n forward . 192.0.2.1\n}\n")[0]


def test_check_names_the_line_and_exits_with_status_two(tmp_path: Path) -> None:
    good, bad = tmp_path / "Corefile", tmp_path / "Broken"
    good.write_text(KUBEADM_1_35)
    bad.write_text(KUBEADM_1_35.replace("loop", "loops"))
    result = CliRunner().invoke(dns, ["check", str(good)])
    assert result.exit_code == 0 and "podwire answers cluster.local on port 53" in result.output
    refused = CliRunner().invoke(dns, ["check", str(bad)])
    assert isinstance(refused.exception, ConfigErrors) and "line 20: loops" in str(refused.exception)


def test_upstream_that_is_no_address_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "Corefile"
    file.write_text(ROOT % "forward . dns.example")
    with pytest.raises(ConfigError, match="expected address"):
        load_corefile(str(file))
