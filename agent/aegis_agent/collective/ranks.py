"""What one forked child does in a test: connect its group, run collectives whose result is known, measure. Needs torch; knows nothing of the meeting.

Says each stage before it begins, so that whoever ends it knows where it stood. Every value is checked on every rank.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

SMALL = 1 << 12
"""Elements of the verified tensors: enough to cross more than one chunk of a ring, nothing in time."""
SIZES = {"gloo": (1 << 18, 1 << 22), "": (1 << 20, 1 << 24, 1 << 28)}
"""Bytes measured, by backend ("" = accelerators)."""
REPEATS = {"gloo": 3, "": 5}


class Wrong(Exception):
    """A collective ended, with a result that is not what it must be."""


def one_thread() -> None:
    """The ranks of a machine share its cores."""
    import torch

    torch.set_num_threads(1)


def contribution(rank: int) -> int:
    return rank % 61 + 1


def run(test: dict[str, Any], say: Any) -> dict[str, float]:
    """One test of one group. `test`: rank, world, backend, device, local, store (host, port), key, seconds, what ("values" | "speed"), link.

    `say(stage)` tells where it is. Gives GB/s of bus bandwidth by "link.bytes" for "speed". Raises what torch raises, or Wrong.
    """
    import torch
    import torch.distributed

    dist: Any = torch.distributed
    say("device")
    device = torch.device("cpu")
    if test["device"] != "cpu":
        if test["device"] not in ("cuda",):
            __import__({"npu": "torch_npu", "musa": "torch_musa", "mlu": "torch_mlu"}[test["device"]])
        device = torch.device(test["device"], test["local"])
        getattr(torch, test["device"]).set_device(test["local"])
    if test.get("interface"):
        os.environ["GLOO_SOCKET_IFNAME"] = test["interface"]
    say("store")
    limit = timedelta(seconds=test["seconds"])
    host, port = test["store"]
    store = dist.TCPStore(host, port, None, False, limit, wait_for_workers=False)
    say("connect")
    dist.init_process_group(test["backend"], store=dist.PrefixStore(test["key"], store), rank=test["rank"], world_size=test["world"], timeout=limit)
    verify(torch, dist, device, rank=test["rank"], world=test["world"], say=say)
    out = {}
    if test["what"] == "speed":
        say("bandwidth")
        kind = "gloo" if test["backend"] == "gloo" else ""
        for size in SIZES[kind]:
            out[f"{test['link']}.{size}"] = bandwidth(torch, dist, device, size=size, world=test["world"], repeats=REPEATS[kind])
    elif test["what"] == "long":
        keep_on(torch, dist, device, test, say)
    say("leave")
    dist.barrier()
    return out


def verify(torch: Any, dist: Any, device: Any, *, rank: int, world: int, say: Any) -> None:
    """all_reduce and all_gather with a known result, exact in float32 up to 39,000 ranks."""
    pattern = torch.arange(SMALL, dtype=torch.float32, device=device) % 7 + 1
    say("all_reduce")
    tensor = pattern * contribution(rank)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    wanted = pattern * sum(map(contribution, range(world)))
    if not torch.equal(tensor, wanted):
        at = int((tensor != wanted).nonzero()[0])
        raise Wrong(f"all_reduce over {world} ranks: element {at} is {float(tensor[at])}, {float(wanted[at])} is right")
    say("all_gather")
    mine = pattern * contribution(rank)
    slots = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(slots, mine)
    wrong = [other for other in range(world) if not torch.equal(slots[other], pattern * contribution(other))]
    if wrong:
        raise Wrong(f"all_gather over {world} ranks: what rank {wrong[0]} gave arrived wrong ({len(wrong)} of {world} slots)")


def keep_on(torch: Any, dist: Any, device: Any, test: dict[str, Any], say: Any) -> None:
    """Large all_reduces one after the other for `during` seconds, looked at in between. All ranks leave after the same one."""
    say("load")
    size = SIZES["gloo" if test["backend"] == "gloo" else ""][-1] // 4
    ones = torch.ones(size, dtype=torch.float32, device=device)
    until, over = time.perf_counter() + test["during"], torch.zeros(1, device=device)
    while float(over) == 0:
        tensor = ones.clone()
        dist.all_reduce(tensor)
        if not bool((tensor == test["world"]).all()):
            raise Wrong(f"all_reduce of {size * 4 >> 20} MiB over {test['world']} ranks under load: a sum is wrong")
        over.fill_(float(time.perf_counter() > until))
        dist.all_reduce(over)


def bandwidth(torch: Any, dist: Any, device: Any, *, size: int, world: int, repeats: int) -> float:
    """GB/s on the bus (bytes * 2 (n - 1) / n / seconds, as nccl-tests count), the best of `repeats`."""
    tensor = torch.zeros(size // 4, dtype=torch.float32, device=device)
    best = float("inf")
    wait = getattr(torch, device.type).synchronize if device.type != "cpu" else lambda: None
    for _ in range(repeats + 1):  # the first is a warm-up
        dist.barrier()
        wait()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        wait()
        best = min(best, time.perf_counter() - began)
    return size * 2 * (world - 1) / world / best / 1e9
