"""Why a run ended, from its exit and its last words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from aegis_agent.reasons import ending, error_file_message, exception_line, missing_in_shell, not_found_message
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
