"""The training's side: what changed is copied, and written while the training goes on; the manifest comes when all ranks have written.

Compared is with a copy in host memory of what was saved last, exactly: a shard that is the same to the bit is not written again. The training waits
for the copy and the comparison (`stall`), and for a save before that is still going on.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from aegis_saver.folder import PARTS, Manifest, claim, commit, complete, run_id, sizes


def tell(verb: str, **more: Any) -> bool:
    """One line to the agent of this worker. False when there is none, or it does not want it."""
    path = os.environ.get("AEGIS_CONTROL_SOCKET", "")
    if not path:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(5.0)
            peer.connect(path)
            peer.sendall(json.dumps({"verb": verb, **more}).encode() + b"\n")
            return bool(json.loads(peer.recv(65536)).get("ok"))
    except (OSError, ValueError):
        return False


class Saver:
    """Saves `model` and `optimizer` (anything that torch.distributed.checkpoint takes) into `folder`, every `every` steps of the optimizer.

    `start()` loads the newest complete checkpoint and returns the step to go on from. `save(step)` may also be called by hand, on all ranks.
    `stall` (seconds) and `written` (bytes of this rank) are those of the last save.
    """

    def __init__(self, folder: str | os.PathLike[str], *, model: Any, optimizer: Any, every: int = 0) -> None:
        import torch.distributed as dist

        self.folder = Path(folder).absolute()
        self.model, self.optimizer, self.every = model, optimizer, every
        self.step = 0
        self.stall = 0.0
        self.written = 0
        self.run = run_id(dict(os.environ))
        self._dist = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank() if self._dist else 0
        self._group = dist.new_group(backend="gloo") if self._dist else None
        self._keys: dict[str, str] = {}  # key -> the part that holds it
        self._files: dict[str, int] = {}
        self._copies: dict[str, Any] = {}
        self._going_on: Any = None
        if self._rank == 0:
            claim(self.folder, os.environ.get("AEGIS_JOB", "local"), int(os.environ.get("AEGIS_INCARNATION", "0")))
            tell("saver", path=str(self.folder))
        if self._dist:
            dist.barrier(self._group)

    def start(self) -> int:
        """Load the newest complete checkpoint, if there is one, and count the optimizer's steps from it."""
        import torch.distributed as dist

        dcp = _checkpoint()
        found: list[Any] = [complete(self.folder)[:1]]
        if self._dist:
            dist.broadcast_object_list(found, src=0, group=self._group)  # all resume from one and the same
        if found[0]:
            newest: Manifest = found[0][0]
            state = self._state()
            for part in sorted(newest.parts):
                some = {key: value for key, value in state.items() if newest.keys.get(key) == part}
                dcp.load(some, checkpoint_id=self.folder / PARTS / part, process_group=self._group, no_dist=not self._dist)
                state.update(some)
            self._put(state)
            self.step, self._keys, self._files = newest.step, dict(newest.keys), dict(newest.files)
            self._copies = {key: _copy(value) for key, value in self._state().items()}
        if self.every:
            self.optimizer.register_step_post_hook(lambda *_: self._stepped())
        return self.step

    def save(self, step: int) -> None:
        """Begin to save what has changed. All ranks call it, with the same step."""
        import torch.distributed as dist

        dcp = _checkpoint()
        began = time.monotonic()
        self.wait()
        state = self._state()
        changed = {key for key, value in state.items() if key not in self._keys or not _same(self._copies.get(key), value)}
        if self._dist:  # a shard is written by all ranks or by none
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, changed, group=self._group)
            changed = set().union(*everyone)
        for key in changed & state.keys():
            self._copies[key] = _copy(state[key])
        part, again = f"{self.run}-{step}", 1
        while part in self._keys.values():  # this step was saved before: that part is needed, and never written into
            part, again = f"{self.run}.{again}-{step}", again + 1
        keys = {**self._keys, **dict.fromkeys(changed, part)}
        self.step, self.written = step, sum(_bytes(state[key]) for key in changed & state.keys())
        if changed:
            future = dcp.async_save(
                {key: state[key] for key in changed & state.keys()},
                checkpoint_id=self.folder / PARTS / part,
                process_group=self._group,
                no_dist=not self._dist,
            )
            told = threading.Event()
            failed: list[Exception] = []

            def ended(done: Any) -> None:
                try:
                    if self._rank == 0 and done.exception() is None:
                        self._written(step, keys, part)
                except Exception as error:  # a full disk: whoever waits must not wait for ever
                    failed.append(error)
                finally:
                    told.set()

            self._going_on = (future, keys, changed, told, failed)
            future.add_done_callback(ended)
        elif self._rank == 0:
            self._written(step, keys, "")
        self.stall = time.monotonic() - began

    def wait(self) -> None:
        """Until the save that is going on is complete; its error is raised here, and what it was to write is written by the next one."""
        if self._going_on is None:
            return
        (future, keys, changed, told, failed), self._going_on = self._going_on, None
        try:
            future.result()
            told.wait()
            if failed:
                raise failed[0]
        except BaseException:
            for key in changed:
                self._keys.pop(key, None)
            raise
        self._keys = keys

    def _stepped(self) -> None:
        self.step += 1
        if self.step % self.every == 0:
            self.save(self.step)

    def _written(self, step: int, keys: dict[str, str], part: str) -> None:
        """On rank 0, when every rank has written: torch has put `.metadata` beside the files as the last one."""
        parts = set(keys.values())
        files = {name: size for name, size in self._files.items() if Path(name).parts[1] in parts}
        self._files = {**files, **(sizes(self.folder, part) if part else {})}
        commit(self.folder, Manifest(self.run, int(os.environ.get("AEGIS_INCARNATION", "0")), step, keys, self._files))
        tell("checkpoint", step=step)

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
        return {**{f"model.{key}": value for key, value in model.items()}, **{f"optimizer.{key}": value for key, value in optimizer.items()}}

    def _put(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict={key[6:]: value for key, value in state.items() if key.startswith("model.")},
            optim_state_dict={key[10:]: value for key, value in state.items() if key.startswith("optimizer.")},
            options=StateDictOptions(flatten_optimizer_state_dict=True),
        )


def _checkpoint() -> Any:
    import torch.distributed.checkpoint as module

    return module


def _local(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value


def _copy(value: Any) -> Any:
    import torch

    value = _local(value)
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _same(copy: Any, value: Any) -> bool:
    import torch

    value = _local(value)
    if isinstance(value, torch.Tensor):
        return isinstance(copy, torch.Tensor) and copy.dtype == value.dtype and torch.equal(copy, value.detach().cpu())
    return type(copy) is type(value) and bool(copy == value)


def _bytes(value: Any) -> int:
    import torch

    value = _local(value)
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
