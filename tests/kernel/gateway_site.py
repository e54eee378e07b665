"""One site on an engine: two hosts, one of them with a certificate, and a Service behind all of their paths."""

from tests.cases.gateway.ingress_cases import IngressCase, facts_of
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import Engine, certificate_for

from podwire.gateway.ingress.translate import IngressPorts, translate

PLAIN, SECURE = "plain.example", "secure.example"
_CASE = IngressCase(
    name="site",
    ingresses=(
        {"name": "plain", "hosts": {PLAIN: {"Prefix /": "web", "Prefix /admin": "admin"}}},
        {"name": "secure", "hosts": {SECURE: {"Prefix /": "web"}}, "tls": {"cert": [SECURE]}},
    ),
    requests=(),
    certificates={"cert": (SECURE,)},
)
WEB, ADMIN = "127.9.1.1", "127.9.2.1"
CERTIFICATE = certificate_for("shop/cert", (SECURE,))


def serve_site(engine: Engine) -> IngressPorts:
    """Serves the site; the ports of HTTP and HTTPS."""
    ports = IngressPorts(free_port(), free_port())
    certificates = {"cert": CERTIFICATE, "": certificate_for("default", ("default.invalid",))}
    addresses = {"web": (WEB,), "admin": (ADMIN,)}
    engine.serve(translate(facts_of(_CASE, addresses, engine.backends.port, certificates, ports)).entry)
    return ports
