"""Reading dumps: names of every style, broken files, hostile files."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from aegis_lognexus.flight import analyze, decode, from_mapping, read_folder, reading, synthetic
from aegis_lognexus.flight.dump import EMPTY, OK, REFUSED, TRUNCATED, UNREADABLE


def _dump(**more: Any) -> dict[str, Any]:
    return dict(synthetic.dumps(synthetic.Job(world=4, side=0, entries=6)))[0] | more


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["fr_0", "fr_1", "fr_10"], [0, 1, 10]),
        (["_dump_0", "_dump_12"], [0, 12]),
        (["nccl_trace_rank_0", "nccl_trace_rank_7"], [0, 7]),
        (["host12_3", "host12_4"], [3, 4]),
        (["node7-rank3.pkl", "node8-rank4.pkl"], [3, 4]),
        (["fr_0_20261129", "fr_1_20261129"], [0, 1]),
        (["gpu-a100-2.json", "gpu-a100-3.json"], [2, 3]),
        (["trace.0", "trace.15"], [0, 15]),
        (["fr_0_4242", "fr_1_4243", "fr_10_977"], [0, 1, 10]),
        (["cn-001_4.pkl", "cn-002_5.pkl"], [4, 5]),
        (["cn-101.cluster7_0", "cn-102.cluster7_1"], [0, 1]),
        (["512.json", "4000.json"], [512, 4000]),
        (["0", "1", "2"], [0, 1, 2]),
        (["fr-Rank.3-20261129T101500.json", "fr-Rank.4-20261129T101501.json"], [3, 4]),
        (["rank12_trace.pkl", "rank9_trace.pkl"], [12, 9]),
        (["comm_lib_trace_rank_5.pickle"], [5]),
        (["node0_local_rank1_global_rank1", "node1_local_rank1_global_rank3"], [1, 3]),
        (["tp_rank0_pp_rank1_rank2", "tp_rank1_pp_rank1_rank3", "tp_rank0_pp_rank0_rank0"], [2, 3, 0]),
        (["global_rank7_local_rank3"], [7]),
    ],
)
def test_a_rank_is_read_from_names_of_every_style(names: list[str], ranks: list[int]) -> None:
    assert [reading.ranks_of(names)[n] for n in names] == ranks


def test_files_that_are_no_dumps_belong_to_no_rank() -> None:
    assert reading.ranks_of(["truth.json", "torchfrtrace_raw.txt", "rank0.log", ".fr_3", "notes", f"rank{10**30}"]) == {}


def test_pickle_and_json_of_one_dump_read_the_same(tmp_path: Path) -> None:
    raw = _dump()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "fr_0").write_bytes(pickle.dumps(raw, protocol=2))
    (tmp_path / "b" / "fr_0.json").write_text(json.dumps(raw))
    one, other = read_folder(tmp_path / "a")[0], read_folder(tmp_path / "b")[0]
    assert (one.kinds, one.groups, one.config, one.status) == (other.kinds, other.groups, other.config, other.status)
    assert all((one.columns[c] == other.columns[c]).all() for c in one.columns)


def test_a_folder_may_be_given_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "fr_0").write_bytes(pickle.dumps(_dump()))
    monkeypatch.chdir(tmp_path)
    assert read_folder(Path("dumps"))[0].state == OK
    monkeypatch.chdir("dumps")
    assert read_folder(Path())[0].state == OK


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol_reads(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "fr_0").write_bytes(pickle.dumps(_dump(), protocol=protocol))
    assert len(read_folder(tmp_path)[0]) == 6


class _Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_a_pickle_that_asks_for_a_class_is_refused_and_never_runs(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "fr_0").write_bytes(pickle.dumps(_dump(extra=_Evil(marker))))
    (tmp_path / "fr_1").write_bytes(pickle.dumps(_dump()))
    dumps = read_folder(tmp_path)
    assert not marker.exists()
    assert dumps[0].state == REFUSED and "mkdir" in dumps[0].note
    assert dumps[1].state == OK


def test_a_truncated_or_empty_file_is_told_apart_from_an_absent_one(tmp_path: Path) -> None:
    whole = pickle.dumps(_dump(), protocol=2)
    (tmp_path / "fr_0").write_bytes(whole)
    (tmp_path / "fr_1").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "fr_2").write_bytes(b"")
    (tmp_path / "fr_3.json").write_text('{"entries": [{"pro')
    dumps = read_folder(tmp_path)
    assert [dumps[r].state for r in range(4)] == [OK, TRUNCATED, TRUNCATED, TRUNCATED]


def test_a_broken_pickle_is_replaced_by_its_json_twin(tmp_path: Path) -> None:
    (tmp_path / "fr_0").write_bytes(pickle.dumps(_dump(), protocol=2)[:100])
    (tmp_path / "fr_0.json").write_text(json.dumps(_dump()))
    assert read_folder(tmp_path)[0].state == OK


def test_a_memory_bomb_ends_only_its_own_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow = [0] * 10
    for _ in range(12):
        grow = [grow] * 10  # a few hundred bytes of pickle, 10^13 numbers for whoever writes it out
    bomb = _dump()
    bomb["entries"][0]["input_sizes"] = grow
    monkeypatch.setattr(reading, "FILE_DEADLINE", 6.0)
    (tmp_path / "fr_0").write_bytes(pickle.dumps(bomb, protocol=2))
    (tmp_path / "fr_1").write_bytes(pickle.dumps(_dump(), protocol=2))
    dumps = read_folder(tmp_path)
    assert dumps[0].state in (REFUSED, UNREADABLE)
    assert dumps[1].state == OK


def test_a_set_that_holds_too_much_or_takes_too_long_is_read_as_far_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.write(synthetic.Job(world=4, side=0, entries=50), tmp_path)
    assert [dump.state for dump in read_folder(tmp_path, seconds=0).values()] == [REFUSED] * 4
    monkeypatch.setattr(reading, "MAX_ENTRIES", 60)
    dumps = read_folder(tmp_path)
    assert [dump.state for dump in dumps.values()] == [OK, OK, REFUSED, REFUSED] and "too many operations" in dumps[3].note


def test_an_entry_that_is_repeated_without_end_takes_no_memory_of_the_readers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fr_0").write_bytes(pickle.dumps({"entries": [{}] * 20_000, "version": "2.10"}))
    monkeypatch.setattr(reading, "MAX_ANSWER", 100_000)
    assert read_folder(tmp_path)[0].state == REFUSED


def test_a_file_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "fr_0", "wb") as f:
        f.truncate(decode.MAX_FILE_BYTES + 1)
    dump = read_folder(tmp_path)[0]
    assert dump.state == REFUSED and "64 MB" in dump.note


@pytest.mark.parametrize(
    "raw",
    [
        [],
        "text",
        {"entries": 5, "version": "2.10"},
        {"unrelated": 1},
        {"entries": [1, None, "x"], "version": "2.10"},
        {"entries": [{}], "pg_status": [], "pg_config": "x"},
        {"entries": [{"collective_seq_id": 10**30, "process_group": {"a": 1}}]},
        {"entries": [{"profiling_name": None, "input_sizes": "x", "time_created_ns": "soon", "frames": [1, {}]}]},
    ],
)
def test_content_of_any_shape_is_data(tmp_path: Path, raw: Any) -> None:
    (tmp_path / "fr_0").write_bytes(pickle.dumps(raw))
    (tmp_path / "fr_1").write_bytes(pickle.dumps(_dump(), protocol=2))
    dumps = read_folder(tmp_path)
    assert dumps[0].state in (OK, EMPTY, UNREADABLE)
    analyze(dumps)


@pytest.mark.parametrize("field", [{"state": {}}, {"process_group": ("0", [])}, {"pg_id": [1]}, {"is_p2p": {"x": 1}}, {"retired": [0]}])
def test_a_broken_entry_costs_only_itself(field: dict[str, Any]) -> None:
    raw = _dump()
    raw["entries"][2] |= field
    dump = from_mapping(0, raw)
    assert len(dump) == 5 and dump.note.startswith("1 ")


def test_a_later_schema_with_other_fields_and_an_unknown_backend_reads(tmp_path: Path) -> None:
    raw = _dump(version="3.4", hook_recorder={"x": 1})
    for e in raw["entries"]:
        e["profiling_name"] = "tpu9:" + e["profiling_name"].partition(":")[2]
        e["a_new_field"] = [1, 2]
        del e["op_id"], e["timeout_ms"], e["thread_id"]
    (tmp_path / "fr_0").write_bytes(pickle.dumps(raw))
    dump = read_folder(tmp_path)[0]
    assert dump.version == "3.4" and dump.kinds[0].op == "allreduce" and dump.kinds[0].backend == "tpu9"


def test_names_that_are_no_regular_file_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fr_1")
    (tmp_path / "fr_2").mkdir()
    (tmp_path / "fr_0").write_bytes(pickle.dumps(_dump(), protocol=2))
    assert list(read_folder(tmp_path)) == [0]
