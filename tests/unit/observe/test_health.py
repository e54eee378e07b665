"""Problems and metrics of a component."""

from podwire.observe.health import Health, Sample


def test_ready_checks_do_not_affect_liveness() -> None:
    health = Health()
    problem = ""
    health.ready["routing"] = lambda: problem
    assert health.live_problems() == health.ready_problems() == []
    problem = "no pod CIDR"
    assert health.live_problems() == []
    assert health.ready_problems() == ["routing: no pod CIDR"]


def test_a_part_that_does_not_work_is_not_ready_either() -> None:
    health = Health()
    health.live["cni"] = lambda: "the socket is gone"
    assert health.live_problems() == health.ready_problems() == ["cni: the socket is gone"]


def test_metrics() -> None:
    health = Health()
    health.metrics["ipam"] = lambda: [
        Sample("podwire_ipam_addresses", "Addresses.", 3, {"state": "held"}),
        Sample("podwire_ipam_addresses", "Addresses.", 250, {"state": "free"}),
        Sample("podwire_ipam_early_total", "Cut short.", 1, kind="counter"),
    ]
    text = health.render().decode()
    assert 'podwire_ipam_addresses{state="held"} 3.0' in text
    assert "podwire_ipam_early_total 1.0" in text
