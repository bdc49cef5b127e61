"""An ordinary distributed training: a small convolutional net on scikit-learn's handwritten digits, DDP over gloo on the CPU.

Nothing in here knows Aegis. Start it with torchrun or anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT:

    torchrun --nproc-per-node 2 train.py --out /tmp/digits

It saves a checkpoint every few steps and resumes from the newest one. The same seed gives the same weights, bit for bit, however often it
was interrupted: the data order follows from the step, the optimizer state is in the checkpoint, and every process computes in one thread.

`DEMO_RAISE=rank:restart:step` makes that rank raise ValueError at that step of that restart: the demo's fault injection.
"""

import argparse
import gzip
import hashlib
import importlib.util
import json
import os
import time
from pathlib import Path

STARTED = time.time()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

BATCH = 48
HELD_OUT = 297


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8x8 and their labels, from the file that scikit-learn ships (importing scikit-learn itself would cost 2 s)."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise SystemExit("scikit-learn is not installed: its digits are the data set of this example")
    with gzip.open(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :64].reshape(-1, 1, 8, 8) / 16.0), torch.from_numpy(table[:, 64].astype(np.int64))


def batch_of(step: int, rank: int, world: int, total: int) -> torch.Tensor:
    """Indices of this rank's samples at `step`: a function of the step alone, so that a resumed run sees what an undisturbed one would have."""
    order = torch.randperm(total, generator=torch.Generator().manual_seed(step))
    return order[rank * BATCH : (rank + 1) * BATCH] if world * BATCH <= total else order[:BATCH]


def save(path: Path, state: dict[str, object]) -> None:
    """All or nothing: a kill in the middle leaves the previous checkpoint."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints, logs and the final weights")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--save-every", type=int, default=20)
    options = parser.parse_args()
    rank, restart = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    raise_at = os.environ.get("DEMO_RAISE", "")
    options.out.mkdir(parents=True, exist_ok=True)
    log = open(options.out / f"log-{restart}-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115
    log.write(json.dumps({"event": "start", "t": STARTED, "pid": os.getpid()}) + "\n")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    images, labels = digits()
    images, labels, test_images, test_labels = images[:-HELD_OUT], labels[:-HELD_OUT], images[-HELD_OUT:], labels[-HELD_OUT:]
    net = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    # DDP arranges its buckets anew after the first backward. One that changes nothing makes every start alike: sums in the same order.
    loss_of(model(images[:BATCH]), labels[:BATCH]).backward()

    first = 0
    checkpoint = options.out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        if rank == 0:
            print(f"resumed at step {first}", flush=True)

    for step in range(first, options.steps):
        chosen = batch_of(step, rank, world, len(images))
        optimizer.zero_grad()
        loss = loss_of(model(images[chosen]), labels[chosen])
        loss.backward()  # the gradients of all ranks meet here
        optimizer.step()
        log.write(json.dumps({"event": "step", "t": time.time(), "step": step}) + "\n")
        if raise_at == f"{rank}:{restart}:{step}":
            raise ValueError(f"bad sample in the batch of step {step}")
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if rank == 0 and (step + 1) % options.save_every == 0:
            save(checkpoint, {"step": step + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()})

    if rank == 0:
        with torch.no_grad():
            right = (net(test_images).argmax(1) == test_labels).float().mean().item()
        save(options.out / "final.pt", {"net": net.state_dict()})
        weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.state_dict().values())).hexdigest()
        (options.out / "final.json").write_text(json.dumps({"steps": options.steps, "accuracy": right, "sha256": weights}))
        print(f"done: accuracy {right:.3f} on {HELD_OUT} images never seen, weights {weights[:12]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
