"""Forms of names, labels, ports and addresses, each with the message of Kubernetes' ``util/validation``.

Every function returns the problem as text, empty where there is none.
"""

import re
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

Check = Callable[[str], str]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"
_KEY = "[-._a-zA-Z0-9]+"
_ENDS = "and must start and end with an alphanumeric character"


def _compile(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern).fullmatch


_is_label, _is_label_1035, _is_subdomain = _compile(_LABEL), _compile(_LABEL_1035), _compile(_SUBDOMAIN)
_is_qualified, _is_value, _is_key = _compile(_QUALIFIED), _compile(_VALUE), _compile(_KEY)
_is_wildcard = _compile(rf"\*\.{_SUBDOMAIN}")
_is_env = _compile("[ -<>-~]+")
_is_schedule = _compile(r"(@(yearly|annually|monthly|weekly|daily|midnight|hourly|every \S+)|\S+( +\S+){4})")


def _long(limit: int) -> str:
    return f"must be no more than {limit} characters"


def _used(pattern: str) -> str:
    return f"regex used for validation is '{pattern}')"


def label(text: str) -> str:
    """A DNS label: pods' containers, namespaces, Services."""
    if len(text) > 63:
        return _long(63)
    if _is_label(text):
        return ""
    return (
        f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ENDS} "
        f"(e.g. 'my-name',  or '123-abc', {_used(_LABEL)}"
    )


def label_1035(text: str) -> str:
    """A DNS label that starts with a letter: names of custom resources."""
    if len(text) > 63:
        return _long(63)
    if _is_label_1035(text):
        return ""
    return (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        f"character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', {_used(_LABEL_1035)}"
    )


def subdomain(text: str) -> str:
    """A DNS name: most objects."""
    if len(text) > 253:
        return _long(253)
    if _is_subdomain(text):
        return ""
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
        f"{_ENDS} (e.g. 'example.com', {_used(_SUBDOMAIN)}"
    )


def wildcard(text: str) -> str:
    """A DNS name whose first label is ``*``."""
    if _is_wildcard(text):
        return ""
    pattern = rf"\*\.{_SUBDOMAIN}"
    return (
        "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must "
        "consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character "
        f"(e.g. '*.example.com', {_used(pattern)}"
    )


def path_segment(text: str) -> str:
    """A name that a URL may contain: roles and bindings."""
    if text in (".", ".."):
        return f"may not be '{text}'"
    return next((f"may not contain '{char}'" for char in "/%" if char in text), "")


def _qualified(text: str) -> str:
    if not text:
        return "name part must be non-empty"
    if len(text) > 63:
        return "name part " + _long(63)
    if _is_qualified(text):
        return ""
    return (
        f"name part must consist of alphanumeric characters, '-', '_' or '.', {_ENDS} "
        f"(e.g. 'MyName',  or 'my.name',  or '123-abc', {_used(_QUALIFIED)}"
    )


def qualified(text: str) -> str:
    """A key of labels and annotations: ``[prefix/]name``."""
    segments = text.split("/")
    if len(segments) == 1:
        return _qualified(text)
    if len(segments) > 2:
        return (
            f"a qualified name must consist of alphanumeric characters, '-', '_' or '.', {_ENDS} (e.g. 'MyName',"
            f"  or 'my.name',  or '123-abc', {_used(_QUALIFIED)} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')"
        )
    if not segments[0]:
        return "prefix part must be non-empty"
    problem = subdomain(segments[0])
    return f"prefix part {problem}" if problem else _qualified(segments[1])


def label_value(text: str) -> str:
    """A value of a label."""
    if len(text) > 63:
        return _long(63)
    if _is_value(text):
        return ""
    return (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
        f"{_ENDS} (e.g. 'MyValue',  or 'my_value',  or '12345', {_used(_VALUE)}"
    )


def data_key(text: str) -> str:
    """A key of a ConfigMap or Secret."""
    if len(text) > 253:
        return _long(253)
    if text in (".", ".."):
        return f"must not be '{text}'"
    if _is_key(text):
        return ""
    return (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
        f"(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', {_used(_KEY)}"
    )


def env(text: str) -> str:
    """The name of an environment variable."""
    if _is_env(text):
        return ""
    return "a valid environment variable name must consist only of printable ASCII characters other than '='"


def port_name(text: str) -> str:
    """A service name of IANA: the name of a container's port."""
    checks = (
        (len(text) > 15, _long(15)),
        (
            not re.fullmatch("[-a-z0-9]+", text),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (not re.search("[a-z]", text), "must contain at least one letter (a-z)"),
        ("--" in text, "must not contain consecutive hyphens"),
        (text.startswith("-") or text.endswith("-"), "must not begin or end with a hyphen"),
    )
    return next((problem for wrong, problem in checks if wrong), "")


def port(number: object) -> str:
    """A port number."""
    good = isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 65535
    return "" if good else "must be between 1 and 65535, inclusive"


def port_or_name(value: object) -> str:
    """A port by number or by name."""
    return port_name(value) if isinstance(value, str) else port(value)


def ip(text: str) -> str:
    """An IP address, without a zone."""
    try:
        ip_address(text.replace("%", "x"))
    except ValueError:
        return "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    return ""


def canonical_ip(text: str) -> str:
    """An IP address in the one form that names it: ``2001:db8::1``, not ``2001:DB8:0::1``."""
    if problem := ip(text):
        return problem
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return "must not be an IPv4-mapped IPv6 address"
    return "" if str(address) == text else f'must be in canonical form ("{address}")'


def cidr(text: str) -> str:
    """A network."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        text = ""
    return "" if "/" in text else "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def schedule(text: str) -> str:
    """A cron schedule, by its shape alone."""
    if _is_schedule(text):
        return ""
    return f"expected exactly 5 fields, found {len(text.split())}: [{text}]"
