"""What a translation takes of the one before: hosts are compiled when they or what they read changed."""

import base64
import hashlib

import msgspec
import pytest
from tests.cases.gateway.ingress_cases import IngressCase, facts_of

from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.ingress.enginesettings import with_defaults
from podwire.gateway.ingress.hosts import HostQuestion, compile_host
from podwire.gateway.ingress.lookups import ClusterLookups, RecordedLookups
from podwire.gateway.ingress.settings import IngressDefaults, read_defaults
from podwire.gateway.ingress.translate import IngressFacts, TranslationMemo, translate
from podwire.gateway.routes import VirtualHost


def _facts(annotations: dict[str, str] | None = None, *, hosts: int = 3) -> IngressFacts:
    ingresses = tuple(
        {
            "name": f"i{number}",
            "hosts": {f"h{number}.example": {"Prefix /": f"s{number}"}},
            "annotations": (annotations or {}) if number == 0 else {},
        }
        for number in range(hosts)
    )
    case = IngressCase(name="", ingresses=ingresses, requests=(), config_maps={"headers": {"X-Team": "a"}})
    return facts_of(case, {f"s{number}": ("10.0.0.1",) for number in range(hosts)}, 80, {})


def _hosts(facts: IngressFacts, memo: TranslationMemo) -> dict[str, VirtualHost]:
    """The virtual hosts without TLS; the translation is the same as one that knows nothing."""
    translation = translate(facts, memo)
    assert translation == translate(facts)
    return {host.hosts[0]: host for host in translation.entry.tables["ingress-http"].hosts}


def _compiled_anew(first: IngressFacts, second: IngressFacts) -> set[str]:
    """The hosts that the second translation compiles."""
    memo = TranslationMemo()
    before, after = _hosts(first, memo), _hosts(second, memo)
    return {name for name, host in after.items() if host is not before.get(name)}


def test_a_new_ingress_compiles_its_own_host_alone() -> None:
    first, second = _facts(hosts=3), _facts(hosts=4)
    known = {ingress.metadata.name: ingress for ingress in first.ingresses}
    ingresses = tuple(known.get(ingress.metadata.name, ingress) for ingress in second.ingresses)
    services = {**second.upstreams.services, **first.upstreams.services}
    slices = {key: tuple(second.upstreams.slices(key)) for key in services}
    upstreams = msgspec.structs.replace(second.upstreams, services=services, slices=slices.__getitem__)
    second = msgspec.structs.replace(second, ingresses=ingresses, upstreams=upstreams)
    first = msgspec.structs.replace(first, upstreams=upstreams)
    assert _compiled_anew(first, second) == {"h3.example"}
    assert not _compiled_anew(second, second)


@pytest.mark.parametrize(
    ("annotations", "changed"),
    [
        ({"auth-type": "basic", "auth-secret": "users"}, {"users": lambda _key, _kind: "a:{SHA}x"}),
        (
            {"custom-headers": "headers"},
            {
                "config_map": lambda _key: {"X-Team": "b"},
                "defaults": read_defaults({"global-allowed-response-headers": "X-Team"})[0],
            },
        ),
    ],
)
def test_a_changed_object_compiles_the_hosts_that_read_it(
    annotations: dict[str, str], changed: dict[str, object]
) -> None:
    first = _facts(annotations)
    if "defaults" in changed:
        first = msgspec.structs.replace(first, defaults=changed["defaults"])
    second = msgspec.structs.replace(first, **changed)
    assert _compiled_anew(first, second) == {"h0.example"}


def test_new_defaults_compile_every_host() -> None:
    first = _facts()
    second = msgspec.structs.replace(first, defaults=IngressDefaults(read_timeout=5))
    assert len(_compiled_anew(first, second)) == 3


def test_a_host_without_paths_has_no_routes() -> None:
    question = HostQuestion(host="h.example", paths=(), defaults=IngressDefaults())
    compiled = compile_host(question, RecordedLookups(ClusterLookups()))
    assert (compiled.plain.routes, compiled.secure.routes, compiled.problems) == ((), (), ())
    assert compiled.holds()


@pytest.mark.parametrize(
    ("line", "is_read"),
    [
        ("a:{SHA}" + base64.b64encode(hashlib.sha1(b"x").digest()).decode(), True),  # noqa: S324
        ("a:{SHA}short", False),
        ("a:$apr1$x", False),
    ],
)
def test_users_with_another_hash_are_no_users(line: str, is_read: bool) -> None:
    from podwire.gateway.ingress.actions import users_of

    assert (users_of({"auth": line.encode()}, "auth-file") is not None) == is_read
    assert users_of({"auth": f"{line}\n{line}".encode()}, "auth-file") is None


def test_the_config_map_overrides_settings_of_engines() -> None:
    text = {"enable-real-ip": "true", "proxy-real-ip-cidr": "10.0.0.0/8", "use-gzip": "true", "gzip-level": "5"}
    settings = with_defaults(EngineSettings(), read_defaults(text)[0])
    assert (settings.trusted_networks, settings.believes_headers) == (("10.0.0.0/8",), False)
    assert settings.gzip is not None and settings.gzip.level == 5
    assert with_defaults(EngineSettings(), IngressDefaults()) == EngineSettings()


def test_a_cluster_that_did_not_change_is_not_asked_again() -> None:
    asked: list[str] = []
    first = _facts(hosts=3)
    slices = first.upstreams.slices

    def counted(key: str) -> object:
        asked.append(key)
        return slices(key)

    upstreams = msgspec.structs.replace(first.upstreams, slices=counted)
    memo = TranslationMemo()
    for version, questions in ((1, 3), (1, 0), (2, 3), (2, 0), (None, 3)):
        facts = msgspec.structs.replace(first, upstreams=upstreams, version=None if version is None else (version, 0))
        translation = translate(facts, memo)
        assert len(set(asked)) == questions, version
        asked.clear()
        assert translation == translate(first)


def test_a_changed_cluster_compiles_what_reads_it() -> None:
    memo = TranslationMemo()
    first = msgspec.structs.replace(_facts(), version=(1, 0))
    before = translate(first, memo).entry.backends
    gone = msgspec.structs.replace(first.upstreams, services={})
    after = translate(msgspec.structs.replace(first, upstreams=gone, version=(2, 0)), memo).entry.backends
    assert len(before) == 3 and not after
