"""Why a run ended, from its exit and its last words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from aegis_agent.reasons import ending, error_file_message, exception_line, missing_in_shell, not_found_message, rank_in
from aegis_proto.phases import LostReason

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 120, in <module>',
    "    main()",
    '  File "/app/train.py", line 88, in main',
    "    raise ValueError('loss is NaN')",
    "ValueError: loss is NaN",
]


def test_the_message_is_the_exception_and_its_place() -> None:
    assert exception_line(TRACEBACK) == "ValueError: loss is NaN (train.py:88)"
    assert exception_line(["[rank1]: " + line for line in TRACEBACK]) == "ValueError: loss is NaN (train.py:88)"
    assert exception_line([*TRACEBACK, "wandb: waiting for upload"]) == "ValueError: loss is NaN (train.py:88)"


def test_a_dotted_exception_without_text() -> None:
    assert exception_line(['  File "a/b.py", line 3, in f', "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried"]).endswith("Tried (b.py:3)")
    assert exception_line(["KeyboardInterrupt"]) == "KeyboardInterrupt"
    assert exception_line(["loss 2.3", "done"]) == ""


LIBRARY = [
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 120, in <module>',
    "    main()",
    '  File "/home/ann/models/net.py", line 31, in forward',
    "    return self.linear(x)",
    '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1511, in _wrapped_call_impl',
    "    return self._call_impl(*args, **kwargs)",
    '  File "/usr/lib/python3/dist-packages/numpy/core.py", line 7, in dot',
    '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode',
    "    raise JSONDecodeError",
    '  File "<frozen importlib._bootstrap>", line 1204, in _gcd_import',
]


def test_the_place_is_the_innermost_frame_of_the_users_own_code() -> None:
    assert exception_line([*LIBRARY, "RuntimeError: shapes cannot be multiplied"]) == "RuntimeError: shapes cannot be multiplied (net.py:31)"
    assert exception_line([f"[rank3]: {line}" for line in [*LIBRARY, "RuntimeError: x"]]) == "RuntimeError: x (net.py:31)"
    assert (
        exception_line(['  File "/venv/lib/python3.11/site-packages/tool/__main__.py", line 5, in main', "OSError: x"])
        == "OSError: x (__main__.py:5)"
    )
    assert exception_line(['  File "<string>", line 1, in <module>', "KeyError: 'x'"]) == "KeyError: 'x' (<string>:1)"


def test_the_place_of_a_long_message_stands_before_its_text() -> None:
    text = "mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10), as they were after the change of the last layer but one"
    assert exception_line([*LIBRARY, f"RuntimeError: {text}"]) == f"RuntimeError (net.py:31): {text}"


def test_of_chained_exceptions_the_last_one_gives_the_place() -> None:
    first = [line.replace("net.py", "other.py") for line in LIBRARY]
    chained = [*first, "KeyError: 'a'", "", "During handling of the above exception, another exception occurred:", "", *TRACEBACK]
    assert exception_line(chained) == "ValueError: loss is NaN (train.py:88)"


def test_an_exception_of_any_name_is_found_at_the_end_of_its_traceback() -> None:
    assert exception_line([*TRACEBACK[:-1], "models.Diverged: loss 9e9"]) == "models.Diverged: loss 9e9 (train.py:88)"
    assert exception_line([*TRACEBACK[:-1], "Diverged"]) == "Diverged (train.py:88)"
    assert exception_line(["  indented output", "done: all good"]) == ""


def test_the_rank_is_named() -> None:
    assert ending(1, TRACEBACK, 100.0, rank=3).message == "rank 3: ValueError: loss is NaN (train.py:88)"
    assert ending(-9, [], 100.0, rank=3).message == "rank 3: killed by SIGKILL"
    assert ending(1, TRACEBACK, 100.0).message == "ValueError: loss is NaN (train.py:88)"
    assert len(ending(1, ["ValueError: " + "x" * 1000], 1.0, rank=1023).message) <= 500
    assert rank_in(["[rank3]: " + line for line in TRACEBACK]) == 3
    assert rank_in(TRACEBACK) == -1


def test_only_the_last_lines_decide_what_kind_of_end_it_was() -> None:
    assert ending(1, [GLOO, *["step"] * 60, *TRACEBACK], 100.0).reason is LostReason.ERROR
    assert ending(1, [*["step"] * 60, GLOO], 100.0).reason is LostReason.COLLATERAL


GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:41234"
NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error, ncclRemoteError"


@pytest.mark.parametrize(
    ("code", "line", "ran", "reason"),
    [
        (1, "ValueError: loss is NaN", 100.0, LostReason.ERROR),
        (-9, "", 100.0, LostReason.SIGNAL),
        (-11, GLOO, 100.0, LostReason.SIGNAL),  # a crash is no victim's end
        (1, GLOO, 100.0, LostReason.COLLATERAL),
        (1, NCCL, 100.0, LostReason.COLLATERAL),
        (-6, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", 100.0, LostReason.COLLATERAL),
        (1, "torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE", 5.0, LostReason.PORT),
        (1, "OSError: [Errno 98] Address already in use", 29.0, LostReason.PORT),
        (1, "OSError: [Errno 98] Address already in use", 31.0, LostReason.ERROR),
        (1, "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms", 100.0, LostReason.COLLATERAL),
    ],
)
def test_reasons(code: int, line: str, ran: float, reason: LostReason) -> None:
    assert ending(code, [line], ran).reason is reason


def test_codes_are_those_a_shell_shows() -> None:
    assert [(ending(code, [], 1.0).code, ending(code, [], 1.0).signal) for code in (3, -9, -15)] == [(3, 0), (137, 9), (143, 15)]


def test_a_preempted_run_says_so() -> None:
    assert ending(-15, [], 1.0, preempted=True).reason is LostReason.PREEMPTED


def test_what_a_tenant_printed_is_shown_without_control_characters() -> None:
    message = ending(1, ["\x1b[31mred\x07 alert\x1b[0m"], 1.0).message
    assert message.isprintable() and "red" in message


def test_messages_are_bounded() -> None:
    assert len(ending(1, ["ValueError: " + "x" * 100_000], 1.0).message) <= 500


def test_torchs_error_file_is_believed_first() -> None:
    text = json.dumps({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "\n".join(TRACEBACK), "timestamp": "1"}}})
    assert error_file_message(text) == "ValueError: loss is NaN (train.py:88)"
    assert error_file_message(json.dumps({"message": "SignalException: 11"})) == "SignalException: 11"
    assert error_file_message("{") == error_file_message("[]") == error_file_message("{}") == ""


def test_a_command_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\n")
    os.chmod(program, 0o755)
    message = not_found_message("w0", "cn-114", "pyhton", 127, {"PATH": str(tmp_path)})
    assert message == 'E111 w0 on cn-114: "pyhton" not found in PATH (exit 127). Not counted, not retried. Did you mean python?'
    assert "Did you mean" not in not_found_message("w0", "", "zzzz", 127, {"PATH": str(tmp_path)})
    assert "cannot be executed (exit 126" in not_found_message("w0", "", "./x", 126, {"PATH": ""})


@pytest.mark.parametrize(
    "line", ["sh: 1: pyhton: not found", "bash: line 1: pyhton: command not found", "/bin/sh: pyhton: not found", "bash: pyhton: command not found"]
)
def test_the_complaint_of_a_shell_is_read(line: str) -> None:
    assert missing_in_shell([line]) == "pyhton"
