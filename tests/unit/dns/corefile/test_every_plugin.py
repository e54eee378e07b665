"""Every plugin that comes with CoreDNS is read, or refused by its name with its line and a reason."""

import pytest
from tests.unit.dns.plugins.corefiles import settings

from podwire.errors import ConfigErrors

READ = {
    "acl": "acl {\n allow\n }",
    "any": "any",
    "auto": "auto example.org {\n directory /zones\n }",
    "autopath": "autopath @kubernetes",
    "bind": "bind 127.0.0.1",
    "bufsize": "bufsize 1232",
    "cache": "cache 30",
    "cancel": "cancel",
    "chaos": "chaos",
    "dns64": "dns64",
    "errors": "errors",
    "file": "file /zone example.org",
    "header": "header {\n response set ra\n }",
    "health": "health",
    "hosts": "hosts",
    "import": "import /none/*",
    "k8s_external": "k8s_external example.net",
    "loadbalance": "loadbalance",
    "local": "local",
    "log": "log",
    "loop": "loop",
    "metadata": "metadata",
    "minimal": "minimal",
    "multisocket": "multisocket",
    "nsid": "nsid",
    "prometheus": "prometheus",
    "ready": "ready",
    "reload": "reload",
    "rewrite": "rewrite name a.example b.example",
    "secondary": "secondary example.org {\n transfer from 192.0.2.1\n }",
    "tls": "tls /certificate /key",
    "template": "template IN A example.org {\n rcode NXDOMAIN\n }",
    "transfer": "transfer {\n to *\n }",
    "view": "view all {\n expr true\n }",
    "whoami": "whoami",
}
"""One line of each plugin that is read; ``kubernetes`` and ``forward`` are in every Corefile here."""

REFUSED = (
    *("azure", "clouddns", "debug", "dnssec", "dnstap", "erratic", "etcd", "geoip", "grpc", "grpc_server", "https"),
    *("https3", "nomad", "on", "pprof", "quic", "root", "route53", "sign", "timeouts", "trace", "tsig"),
)
FILES = {
    "/zone": "$TTL 60\n@ IN SOA ns hostmaster 1 2 3 4 5\n",
    "/zones/db.example.org": "$TTL 60\n@ IN SOA ns hostmaster 1 2 3 4 5\n",
}


def corefile(line: str) -> str:
    return f".:53 {{\n kubernetes cluster.local {{\n pods verified\n }}\n forward . 192.0.2.53\n {line}\n}}\n"


@pytest.mark.parametrize("line", READ.values(), ids=READ)
def test_plugin_is_read(line: str) -> None:
    assert settings(corefile(line), FILES).domain == "cluster.local"


@pytest.mark.parametrize("name", REFUSED)
def test_plugin_is_refused_with_its_line_and_a_reason(name: str) -> None:
    with pytest.raises(ConfigErrors, match=rf"line 6: {name}: podwire does not have this plugin: \w"):
        settings(corefile(name))
