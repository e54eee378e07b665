import pytest
from tests.unit.upgrade.corefile_texts import CHANGED, K3S, KUBEADM_1_12, KUBEADM_1_35

from podwire.upgrade.corefile.migrate import CorefileJob, CorefileMigration, migrate, refused_lines
from podwire.upgrade.corefile.releases import RELEASES


def moved(text: str, before: str, after: str, *, defaults: bool = False) -> CorefileMigration:
    return migrate(text, CorefileJob(from_version=before, to_version=after, defaults=defaults))


def block(*lines: str) -> str:
    return "\n".join((".:53 {", *(f"    {line}" for line in lines), "}", ""))


UP = {
    "proxy becomes forward": (
        ("proxy . /etc/resolv.conf {", "    max_fails 3", "    except corp.example", "    protocol dns force_tcp", "}"),
        ("forward . /etc/resolv.conf {", "    except corp.example", "    force_tcp", "}"),
    ),
    "options without an effect go": (
        ("kubernetes cluster.local {", "    upstream", "    resyncperiod 5m", "    ttl 30", "}", "ready"),
        ("kubernetes cluster.local {", "    ttl 30", "}", "ready"),
    ),
    "transfer becomes a plugin": (
        ("file db.example.org example.org {", "    transfer to 192.0.2.1", "    transfer to 192.0.2.2", "}", "log"),
        ("file db.example.org example.org {", "}", "transfer example.org {", "   to 192.0.2.1 192.0.2.2", "}", "log"),
    ),
    "transfer from stays": (
        ("secondary example.org {", "    transfer from 192.0.2.1", "}"),
        ("secondary example.org {", "    transfer from 192.0.2.1", "}"),
    ),
    "no_reload becomes reload": (
        ("auto {", "    directory /zones", "    no_reload", "}"),
        ("auto {", "    directory /zones", "    reload 0", "}"),
    ),
    "federation goes": (("federation cluster.local {", "    prod prod.example.org", "}", "log"), ("log",)),
    "only the first endpoint stays": (
        ("kubernetes cluster.local {", "    endpoint https://192.0.2.1 https://192.0.2.2", "}", "ready"),
        ("kubernetes cluster.local {", "    endpoint https://192.0.2.1", "}", "ready"),
    ),
    "ready comes before kubernetes": (("kubernetes cluster.local",), ("ready", "kubernetes cluster.local")),
    "rewrite with answer stays": (
        ("rewrite name exact a.example. b.example. answer auto", "grpc . 192.0.2.1:443"),
        ("rewrite name exact a.example. b.example. answer auto", "grpc . 192.0.2.1:443"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UP)
def test_old_lines_are_replaced_for_a_new_release(case: str) -> None:
    before, after = UP[case]
    migration = moved(block(*before), "1.1.3", "1.14.2")
    assert migration.text == block(*after)
    assert not refused_lines(migration.text, "1.14.2")


DOWN = {
    "keepttl": ("1.14.2", "1.9.3", ("cache 9 {", "   keepttl", "   denial 1", "}"), ("cache 9 {", "   denial 1", "}")),
    "failover": ("1.14.2", "1.12.1", ("forward . ::1 {", "   failover SERVFAIL", "}"), ("forward . ::1 {", "}")),
    "multisocket": ("1.12.0", "1.11.3", ("multisocket 4", "errors"), ("errors",)),
    "ready": ("1.5.0", "1.4.0", ("ready", "kubernetes cluster.local"), ("kubernetes cluster.local",)),
    "lameduck stays": ("1.14.2", "1.6.5", ("health {", "   lameduck 5s", "}"), ("health {", "   lameduck 5s", "}")),
}  # fmt: skip


@pytest.mark.parametrize("case", DOWN)
def test_new_lines_go_for_an_old_release(case: str) -> None:
    before, after, lines, kept = DOWN[case]
    migration = moved(block(*lines), before, after)
    assert migration.text == block(*kept)
    assert not refused_lines(migration.text, after)


def test_stock_corefile_of_old_release_becomes_the_stock_corefile() -> None:
    migration = moved(KUBEADM_1_12, "1.1.3", "1.9.3", defaults=True)
    assert (
        migration.text
        == """.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }
    prometheus :9153
    loop
    forward . /etc/resolv.conf
    cache 30
    reload
}
"""
    )
    assert migration.diff.startswith("--- Corefile (CoreDNS 1.1.3)\n+++ Corefile (CoreDNS 1.9.3)\n@@")


@pytest.mark.parametrize("text", [KUBEADM_1_35, K3S])
@pytest.mark.parametrize("after", RELEASES[RELEASES.index("1.9.4") :])
def test_stock_corefiles_cause_no_warning_and_no_change(text: str, after: str) -> None:
    migration = moved(text, "1.9.4", after)
    assert not migration.changed
    assert [finding for finding in migration.findings if finding.severity != "info"] == []


def test_foreign_plugin_stays_with_one_warning() -> None:
    migration = moved(CHANGED, "1.9.3", "1.14.2")
    warnings = [str(finding) for finding in migration.findings if finding.severity != "info"]
    assert warnings == [
        "warning: ConfigMap kube-system/coredns: data.Corefile: line 20: no release of CoreDNS has the plugin mycorp; "
        "it stays as it is; make sure that the image of 1.14.2 was built with it"
    ]
    assert migration.diff.count("\n-") == 1 and "endpoint https://192.0.2.1:6443\n" in migration.text
    assert "# to standard output" in migration.text and '"old domain.example"' in migration.text


@pytest.mark.parametrize(
    ("tag", "release"),
    [("v1.6.2-100", "1.6.2"), ("1.11.4-eksbuild.2", "1.11.4"), ("1.8.2", "1.8.0"), ("2.0.0", "1.14.7")],
)
def test_custom_tag_maps_to_the_nearest_release(tag: str, release: str) -> None:
    migration = moved(KUBEADM_1_35, tag, "1.14.7")
    assert migration.from_release == release
    assert [finding.severity for finding in migration.findings][:1] == ["warning"]
    assert "custom build" in migration.findings[0].message


def test_version_that_is_none_is_checked_as_the_newest() -> None:
    migration = moved(KUBEADM_1_35, "latest", "1.14.7")
    assert migration.from_release == RELEASES[-1]
    assert "'latest' of CoreDNS is not known" in migration.findings[0].message


def test_equal_versions_cause_no_finding() -> None:
    assert moved(CHANGED.replace("mycorp", "whoami"), "1.9.3", "1.9.3").findings[1:] == ()


def test_deprecation_between_the_releases_causes_no_finding() -> None:
    assert moved(block("proxy . 192.0.2.1"), "1.1.3", "1.4.0").findings == ()


def test_unknown_option_stays_with_a_warning() -> None:
    migration = moved(block("cache 30 {", "   turbo", "}"), "1.9.3", "1.14.2")
    assert not migration.changed
    assert "cache turbo is no option of CoreDNS 1.14.2, which ends at its start" in str(migration.findings[0])


def test_several_forward_need_a_release_that_accepts_them() -> None:
    text = block("forward . 192.0.2.1", "forward corp.example 192.0.2.2")
    assert moved(text, "1.14.2", "1.9.3").findings[0].severity == "blocker"
    assert moved(text, "1.14.2", "1.9.4").findings == ()


def test_broken_corefile_is_a_blocker_and_stays() -> None:
    migration = moved(".:53 {\n  errors\n", "1.9.3", "1.14.2")
    assert (migration.text, migration.diff) == (".:53 {\n  errors\n", "")
    assert str(migration.findings[0]) == (
        "blocker: ConfigMap kube-system/coredns: data.Corefile: line 1: expected } that closes '.:53'; correct the "
        "Corefile first; the migration leaves it as it is"
    )


def test_fragment_of_an_import_is_migrated() -> None:
    job = CorefileJob(key="log.override", from_version="1.4.0", to_version="1.8.0", fragment=True)
    migration = migrate("kubernetes corp.example {\n  upstream\n}\n", job)
    assert migration.text == "kubernetes corp.example {\n}\n"


@pytest.mark.parametrize("before", RELEASES)
def test_migrated_file_is_accepted_by_every_release(before: str) -> None:
    text = KUBEADM_1_12 if RELEASES.index(before) < RELEASES.index("1.5.0") else KUBEADM_1_35
    for after in RELEASES:
        migration = moved(text, before, after)
        assert refused_lines(migration.text, after) == ()
