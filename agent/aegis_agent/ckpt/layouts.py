"""What a complete checkpoint looks like: Megatron-LM, DeepSpeed, torch.distributed.checkpoint (DCP), Hugging Face. Pure: a tree in, findings out.

A checkpoint is a safe point only when the thing that its framework writes last is there, and what can be checked of the rest holds: named files
exist, safetensors are as long as their headers say, zip files of torch end as zip files do. One that was killed in mid-save is never taken.

| layout | folder | written last |
|---|---|---|
| megatron | `iter_0000500/` beside `latest_checkpointed_iteration.txt` | the tracker, after a barrier of all ranks |
| deepspeed | `global_step500/` beside `latest` | `latest`, after a barrier of all ranks |
| dcp | `step-500/` (any folder that ends in a number) with `.metadata` | `.metadata`, renamed into place by the coordinator |
| huggingface | `checkpoint-500/` with `trainer_state.json` | `trainer_state.json` |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from aegis_agent.ckpt.tree import Entry, Tree

NEWEST = 3
"""Folders of a layout that are looked into, by step: older ones were looked at when they were new."""
MAX_STEP = 2**53
MOST_FILES = 4096
"""Files of one checkpoint whose ends are looked at."""
HEADER = 1 << 20
"""Bytes of a safetensors header that are read; a longer one is believed."""
_END_OF_ZIP, _BEGIN_OF_ZIP = b"PK\x05\x06", b"PK\x03\x04"
_NUMBER = re.compile(r"(\d{1,15})\Z")


@dataclass(frozen=True, slots=True)
class Complete:
    """A complete checkpoint. `mark`: identity of what was written last, so that the same step saved anew is another one."""

    step: int
    path: str
    layout: str
    mark: tuple[int, int, int]


def complete(tree: Tree) -> list[Complete]:
    """Every complete checkpoint among the newest of each layout, lowest step first."""
    top = {entry.name: entry for entry in tree.names()}
    found = [*_megatron(tree, top), *_deepspeed(tree, top), *_huggingface(tree, top), *_dcp(tree, top)]
    return sorted(found, key=lambda one: (one.step, one.layout))


def _text(tree: Tree, path: str) -> str:
    return tree.head(path, 256).decode("ascii", "replace").strip()


def _newest(top: dict[str, Entry], prefix: str = "") -> Iterator[tuple[int, Entry]]:
    """(step, folder) of the folders that end in a number, newest `NEWEST` of them."""
    numbered = [(int(match[1]), entry) for name, entry in top.items() if entry.folder and name.startswith(prefix) and (match := _NUMBER.search(name))]
    yield from sorted((pair for pair in numbered if pair[0] <= MAX_STEP), key=lambda pair: pair[0])[-NEWEST:]


def _megatron(tree: Tree, top: dict[str, Entry]) -> Iterator[Complete]:
    tracker = top.get("latest_checkpointed_iteration.txt")
    word = _text(tree, tracker.name) if tracker is not None else ""
    if tracker is None or not word.isdigit() or len(word) > 15:
        return  # also `release`: weights without a step
    folder = f"iter_{int(word):07d}"
    if folder in top and _whole(tree, folder):
        yield Complete(int(word), folder, "megatron", tracker.mark)


def _deepspeed(tree: Tree, top: dict[str, Entry]) -> Iterator[Complete]:
    latest = top.get("latest")
    tag = _text(tree, "latest") if latest is not None and not latest.folder else ""
    match = _NUMBER.search(tag)
    if latest is None or match is None or tag not in top or not top[tag].folder:
        return
    names = [entry.name for entry in tree.names(tag)]
    if any(name.endswith("_model_states.pt") for name in names) and _whole(tree, tag):
        yield Complete(int(match[1]), tag, "deepspeed", latest.mark)


def _dcp(tree: Tree, top: dict[str, Entry]) -> Iterator[Complete]:
    """Not what Megatron saves in this format: there its tracker is asked, which comes after `.metadata`."""
    for step, folder in _newest({name: entry for name, entry in top.items() if not name.startswith("iter_")}):
        files = {entry.name: entry for entry in tree.names(folder.name)}
        metadata = files.get(".metadata")
        shards = [entry for name, entry in files.items() if name.endswith(".distcp")]
        if metadata is not None and metadata.size and shards and _pickled(tree.tail(f"{folder.name}/.metadata", 1)):
            yield Complete(step, folder.name, "dcp", metadata.mark)


def _huggingface(tree: Tree, top: dict[str, Entry]) -> Iterator[Complete]:
    for step, folder in _newest(top, "checkpoint-"):
        files = {entry.name: entry for entry in tree.names(folder.name)}
        state = files.get("trainer_state.json")
        if state is None or state.size > 64 << 20:
            continue
        try:
            told = json.loads(tree.head(f"{folder.name}/trainer_state.json", state.size or 1))
        except (ValueError, RecursionError):
            continue  # being written
        if isinstance(told, dict) and told.get("global_step") == step and _indexed(tree, folder.name, files) and _whole(tree, folder.name):
            yield Complete(step, folder.name, "huggingface", state.mark)


def _indexed(tree: Tree, folder: str, files: dict[str, Entry]) -> bool:
    """Every shard that an index names is there, and there are weights at all."""
    for name, entry in files.items():
        if name.endswith(".index.json"):
            try:
                index = json.loads(tree.head(f"{folder}/{name}", min(entry.size, 64 << 20) or 1))
                shards = set(index["weight_map"].values())
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return False
            if not shards <= files.keys():
                return False
    return any(name.endswith((".safetensors", ".bin", ".pt", ".pth")) or entry.folder for name, entry in files.items())


def _whole(tree: Tree, folder: str, depth: int = 2) -> bool:
    """No file of the folder is visibly cut off, and there is at least one."""
    entries = tree.names(folder)
    files = [entry for entry in entries if not entry.folder][:MOST_FILES]
    inner = [_whole(tree, f"{folder}/{entry.name}", depth - 1) for entry in entries if entry.folder and depth]
    return (bool(files) or any(inner)) and all(inner) and all(_file_whole(tree, f"{folder}/{entry.name}", entry) for entry in files)


def _file_whole(tree: Tree, path: str, entry: Entry) -> bool:
    name = entry.name
    if name.endswith((".tmp", ".partial", ".incomplete")):
        return False
    if name.endswith(".safetensors"):
        return _safetensors_whole(tree.head(path, HEADER), entry.size)
    if name.endswith((".pt", ".pth", ".bin", ".distcp")):
        begin = tree.head(path, 4)
        return entry.size > 0 and (begin != _BEGIN_OF_ZIP or _END_OF_ZIP in tree.tail(path, 65_557))
    return True


def _safetensors_whole(head: bytes, size: int) -> bool:
    """The file is as long as its header says (8 bytes of length, the header, the tensors)."""
    if len(head) < 8:
        return False
    length = int.from_bytes(head[:8], "little")
    if length > HEADER - 8:
        return size > 8 + length
    try:
        header = json.loads(head[8 : 8 + length])
        end = max((int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return False
    return size == 8 + length + end


def _pickled(last: bytes) -> bool:
    """A pickle ends with STOP."""
    return last == b"."
