"""`aegis job why`: events, verdicts and machines as one timeline."""

from __future__ import annotations

from aegis_cli import why
from aegis_proto.snapshots import KernelLine, NodeSnapshot, Snapshot
from cli_data import detail as job_detail

T0 = 1_796_000_000_000
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def test_why_tells_one_timeline_of_events_and_machines() -> None:
    known = job_detail()
    snapshot = Snapshot(
        T0, load=3.5, cpus=8, memory=0.5, pressure={"io": 40.0, "cpu": 0.1}, kernel=(KernelLine(T0 - 5_000, XID + "\x1b[2J", "xid_79", "gpu_hw"),)
    )
    machine = NodeSnapshot("w1", "n1", 0, 2_000, snapshot)
    short = why.explain(known, [], None, machines=[machine])
    (told,) = [line for line in short.lines if line.what.startswith("kernel:")]
    assert (told.who, told.incarnation) == ("w1 on n1", 0) and "clock +2.000 s" in told.evidence and "gpu_hw" in told.evidence
    assert "\x1b" not in told.what
    assert not any(line.what.startswith("machine:") for line in short.lines)
    whole = why.explain(known, [], None, timeline=True, machines=[machine])
    (told,) = [line for line in whole.lines if line.what.startswith("machine:")]
    assert "load 3.5 on 8 CPUs; 50% of memory free; waits for io 40 %" in told.what
    assert [line.time for line in whole.lines] == sorted(line.time for line in whole.lines)
