"""All resources of Envoy that an entry needs, by type and name, as JSON values: the state of the engine as text.

Pure. What changes from one entry to the next is found by comparing the values; see
:mod:`podwire.gateway.envoy.snapshot`.
"""

from podwire.gateway.envoy.clusters import Json, cluster, endpoints
from podwire.gateway.envoy.listeners import listener
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.tables import route_table
from podwire.gateway.routes import Certificate, GatewayEntry, TrustedAuthority

CLUSTER = "envoy.config.cluster.v3.Cluster"
ENDPOINTS = "envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = "envoy.config.listener.v3.Listener"
ROUTES = "envoy.config.route.v3.RouteConfiguration"
SECRET = "envoy.extensions.transport_sockets.tls.v3.Secret"

MAKE_ORDER = (SECRET, CLUSTER, ENDPOINTS, LISTENER, ROUTES)
"""The order in which new resources are sent: what is named before what names it. Removals go the other way round."""

Resources = dict[str, dict[str, Json]]


def resources(entry: GatewayEntry, settings: EngineSettings) -> Resources:
    """The resources of an entry, by type and name."""
    return {
        SECRET: {name: _secret(certificate) for name, certificate in entry.certificates.items()}
        | {name: _authority(authority) for name, authority in entry.authorities.items()},
        CLUSTER: {key: cluster(backend) for key, backend in entry.backends.items()},
        ENDPOINTS: {
            key: endpoints(backend, entry.backends) for key, backend in entry.backends.items() if not backend.dns
        },
        LISTENER: {value.name: listener(value, settings) for value in entry.listeners},
        ROUTES: {name: route_table(table, entry.backends) for name, table in entry.tables.items()},
    }


def _secret(certificate: Certificate) -> Json:
    chain = {"inlineString": certificate.chain}
    key = {"inlineString": certificate.key}
    return {"name": certificate.name, "tlsCertificate": {"certificateChain": chain, "privateKey": key}}


def _authority(authority: TrustedAuthority) -> Json:
    return {"name": authority.name, "validationContext": {"trustedCa": {"inlineString": authority.chain}}}
