"""What machines looked like when a run failed: on the server's clock, in the answer to why, and never a reason to exclude a node."""

from __future__ import annotations

from aegis_lognexus.evidence import Failure, Worker
from aegis_lognexus.firstlayer import node_events, put_together
from aegis_lognexus.verdict import decide
from aegis_proto import messages, subjects
from aegis_proto.blobs import BlobPiece, pieces
from aegis_proto.snapshots import KernelLine, Snapshot
from log_batches import JOB, T0

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def sent(snapshot: Snapshot, *, pod: str = "w1", node: str = "n1", incarnation: int = 0, clock: int = 0) -> list[tuple[str, BlobPiece, int]]:
    """Pieces as the stream has them; the machine's clock is `clock` ms ahead of the server's, the way takes 3 ms and then 1 ms."""
    made = pieces(messages.encode(snapshot), "snapshot", uid="u", attempt=1, incarnation=incarnation, name=node, at=T0 + clock)
    return [(subjects.blob(JOB, pod, f"s-{pod}"), piece, T0 + delay) for piece in made for delay in (3, 1)]


def test_the_clock_of_a_machine_is_measured_by_what_it_sends_and_its_kernels_words_are_dated_by_the_servers() -> None:
    ahead = 90_000
    snapshot = Snapshot(T0 + ahead - 500, kernel=(KernelLine(T0 + ahead - 4_000, XID, "xid_79", "gpu_hw"),))
    (found,) = put_together(
        [*sent(snapshot, clock=ahead), ("aegis.job.x.blob.w0.f", pieces(b"x", "flight", uid="u", attempt=1, incarnation=0)[0], 1)]
    )
    assert (found.pod, found.node, found.offset) == ("w1", "n1", 1 - ahead)
    (event,) = node_events([found], 0)
    assert (event.node, event.cause, event.at, event.trusted) == ("n1", "gpu_hw", T0 - 3_999, False)
    assert node_events([found], 1) == ()


def test_the_platforms_word_on_the_node_wins_and_what_is_no_snapshot_is_left_out() -> None:
    good = sent(Snapshot(T0), node="i-say-n9")
    bad = [(subjects.blob(JOB, "w0", "s-bad"), piece, T0) for piece in pieces(b"\xff{", "snapshot", uid="u", attempt=1, incarnation=0)]
    (found,) = put_together([*bad, *good], nodes=["n0", "n1"])
    assert (found.pod, found.node) == ("w1", "n1")


def test_what_an_agent_reads_of_its_kernel_names_the_cause_and_excludes_no_node() -> None:
    (found,) = put_together(sent(Snapshot(T0, kernel=(KernelLine(T0, XID, "xid_79", "gpu_hw"),))))
    failure = Failure(JOB, 0, workers=(Worker("w0", "n0", (0,)), Worker("w1", "n1", (1,)), Worker("w2", "n2", (2,))), events=node_events([found], 0))
    verdict = decide(failure)
    assert (verdict.cause, verdict.nodes, verdict.accused, verdict.suspects) == ("gpu_hw", ("n1",), (), ("w1",))
    assert "not excluded" in verdict.sentence
