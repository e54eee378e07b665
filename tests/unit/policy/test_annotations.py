"""What annotations of policies ask for."""

from podwire.policy.annotations import in_audit, log_of, problems


def test_valid_annotations_have_no_problems() -> None:
    assert in_audit({"podwire.io/mode": "audit"})
    assert not in_audit({"podwire.io/mode": "enforce"}) and not in_audit({})
    assert [log_of({"podwire.io/log": value}) for value in ("all", "drops", "none")] == ["all", "drops", "none"]
    assert problems({"podwire.io/mode": "audit", "podwire.io/log": "none", "podwire.io/enforced": "{}"}) == ()


def test_unknown_values_are_ignored_and_reported() -> None:
    annotations = {"podwire.io/mode": "Audit", "podwire.io/log": ""}
    assert not in_audit(annotations) and log_of(annotations) == ""
    assert problems(annotations) == (
        "podwire.io/mode: unknown value 'Audit', expected one of audit, enforce; the policy is enforced",
        "podwire.io/log: unknown value '', expected one of all, drops, none; the log settings of the nodes apply",
    )
