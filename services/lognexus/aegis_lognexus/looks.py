"""What agents saw of a run that stands still, in two looks: stacks of its processes, and what NCCL's RAS said. Pure.

Neither proves a cause; both say who. What moved between the looks is slow, what did not is stuck. Agents run in the pod: they accuse nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aegis_parsers.ib.ncclras import Communicator, Late, communicators
from aegis_proto.blobs import BlobPiece, unpacked, whole
from aegis_proto.looks import RankStack, RasLooks, Stacks
from aegis_proto.messages import BadMessage, decode
from aegis_proto.subjects import token

from aegis_lognexus.evidence import Failure, Reading

MOST_BYTES = 32 << 20
"""Bytes of one blob, unpacked."""
MOST_OF_ALL = 128 << 20
"""Bytes of all of them: RAS tells of the whole job in each."""
FEW = 8
STUCK, SLOW = "the same in the second look: stuck", "it moved between the looks: slow rather than stuck"


@dataclass(frozen=True, slots=True)
class Looks:
    """`stacks`: by worker; `ras`: what each worker that asked was told."""

    stacks: dict[str, Stacks]
    ras: tuple[RasLooks, ...] = ()


def put_together(found: Iterable[tuple[str, BlobPiece, int]], incarnation: int) -> Looks:
    """`found`: (subject, piece, server's time in ms), in order. Of several of a worker the last whole one counts."""
    blobs: dict[str, list[BlobPiece]] = defaultdict(list)
    for subject, piece, _ in found:
        if piece.kind in ("stacks", "ras") and piece.incarnation == incarnation:
            blobs[subject].append(piece)
    stacks: dict[str, Stacks] = {}
    ras: dict[str, RasLooks] = {}
    room = MOST_OF_ALL
    for subject, parts in blobs.items():
        data = unpacked(whole(parts), parts[0].name, min(MOST_BYTES, room))
        room -= len(data or b"")
        if room < 0:
            break
        pod = token(subject, 4)
        try:
            if data is not None and parts[0].kind == "stacks":
                stacks[pod] = decode(Stacks, data)
            elif data is not None:
                ras[pod] = decode(RasLooks, data)
        except BadMessage:
            continue
    return Looks(stacks, tuple(ras.values()))


# --- stacks ----------------------------------------------------------------------------------------------------------------------


def by_stacks(failure: Failure) -> Reading | None:
    """The ranks whose stacks differ from those of most: elsewhere while the others wait in a collective, or in the smallest group."""
    every = [(pod, stack) for pod, told in failure.stacks.items() for stack in told.stacks if stack.rank >= 0]
    if len(every) < 2:
        return None
    groups: dict[tuple[bool, str], list[tuple[str, RankStack]]] = defaultdict(list)
    for pod, stack in every:
        groups[stack.waiting, stack.where].append((pod, stack))
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    away = [item for key, items in ordered if not key[0] for item in items]
    waiting = len(every) - len(away)
    told = tuple(f"stacks: {len(items)}x {'waits in ' if key[0] else ''}{key[1]}" for key, items in ordered[:4])
    if not away:
        text = f"all {waiting} ranks wait in a collective: by their stacks nobody is missing"
        return Reading("unknown", "stacks", text, confidence=0.25, more=told)
    largest = ordered[0][1]
    late = waiting > 0 and len(away) <= waiting  # who is in a collective waits for those who are not
    odd = away if late else [item for item in every if item not in largest]
    if not odd or (not late and len(odd) * 2 >= len(every)):
        return Reading("unknown", "stacks", f"no group of stacks stands out among {len(every)} ranks", confidence=0.1, more=told)
    moves = {stack.moved for _, stack in odd}
    how = STUCK if moves == {False} else SLOW if moves == {True} else ""
    shown = ", ".join(f"rank {stack.rank} is in {stack.where}" for _, stack in odd[:FEW])
    rest = f"{waiting} wait{'s' if waiting == 1 else ''} in a collective" if waiting else f"{len(largest)} are in {ordered[0][0][1]}"
    text = f"{shown} while {rest}{f'; {how}' if how else ''}"
    pods = tuple(dict.fromkeys(pod for pod, _ in odd))
    return Reading("unknown", "stacks", text, pods, tuple(sorted(stack.rank for _, stack in odd)), confidence=0.65 if late else 0.4, more=told)


# --- NCCL RAS --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """A communicator at both looks; None: there was one look."""

    last: Communicator
    first: Communicator | None = None

    @property
    def stands(self) -> bool | None:
        """Nobody who is behind launched anything between the looks."""
        if self.first is None or not self.last.behind:
            return None
        return all(self.first.behind.get(rank) == late for rank, late in self.last.behind.items())


def by_ras(failure: Failure) -> Reading | None:
    """Who launched fewer operations than the others, or is missing. Equal counts are no sign of health: then it stands below the launch."""
    seen = _seen(failure.ras)
    if not seen:
        return None
    world = sum(len(worker.ranks) for worker in failure.workers)
    odd = [each for each in seen if each.last.behind or each.last.missing]
    if not odd:
        text = "NCCL RAS: all ranks launched the same operations and none is missing: it stands below the launch, in a device or on the way"
        return Reading("unknown", "ras", text, confidence=0.2)
    best = max(odd, key=lambda each: each.last.size)
    comm = best.last
    ranks = comm.missing or tuple(sorted(comm.behind))
    known = ranks if comm.size == world or (not comm.size and len(seen) == 1) else ()  # ranks of a smaller group are not the job's
    what = f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks[:FEW]))} of communicator {comm.name}"
    text = f"NCCL RAS: {what} {'do not answer' if comm.missing else _late(comm.behind[ranks[0]])}"
    if best.stands is not None:
        text += f"; {STUCK if best.stands else SLOW}"
    pods = tuple(dict.fromkeys(pod for rank in known if (pod := failure.pod_of(rank))))
    few = len(ranks) <= FEW and (not comm.size or len(ranks) * 2 <= comm.size)
    return Reading("unknown", "ras", text, pods if few else (), known if few else (), confidence=0.6 if few and known else 0.3)


def _late(late: Late) -> str:
    return f"launched {f'{late.op} ' if late.op else ''}up to {late.launched}, others up to {late.others}"


def _seen(told: Sequence[RasLooks]) -> list[_Seen]:
    """All communicators that anybody was told of, each once."""
    out: dict[str, _Seen] = {}
    for looks in told:
        found = [{comm.name: comm for comm in communicators(text)} for text in looks.texts[:2]]
        for name, comm in found[-1].items() if found else ():
            out.setdefault(name, _Seen(comm, found[0].get(name) if len(found) > 1 else None))
    return list(out.values())
