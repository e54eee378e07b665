"""The states of probes as transcripts: + success, - failure."""

import pytest

from podwire.embedded.kubelet.probing import ProbeKind, ProbeState
from podwire.model.pod import Probe

PROBE = Probe(period_seconds=10, failure_threshold=3)
TWICE = Probe(period_seconds=10, failure_threshold=2, success_threshold=2)


@pytest.mark.parametrize(
    ("kind", "probe", "results", "verdicts"),
    [
        (ProbeKind.READINESS, PROBE, "+", "+"),
        (ProbeKind.READINESS, PROBE, "+--+", "++++"),
        (ProbeKind.READINESS, PROBE, "+---+", "+++-+"),
        (ProbeKind.READINESS, TWICE, "++--++", "-++--+"),
        (ProbeKind.LIVENESS, PROBE, "--+---", "+++++-"),
        (ProbeKind.STARTUP, PROBE, "+", "+"),
    ],
)
def test_probe_states(kind: ProbeKind, probe: Probe, results: str, verdicts: str) -> None:
    state = ProbeState.begin(kind, probe)
    states = ""
    for result in results:
        state.record(result == "+")
        states += "+" if state.good else "-"
    assert states == verdicts


def test_early_readiness_failures_are_retried_soon_and_not_counted() -> None:
    state = ProbeState.begin(ProbeKind.READINESS, Probe(period_seconds=1))
    assert [state.record(False) for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert state.failures == 1


def test_failed_liveness_and_startup_probes_stop_the_container() -> None:
    for kind in (ProbeKind.LIVENESS, ProbeKind.STARTUP):
        state = ProbeState.begin(kind, Probe(period_seconds=1, failure_threshold=2))
        while not state.failed:
            state.record(False)
        assert state.failures == 2
    ready = ProbeState.begin(ProbeKind.READINESS, Probe(failure_threshold=1))
    ready.record(True)
    ready.record(False)
    assert not ready.failed
    assert not ready.good
