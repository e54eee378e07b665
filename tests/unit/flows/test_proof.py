"""The loss proof: sums, explanations, text, Markdown and the picture."""

import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from podwire.errors import ConfigError
from podwire.flows import prooftext
from podwire.flows.changes import KernelChange
from podwire.flows.count import FlowReport, LossSpan
from podwire.flows.proof import (
    LossProof,
    ObjectDiff,
    StepMark,
    counts,
    explain,
    parse_json,
    render_json,
    totals,
)
from podwire.flows.timeline import svg

BEGAN = 1_000_000_000.0
SPAN = LossSpan(first=BEGAN + 12.0, last=BEGAN + 12.5, number=3, reason="no answer")
LEAK = LossSpan(first=BEGAN + 30.0, last=BEGAN + 30.0, number=1, reason="answered though it is denied")
FLOWS = (
    FlowReport(
        kind="udp", target="10.244.1.2", path="pod on node-2", source="node-1", sent=100, lost=3, losses=(SPAN,)
    ),
    FlowReport(kind="udp", target="10.244.0.2", path="pod on node-1", source="node-2", sent=50, gap_ms=70),
    FlowReport(kind="tcp", target="10.96.0.7", path="service", source="node-1", sent=1000, broken=1),
    FlowReport(kind="denied", target="10.244.1.2", source="node-1", sent=20, leaked=1, losses=(LEAK,)),
)
STEPS = (
    StepMark(at=BEGAN + 1, until=BEGAN + 5, title="controller"),
    StepMark(at=BEGAN + 11, until=BEGAN + 14, title="agent", node="node-1"),
    StepMark(at=BEGAN + 29, title="agent", node="node-2"),
)
CHANGES = (
    KernelChange(at=BEGAN + 2, subject="link", text="+link dev veth1", node="node-1"),
    KernelChange(
        at=BEGAN + 11.5, subject="nftables", text="ip podwire-proxy: -element x9", number=9, process="python3",
        node="node-1",
    ),
)  # fmt: skip
PROOF = LossProof(
    title="podwire A to B", began=BEGAN, ended=BEGAN + 40, nodes=2, steps=STEPS, flows=FLOWS, changes=CHANGES
)


def test_sums_are_by_path_and_kind() -> None:
    sums = [(item.path, item.kind, item.flows, item.sent, item.lost, item.leaked) for item in totals(FLOWS)]
    assert sums == [
        ("pod", "udp", 2, 150, 3, 0),
        ("service", "tcp", 1, 1000, 0, 0),
        ("denied", "denied", 1, 20, 0, 1),
    ]
    assert counts(PROOF) == (3, 1150, 1, 20)


def test_a_loss_has_its_step_and_the_changes_before_it() -> None:
    loss, leak = explain(PROOF)
    assert [step.title for step in loss.steps] == ["agent"] and loss.steps[0].node == "node-1"
    assert [change.process for change in loss.changes] == ["python3"]
    assert ([step.node for step in leak.steps], leak.changes) == (["node-2"], ())


def test_the_text_says_what_was_lost_when_and_why() -> None:
    text = prooftext.text(PROOF)
    assert "3 of 1,150 messages lost\n1 of 20 denied messages leaked" in text
    assert (
        "01:46:52.000 to 01:46:52.500: 3 messages of udp from node-1 to 10.244.1.2 (pod on node-2): no answer\n"
        "  during: agent on node-1\n"
        "  01:46:51.500 node-1: ip podwire-proxy: -element x9 by python3\n"
    ) in text
    assert "no kernel changed from 1 s before" in text
    assert "agent on node-2  01:47:09.000  11.0     0" in text


def test_the_page_shows_the_picture_and_every_loss() -> None:
    clean = LossProof(title="t", began=BEGAN, ended=BEGAN + 1, nodes=1, flows=FLOWS[1:2])
    page = prooftext.markdown(clean, "pictures/upgrade.svg")
    assert "](pictures/upgrade.svg)" in page and "No message was lost" in page
    assert "- 01:46:52.000 to" in prooftext.markdown(PROOF) and "](" not in prooftext.markdown(PROOF)


def test_the_json_form_is_read_back() -> None:
    assert parse_json(render_json(PROOF), "proof.json") == PROOF
    with pytest.raises(ConfigError, match=r"proof\.json: expected a loss proof"):
        parse_json("{", "proof.json")
    with pytest.raises(ConfigError, match="format: 9: expected 1"):
        parse_json(render_json(PROOF).replace('"format": 1', '"format": 9'), "proof.json")


def test_the_picture_has_a_row_for_steps_flows_and_kernels() -> None:
    picture = svg(PROOF)
    document = ElementTree.fromstring(picture)
    texts = [item.text for item in document.iter("{http://www.w3.org/2000/svg}text")]
    assert {"agent on node-1", "pod: udp", "service: tcp", "denied, 1 flow", "kernel of node-1", "10 changes"} <= {
        *texts
    }
    assert "3 of 1,150 messages lost, 1 of 20 denied messages leaked" in texts
    marks = [item for item in document.iter("{http://www.w3.org/2000/svg}rect") if len(item)]
    assert len(marks) == 2, "one for each span of losses"


def test_the_picture_of_a_long_run_stays_small() -> None:
    changes = tuple(
        KernelChange(at=BEGAN + number / 1000, subject="route", text="+route", node="node-1")
        for number in range(40_000)
    )
    picture = svg(LossProof(title="<long>", began=BEGAN, ended=BEGAN + 40, nodes=1, flows=FLOWS, changes=changes))
    assert len(picture) < 400_000 and "&lt;long&gt;" in picture


def test_the_report_has_the_diffs_of_objects() -> None:
    diff = "--- Corefile\n-    upstream\n+    ready\n"
    change = ObjectDiff(step="3-coredns", object="ConfigMap kube-system/coredns", text=diff)
    proof = msgspec.structs.replace(PROOF, objects=(change,))
    assert "3-coredns changes ConfigMap kube-system/coredns:\n  --- Corefile\n  -    upstream\n" in prooftext.text(
        proof
    )
    assert "## Objects" in prooftext.markdown(proof) and "```diff\n--- Corefile" in prooftext.markdown(proof)
    assert parse_json(render_json(proof), "p") == proof
    assert "## Objects" not in prooftext.markdown(PROOF)
