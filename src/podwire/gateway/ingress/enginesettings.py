"""How engines treat clients, with what the ConfigMap of ingress-nginx's keys says about it."""

import msgspec

from podwire.gateway.envoy.settings import EngineSettings, GzipSettings
from podwire.gateway.ingress.settings import IngressDefaults


def with_defaults(own: EngineSettings, defaults: IngressDefaults) -> EngineSettings:
    """Settings of engines, of which the ConfigMap overrides what it names."""
    from_proxies = defaults.use_forwarded_headers or defaults.real_ip
    gzip = GzipSettings(level=defaults.gzip_level, minimum=defaults.gzip_minimum, types=defaults.gzip_types)
    return msgspec.structs.replace(
        own,
        trusted_networks=defaults.trusted_networks if from_proxies else own.trusted_networks,
        believes_headers=defaults.use_forwarded_headers or not defaults.real_ip,
        forwarded_for_header=defaults.forwarded_for_header,
        append_forwarded_for=defaults.compute_full_forwarded_for,
        proxy_protocol=own.proxy_protocol or defaults.use_proxy_protocol,
        idle_timeout=own.idle_timeout if defaults.keep_alive is None else defaults.keep_alive,
        header_timeout=own.header_timeout if defaults.header_timeout is None else defaults.header_timeout,
        max_header_kb=defaults.header_kb or own.max_header_kb,
        max_streams=defaults.streams or own.max_streams,
        http2=defaults.http2,
        tls_minimum=defaults.tls_minimum,
        gzip=gzip if defaults.gzip else None,
    )
