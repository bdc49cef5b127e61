"""A line is named for what it supports and no more, by both engines alike; a job is judged by its earliest strong line."""

from __future__ import annotations

import json
import re
import time
import tomllib
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
from aegis_parsers import kernel
from aegis_parsers.causes import classify_lines, judge, report, report_blocks
from aegis_parsers.causes.classify import CAUSES, Engine, load_rules, sweep
from aegis_parsers.causes.linear import linear
from aegis_parsers.causes.words import alternatives, word_of
from hypothesis import given, settings
from hypothesis import strategies as st

ENGINES: list[Engine] = ["re", "hyperscan"] if sweep() is not None else ["re"]
TIMEOUT = "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"

FAILURES = [
    (
        "network",
        "node-a:1:2 [3] transport/net_ib.cc:12 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<5> with status=12 opcode=1 vendor err 129",
    ),
    ("unknown", "node-a:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<43> with error 5, opcode 0, len 0, vendor err 244"),
    ("network", "node-a:1:2 [0] NCCL WARN NET/IB : Got async event : port error"),
    ("network", "mlx5_core 0000:9b:00.0: poll_health:831:(pid 0): device's health compromised - reached miss count"),
    ("unknown", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error"),
    ("storage", "nfs: server 10.0.0.1 not responding, still trying"),
    ("storage", "[  12.5] blk_update_request: I/O error, dev nvme0n1, sector 12345 op 0x0:(READ)"),
    ("host_oom", "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
    ("host_oom", "kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x"),
    ("gpu_hw", "NVRM: Xid (PCI:0000:db:00): 95, pid=1, Uncontained"),
    ("user_code", "NVRM: Xid (PCI:0000:db:00): 31, pid=13641, Ch 00000008, intr 00000000. MMU Fault"),
    ("unknown", "NVRM: Xid (PCI:0000:db:00): 45, pid=13641, Ch 00000008"),
    ("node_hw", "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: dc00004000010092"),
    ("cuda_oom", "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB"),
    ("cuda_oom", "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity)"),
    ("user_code", "(TrainWorker pid=123) AttributeError: 'NoneType' object has no attribute 'x'"),
    ("user_code", "ModuleNotFoundError: No module named 'model'"),
    ("software", "RuntimeError: CUDA error: misaligned address"),
    ("preemption", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 123 got signal: 15"),
    ("network", "RuntimeError: [1] is setting up NCCL communicator by key '0', but store->get('0') got error: Socket Timeout"),
    ("network", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:4321"),
    ("unknown", "RuntimeError: Timed out initializing process group in store based barrier on rank: 1"),
    ("unknown", "RuntimeError: DataLoader worker (pid(s) 123, 124) exited unexpectedly"),
    ("unknown", "terminate called after throwing an instance of 'c10::Error'"),
    ("unknown", "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    ("unknown", "srun: error: node-a: task 3: Killed"),
    ("node_hw", "srun: error: Node failure on node-a"),
    ("host_oom", "slurmstepd: error: Exceeded job memory limit"),
    ("unknown", "slurmstepd: error: *** JOB 12 ON node-a CANCELLED AT 2024-01-01T00:00:00 ***"),
    ("unknown", "EI0006: Getting socket times out."),
    ("network", "x NCCL WARN NET/IB: Got completion from peer 10.0.0.9<3> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129"),
    ("unknown", "x NCCL WARN NET/IB: Got completion from peer 10.0.0.9<3> with status=IBV_WC_WR_FLUSH_ERR(5) opcode=IBV_WC_SEND(0) vendor_err=244"),
    ("network", "socketStartConnect: Connect to 10.0.0.5<41000> failed : Software caused connection abort"),
    ("network", "mlx5_core 0000:9b:00.0: print_health_info:424:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:"),
    ("network", "RuntimeError: connect() timed out. Original timeout was 1800000 ms."),
    (
        "unknown",
        "[rank2]:[E521 ProcessGroupNCCL.cpp:1414] [PG 0 (default_pg) Rank 2] Received a dump signal due to a collective timeout from this rank",
    ),
    ("unknown", "torch.multiprocessing.spawn: [rank1]: RuntimeError: CUDA driver error: unknown error"),
    ("unknown", "  exitcode  : -9 (pid: 4711)"),
    ("unknown", "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task."),
    ("unknown", "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.corp'): Read timed out."),
    ("host_oom", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("host_oom", "srun: error: node-a: tasks 0-7: Out Of Memory"),
    ("host_oom", "kernel: Killed process 1012, UID 1000, (python) total-vm:25488kB, anon-rss:12004kB"),
    ("host_oom", "    Reason:       OOMKilled"),
    (
        "cuda_oom",
        "ResourceExhaustedError: OOM when allocating tensor with shape[8] on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    ),
    ("cuda_oom", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."),
    ("gpu_hw", "amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=12, emitted seq=14"),
    ("software", "ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory"),
    ("storage", "XFS (dm-0): Log I/O Error Detected. Shutting down filesystem"),
    ("storage", "LustreError: 166-1: MGC10.0.0.1@o2ib: Connection to MGS (at 10.0.0.1@o2ib) was lost"),
    ("unknown", "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}"),
    (
        "user_code",
        "torch.distributed.DistNetworkError: The server socket has failed to listen: -98, name: EADDRINUSE, message: address already in use",
    ),
    ("user_code", "2024-06-01T12:00:00.123456Z KeyError: 'x'"),
    ("user_code", "[1,0]<stderr>:KeyError: 'x'"),
    ("user_code", "worker-0  | KeyError: 'x'"),
    ("user_code", "\x1b[1;35mKeyError\x1b[0m: \x1b[35m'x'\x1b[0m"),
    ("user_code", "torch._dynamo.exc.Unsupported: call_function BuiltinVariable"),
    ("user_code", "ray.exceptions.RayTaskError(ValueError): ray::Train.fit() (pid=1)"),
    ("user_code", "StopIteration"),
    ("user_code", "TypeError: __init__() got an unexpected keyword argument 'ignored_modules'"),
    ("user_code", "train.py: error: unrecognized arguments: --foo"),
    ("user_code", "python3: can't open file '/app/train.py': [Errno 2] No such file or directory"),
    ("software", "CUDA error: an illegal memory access was encountered. Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."),
]
BENIGN = [
    "node-a:1:2 [0] NCCL INFO NET/Socket : Connection timed out, retrying",
    "mlx5_core 0000:05:00.0: mlx5_cmd_out_err:835:(pid 18360): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x9a6171)",
    "  error_file: <N/A>",
    " iteration 10/ 100 | grad norm: 1.2 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "pci 0000:01:00.0: 4.000 Gb/s available PCIe bandwidth, limited by 5.0 GT/s PCIe x1 link at 0000:00:1c.0 (capable of 8.000 Gb/s)",
    "[W TCPStore.cpp:115] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
    'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0',
    "# HELP node_edac_uncorrectable_errors_total Total uncorrectable memory errors.",
    "EDAC MC0: Giving out device to module skx_edac",
    "XFS (sda1): Ending clean mount",
    "Traceback (most recent call last):",
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node-a]:29500 (errno: 97 - Address family not supported by protocol).",
    "SystemExit: 0",
    "nvme nvme0: 63/0/0 default/read/poll queues",
    "amdgpu 0000:e3:00.0: amdgpu: RAS: ras initialized successfully, hardware ability[67f7f]",
    "node-a kernel: ib0: link becomes ready",
    "ProcessGroupNCCL initialization options: size: 8, global rank: 0, TIMEOUT(ms): 600000",
    "INFO: Watchdog thread started with a timeout of 600 s",
    "Setting up error handling: errors will be written to errors.html",
    "Node 3 restarted workers successfully, exit code 0",
    "retry after ConnectionError: retrying in 2 s",
    "torchvision/io/image.py:13: UserWarning: Failed to load image Python extension: 'undefined symbol: _ZN3c10'",
    "graph.py:744: UserWarning: Plan failed with a cudnnException: cudnnFinalizeDescriptor Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED",
    "skipped batches with non-finite loss: 0",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
]
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 10, in main', "    step()", ""]
DURING, DIRECT = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
OOM, KEY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", "KeyError: 'x'"
AWAY, BACK = "nfs: server 10.0.0.1 not responding, still trying", "[ 12.5] nfs: server 10.0.0.1 OK"
IN_CONTEXT = [
    ("cuda_oom", [KEY, "", DURING, "", *TRACEBACK, OOM]),
    ("cuda_oom", [OOM, "", DURING, "", *TRACEBACK, KEY]),
    ("user_code", [KEY, "", DURING, "", *TRACEBACK, "ValueError: y"]),
    ("unknown", ["ConnectionResetError: [Errno 104] Connection reset by peer", "", DIRECT, "", *TRACEBACK, "RuntimeError: no batch"]),
    (
        "unknown",
        [
            TIMEOUT,
            "Exception ignored in: <function Pool.__del__ at 0x7f>",
            *TRACEBACK[:3],
            "AttributeError: 'NoneType' object has no attribute 'put'",
        ],
    ),
    ("user_code", ["Exception ignored in: <function f>", *TRACEBACK[:3], "KeyError: 1", "step 5", *TRACEBACK[:3], "KeyError: 2"]),
    ("user_code", [AWAY, BACK, KEY]),
    ("unknown", [AWAY, BACK]),
    ("storage", [AWAY, BACK, AWAY]),
    ("storage", [AWAY, "nfs: server 10.0.0.2 OK"]),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_causes_of_collected_failure_lines_are_right_and_benign_lines_are_left_alone(shared: Path, engine: Engine) -> None:
    rows = [json.loads(line) for line in (shared / "log_lines.jsonl").read_text().splitlines()]
    named = {line.n: line for line in classify_lines([row["text"] for row in rows], engine)}
    failures = [(n, row) for n, row in enumerate(rows, 1) if not row["negative"]]
    right = sum(n in named and named[n].cause == row["cause"] for n, row in failures)
    assert right >= 0.95 * len(failures)
    assert not [named[n].text for n, row in enumerate(rows, 1) if row["negative"] and n in named]


def test_no_rule_is_for_a_single_line(shared: Path) -> None:
    rows = [json.loads(line) for line in (shared / "log_lines.jsonl").read_text().splitlines()]
    assert len(load_rules().patterns) < sum(not row["negative"] for row in rows)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("cause", "text"), FAILURES)
def test_a_failure_line_of_another_spelling_has_its_cause(engine: Engine, cause: str, text: str) -> None:
    assert [line.cause for line in classify_lines([text], engine)] == [cause]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", BENIGN)
def test_a_line_with_the_words_of_a_failure_and_none_is_left_alone(engine: Engine, text: str) -> None:
    assert classify_lines([text], engine) == []


@pytest.mark.skipif(len(ENGINES) < 2, reason="hyperscan is not installed")
@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from([text for _, text in FAILURES] + BENIGN), st.text(max_size=60)), max_size=12))
def test_both_engines_name_the_same_lines(lines: list[str]) -> None:
    assert classify_lines(lines, "re") == classify_lines(lines, "hyperscan")


@pytest.mark.parametrize("engine", ENGINES)
def test_lines_keep_their_number_among_many(engine: Engine) -> None:
    lines = ["step done"] * 45_000
    lines[30_001] = "OSError: [Errno 28] No space left on device"
    lines[0] = "x" * 3_000_000
    assert [(line.n, line.label) for line in classify_lines(lines, engine)] == [(30_002, "disk_full")]


def test_a_line_may_hold_anything() -> None:
    odd = ["", "\x00", "\ud800 KeyError", "a\nb", "İ" * 50 + " CUDA out of memory", "\x1b[31mKeyError: 'x'"]
    for engine in ENGINES:
        assert [(line.n, line.label) for line in classify_lines(odd, engine)] == [(5, "cuda_oom"), (6, "python_error")]


PLAIN = {row["label"]: row["re"] for row in tomllib.loads(resources.files("aegis_parsers.causes").joinpath("patterns.toml").read_text())["pattern"]}
LONG = 32_768
"""Characters: a pattern that costs the square of it takes seconds, the others milliseconds."""
FILLERS = (" ", "0", "x", ".", "(", "[", ":", "a.", "\\")


def literals(alternative: str) -> list[str]:
    """The words of an alternative, in order, without what is a sign of the dialect."""
    return re.findall(r"[A-Za-z][\w /:=(\[-]*", re.sub(r"\\[bdDsSwW]|\(\?[:i]|[?*+^$|)\]}]", "\0", alternative).replace("\\", ""))


def hostile(pattern: str) -> list[str]:
    """Long lines of a pattern's own words, over and over, in order and alone, with what a repetition may swallow between them and behind."""
    lines = []
    for alternative in alternatives(pattern.removeprefix("(?i)")):
        if not re.search(r"[*+}]", alternative):
            continue  # nothing in it repeats
        words = literals(alternative) or [alternative[:8]]
        units = [*words, " ".join(words), "".join(words[:-1]) or words[0], *(a + b for a, b in pairwise(words))]
        lines += [(unit * (1 + LONG // len(unit)))[:LONG] for unit in dict.fromkeys(units)]
        lines += [words[0] + filler * LONG for filler in FILLERS] + [(words[0] + filler) * (LONG // 8) for filler in FILLERS[:5]]
    return lines


@pytest.mark.parametrize("label", PLAIN)
def test_a_hostile_line_costs_a_pattern_time_by_its_length(label: str) -> None:
    pattern = next(pattern for pattern in load_rules().patterns if pattern.label == label)
    for line in hostile(PLAIN[label]):
        begin = time.process_time()
        pattern.hits(line)
        assert time.process_time() - begin < 1.0, f"{label}: {line[:60]!r} ..., {len(line)} characters"


def test_what_is_asked_of_whole_blocks_has_no_gap() -> None:
    assert not [regex.pattern for _, regex in load_rules().wordless if ".*" in regex.pattern]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(PLAIN)), st.data())
def test_a_pattern_in_one_way_names_the_same_lines(label: str, data: st.DataObject) -> None:
    words = [word for alternative in alternatives(PLAIN[label].removeprefix("(?i)")) for word in literals(alternative)]
    line = "".join(data.draw(st.lists(st.sampled_from([*words, " ", "\n", "7", ": ", "mlx5_0", "failed"]), max_size=8)))
    assert (re.search(linear(PLAIN[label]), line, re.ASCII) is None) == (re.search(PLAIN[label], line, re.ASCII) is None)


@pytest.mark.parametrize("pattern", ["x(?:a|b.*c)", "^a.*b"])
def test_a_gap_where_it_cannot_be_made_quick_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="a gap"):
        linear(pattern)


def test_every_row_is_complete() -> None:
    for pattern in load_rules().patterns:
        assert pattern.cause in (*CAUSES, "by_table"), pattern.label
        assert pattern.strength in ("strong", "weak", "symptom"), pattern.label
        assert pattern.source, pattern.label
        assert pattern.scope in ("kernel", "log"), pattern.label
        assert pattern.cause == "by_table" or (pattern.severity is not None) == (pattern.scope == "kernel"), pattern.label


def test_the_xid_table_says_who_decided_each_row() -> None:
    rules = kernel.rules()
    assert {79, 48, 63, 64, 74, 94, 95, 119, 120, 144, 154} <= set(rules)
    assert all(rule.action and rule.source in ("catalogue", "aws", "gpud", "reading") for rule in rules.values())
    assert all(rule.cause in CAUSES for rule in rules.values())


def test_an_unknown_xid_is_never_acted_upon() -> None:
    event = kernel.read_event("NVRM: Xid (PCI:0000:0f:00): 999, pid=1, whatever")
    assert event is not None
    assert (event.severity, event.cause) == ("info", "unknown")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"Got async (?:a|b) ?:.*x", ["got async "]),
        (r"ab|Driver/library (?:x|y)|\bE\d{4}: ", [None, "driver/library ", None]),
        (r"^(?:\[(?:rank)?\d+\]){0,3}Long[A-Z]\w*(?:Error|Exit)", ["long"]),
        (r"colou?r red", ["r red"]),
    ],
)
def test_a_word_is_one_that_every_match_holds(pattern: str, words: list[str | None]) -> None:
    assert [word_of(part) for part in alternatives(pattern)] == words


def test_a_collective_timeout_alone_has_no_cause() -> None:
    verdict = judge({"0": [TIMEOUT], "1": [TIMEOUT], "2": []})
    assert (verdict.cause, verdict.first_strong) == ("unknown", None)
    assert verdict.silent == ("2",)


def test_the_exception_of_one_rank_beats_the_timeouts_of_the_others() -> None:
    verdict = judge({"0": [TIMEOUT], "1": ["step", "KeyError: 'target'"], "2": [TIMEOUT]})
    assert verdict.cause == "user_code"
    assert verdict.first_strong is not None
    assert (verdict.first_strong.rank, verdict.first_strong.n) == ("1", 2)
    assert verdict.ranks == ("1",)


def test_the_earliest_strong_line_by_time_decides() -> None:
    late_gpu = "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus"
    verdict = judge({"0": ["2025-02-23 16:20:00,100 OSError: [Errno 28] No space left on device"], "node-1": [late_gpu]})
    assert verdict.cause == "storage"


def test_without_times_hardware_is_believed_before_an_exception() -> None:
    verdict = judge(
        {"0": ["RuntimeError: Boolean value of Tensor is ambiguous"], "1": ["RuntimeError: CUDA error: uncorrectable ECC error encountered"]}
    )
    assert verdict.cause == "gpu_hw"


def test_within_one_log_the_first_strong_line_decides() -> None:
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert report(["KeyError: 'x'", ecc])["cause"] == "user_code"
    assert report([ecc, "KeyError: 'x'"])["cause"] == "gpu_hw"


def test_a_log_in_blocks_gives_the_same_report_as_the_whole() -> None:
    lines = ["step", TIMEOUT, "KeyError: 'x'", "step", "OSError: [Errno 28] No space left on device"]
    for size in range(1, 6):
        assert report_blocks(lines[at : at + size] for at in range(0, 5, size)) == report(lines)


@pytest.mark.parametrize(("cause", "lines"), IN_CONTEXT)
def test_the_lines_around_say_whether_a_line_is_a_cause(cause: str, lines: list[str]) -> None:
    ranked = [f"[w1/r3 i2] {line}" if line else line for line in lines] if AWAY not in lines else lines
    assert (report(lines)["cause"], report(ranked)["cause"]) == (cause, cause)
    for size in range(1, len(lines)):
        assert report_blocks(lines[at : at + size] for at in range(0, len(lines), size)) == report(lines)


def test_a_broken_socket_is_an_echo_when_a_peer_was_killed() -> None:
    reset = "misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.0.0.2<58355> failed : Broken pipe"
    killed = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 3) of binary: /usr/bin/python"
    assert judge({"0": [reset], "1": [killed]}).cause == "unknown"
    assert judge({"0": [reset], "1": ["step 3"]}).cause == "network"


def test_a_report_is_plain_data_with_the_lines_that_say_something() -> None:
    assert report(["step 1", "KeyError: 'x'", TIMEOUT]) == {
        "cause": "user_code",
        "first_strong": {"n": 2, "text": "KeyError: 'x'", "label": "python_error", "cause": "user_code"},
        "lines": [
            {"n": 2, "text": "KeyError: 'x'", "label": "python_error", "cause": "user_code"},
            {"n": 3, "text": TIMEOUT, "label": "nccl_timeout", "cause": "unknown"},
        ],
    }
    assert report([]) == {"cause": "unknown", "first_strong": None, "lines": []}


def test_stamps_without_a_year_are_compared_with_those_that_have_one() -> None:
    xid = "Feb 23 16:24:18 node-a kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus"
    disk = "2025-02-23 16:20:00,100 OSError: [Errno 28] No space left on device"
    assert judge({"0": [disk], "node-a": [xid]}).cause == "storage"
    assert judge({"0": [disk.replace("16:20", "16:30")], "node-a": [xid]}).cause == "gpu_hw"
