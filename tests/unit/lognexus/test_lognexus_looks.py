"""Two looks at a run that stands still, and a failure beside earlier ones: who stands out, stuck or slow, and what is shared beyond chance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from aegis_lognexus.across import compare
from aegis_lognexus.evidence import Failure, Worker
from aegis_lognexus.looks import by_ras, by_stacks, put_together
from aegis_lognexus.verdict import decide
from aegis_parsers.ib.ncclras import Late, communicators
from aegis_proto.blobs import BlobKind, BlobPiece, pieces
from aegis_proto.looks import RankStack, RasLooks, Stacks
from aegis_proto.messages import Verdict, encode

WORKERS = tuple(Worker(f"w{i}", f"n{i}", (2 * i, 2 * i + 1)) for i in range(4))
IN, LOAD = "train (train.py:30)", "load (data.py:9)"
DAY = 86_400_000
TEXT = """Group     Comms      Nodes     Ranks     Ranks     Ranks   Status  Errors
    #  in group   per comm  per node  per comm  in group
    0         1          4         2         8         {in_group}  RUNNING      {errors}
{errors}
#0-0 (1bdb83b038775869) {errors}
{words}
"""


def stacks(*told: tuple[int, bool, str, bool | None]) -> dict[str, Stacks]:
    """(rank, waits, where, moved) -> by worker, with a loader of each that is no rank."""
    out = {}
    for worker in WORKERS:
        mine = [RankStack(100 + rank, waits, where, rank=rank, moved=moved) for rank, waits, where, moved in told if rank in worker.ranks]
        out[worker.pod] = Stacks(1, 10.0, (*mine, RankStack(900, False, "poll (loader.py:1)")))
    return out


@pytest.mark.parametrize(
    ("odd", "ranks", "words"),
    [
        ({5: (False, LOAD, False)}, (5,), "the same in the second look: stuck"),
        ({5: (False, LOAD, True)}, (5,), "slow rather than stuck"),
        ({2: (False, LOAD, None), 3: (False, LOAD, None)}, (2, 3), "6 wait in a collective"),
        ({}, (), "nobody is missing"),
        ({rank: (False, f"f (x.py:{rank})", True) for rank in range(8)}, (), "no group of stacks stands out"),
        ({**dict.fromkeys(range(8), (False, "step (m.py:1)", False)), 7: (False, LOAD, False)}, (7,), "7 are in step"),
    ],
)
def test_the_rank_whose_stack_is_not_that_of_the_others_is_named(
    odd: dict[int, tuple[bool, str, bool | None]], ranks: tuple[int, ...], words: str
) -> None:
    told = [(rank, *odd.get(rank, (True, IN, False))) for rank in range(8)]
    found = by_stacks(Failure("j", 0, workers=WORKERS, stacks=stacks(*told)))
    assert found is not None and (found.cause, found.ranks, found.nodes, found.accused) == ("unknown", ranks, (), ())
    assert words in found.text


def report(counts: Sequence[int], size: int = 8, missing: Sequence[int] = ()) -> str:
    ranks = [{"rank": rank, "host": "h", "pid": 1, "cuda_dev": 0, "collective_counts": {"AllReduce": n}} for rank, n in enumerate(counts)]
    lost = [{"rank": rank, "host": "h", "pid": 1, "considered_dead": True} for rank in missing]
    return json.dumps({"communicators": [{"hash": "0x1", "size": size, "ranks": ranks, "missing_ranks": lost, "missing_ranks_count": len(lost)}]})


BEHIND = [101, 101, 101, 100, 101, 101, 101, 101]


@pytest.mark.parametrize(
    ("texts", "ranks", "words"),
    [
        ((report(BEHIND), report(BEHIND)), (3,), "launched AllReduce up to 100, others up to 101; the same in the second look: stuck"),
        ((report(BEHIND), report([n + 9 for n in BEHIND])), (3,), "slow rather than stuck"),
        ((report(BEHIND),), (3,), "up to 101"),
        ((report([101] * 8), report([101] * 8)), (), "below the launch"),
        ((report([101] * 7, missing=[7]),), (7,), "do not answer"),
        ((report(BEHIND, size=16),), (), "of communicator 0x1"),
        (
            (
                TEXT.format(
                    in_group=8, errors="MISMATCH", words="  7 ranks have launched up to operation 64\n  Rank 6 has launched up to operation 60"
                ),
            ),
            (6,),
            "60",
        ),
        ((TEXT.format(in_group=7, errors="INCOMPLETE", words="  Rank 2 -- GPU 3 managed by process 3748990 on node node1"),), (2,), "do not answer"),
        (("\x1b[31mno report", "{"), None, ""),
        (('{"communicators": [{"ranks": 7, "size": "x", "missing_ranks": [{"rank": {}}]}]}',), (), "below the launch"),
    ],
)
def test_what_nccl_ras_says_names_who_launched_less_or_is_gone(texts: tuple[str, ...], ranks: tuple[int, ...] | None, words: str) -> None:
    found = by_ras(Failure("j", 0, workers=WORKERS, ras=(RasLooks(1, 10.0, texts),)))
    if ranks is None:
        assert found is None
        return
    assert found is not None and (found.ranks, found.accused) == (ranks, ()) and words in found.text


def test_of_several_operations_the_one_furthest_behind_is_told() -> None:
    two = {"communicators": [{"hash": "c", "size": 2, "ranks": [{"rank": r, "collective_counts": {"A": 5 - r, "B": 9 - 4 * r}} for r in (0, 1)]}]}
    assert communicators(json.dumps(two))[0].behind == {1: Late("B", 5, 9)}


def test_a_mark_has_a_verdict_of_its_own_that_says_nothing_is_stopped_and_accuses_nobody() -> None:
    told = [(rank, rank != 5, IN if rank != 5 else LOAD, False) for rank in range(8)]
    hung = Failure(
        "j-abc123", 2, workers=WORKERS, stacks=stacks(*told), ras=(RasLooks(1, 10.0, (report([101] * 5 + [100] + [101] * 2),)),), hang=True
    )
    found = decide(hung).message(7)
    assert (found.id, found.state, found.suspects, found.accused) == ("j-abc123-2-hang", "hang", ("w2/r5",), ())
    assert found.sentence.startswith("No progress, nothing is stopped yet") and "尚未停止" in found.sentenceZh
    assert any("[ras]" in line for line in found.evidence) and any("[stacks]" in line for line in found.evidence)
    assert "stacks of 4 workers" in found.read and "no failed check" not in found.missing


def blob(kind: BlobKind, pod: str, data: bytes, ident: str, incarnation: int = 0) -> list[tuple[str, BlobPiece, int]]:
    sent = pieces(data, kind, uid="u", attempt=1, incarnation=incarnation)
    return [(f"aegis.job.j.blob.{pod}.{ident}", piece, 0) for piece in sent]


def test_of_several_looks_of_a_worker_the_last_whole_one_of_the_run_counts() -> None:
    old, new = encode(Stacks(1)), encode(Stacks(2))
    found = [
        *blob("stacks", "w0", new, "s-1"),
        *blob("stacks", "w0", old, "s-0", incarnation=1),
        *blob("stacks", "w1", b"\xff no JSON", "s-2"),
        *blob("ras", "w0", encode(RasLooks(1, texts=("x",))), "r-1"),
    ]
    looks = put_together(found, 0)
    assert {pod: told.at for pod, told in looks.stacks.items()} == {"w0": 2} and [told.texts for told in looks.ras] == [("x",)]


# --- across failures -------------------------------------------------------------------------------------------------------------


def failed(
    incarnation: int, day: float = 0.0, *, nodes: Sequence[str] = (), suspects: Sequence[str] = (), line: str = "", cause: str = "gpu_hw"
) -> Verdict:
    at = round((20_000 + day) * DAY)
    return Verdict(
        f"j-{incarnation}", "lognexus", cause, tuple(suspects), nodes=tuple(nodes), job="j", incarnation=incarnation, at=at, firstLine=line
    )


RACKS = {f"n{k}": {"rack": f"r{k // 4}", "row": "A"} for k in range(32)}


@pytest.mark.parametrize(
    ("verdicts", "labels", "words"),
    [
        (
            [failed(0, nodes=["n3"]), failed(1, nodes=["n7"]), failed(2, nodes=["n3"])],
            {},
            ["n3 is suspect in 2 of 3 failures of this job (incarnations 0, 2)"],
        ),
        (
            [failed(k, k, nodes=[f"n{k}"], suspects=["w1/r9"]) for k in range(2)],
            {},
            ["r9 is suspect in 2 of 2", "its work or data is suspect, not a machine"],
        ),
        (
            [failed(0, line="w0/r0:7: KeyError: 12 at 0x7f", cause="user_code"), failed(1, line="w1/r3:99: KeyError: 13 at 0x8e", cause="user_code")],
            {},
            ["the same line each time"],
        ),
        ([failed(k, k, nodes=[f"n{8 + k}"]) for k in range(3)], RACKS, ["n10, n8, n9 share rack r2, where 4 of the job's 32 machines are"]),
        ([failed(k, k, nodes=[f"n{9 * k}"]) for k in range(3)], RACKS, []),
        ([failed(k, k + 0.13 + k * 0.005, nodes=[f"n{9 * k}"]) for k in range(3)], {}, ["3 failures on 3 days, all between 03:07 and 03:21 UTC"]),
        ([failed(k, 2 * k + (0.99 if k % 2 else 1.005), nodes=[f"n{9 * k}"]) for k in range(3)], {}, ["all between 23:45 and 00:07 UTC"]),
        ([failed(k, k + 0.3 * k) for k in range(3)], {}, []),
        ([failed(k, 0.13) for k in range(3)], {}, []),
        ([failed(0, nodes=["n3"], cause="preemption"), failed(1, nodes=["n3"])], {}, []),
        ([failed(0)], {}, []),
    ],
)
def test_failures_of_a_job_are_compared_for_what_they_share_beyond_chance(
    verdicts: list[Verdict], labels: Mapping[str, Mapping[str, str]], words: list[str]
) -> None:
    told = compare(verdicts[-1], verdicts[:-1], labels)
    text = "; ".join(told)
    assert all(word in text for word in words) and (bool(told) == bool(words)), text
