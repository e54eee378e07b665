"""Canaries: a second Ingress for the same host and path that gets a part of the requests.

A header decides before a cookie, and a cookie before weights. Without a main Ingress of the same host, path and type, a
canary serves nothing. Of its other annotations none counts. Source: ingress-nginx documentation, "Canary".
"""

import re

from podwire.gateway.ingress.annotations import IngressSettings
from podwire.gateway.routes import RequestMatch, ValueMatch

_ALWAYS, _NEVER = "always", "never"


def canary_rules(match: RequestMatch, settings: IngressSettings) -> tuple[tuple[RequestMatch, bool], ...]:
    """Matches in order of precedence, each with whether the canary gets the request."""
    header = settings.canary_by_header
    rules: list[tuple[RequestMatch, bool]] = []
    if header and settings.canary_by_header_value:
        rules.append((_with(match, ValueMatch(name=header, value=settings.canary_by_header_value)), True))
    elif header and settings.canary_by_header_pattern:
        pattern = f".*(?:{settings.canary_by_header_pattern}).*"
        rules.append((_with(match, ValueMatch(name=header, kind="regex", value=pattern)), True))
    elif header:
        rules.append((_with(match, ValueMatch(name=header, value=_ALWAYS)), True))
        rules.append((_with(match, ValueMatch(name=header, value=_NEVER)), False))
    if settings.canary_by_cookie:
        for value, is_canary in ((_ALWAYS, True), (_NEVER, False)):
            pattern = rf"(?:.*;\s*)?{re.escape(settings.canary_by_cookie)}={value}(?:;.*)?"
            rules.append((_with(match, ValueMatch(name="cookie", kind="regex", value=pattern)), is_canary))
    return tuple(rules)


def weights(settings: IngressSettings) -> tuple[int, int]:
    """The shares of the main Ingress and of the canary."""
    total = max(settings.canary_weight_total, 1)
    share = min(settings.canary_weight, total)
    return total - share, share


def _with(match: RequestMatch, header: ValueMatch) -> RequestMatch:
    return RequestMatch(path=match.path, method=match.method, headers=(*match.headers, header), query=match.query)
