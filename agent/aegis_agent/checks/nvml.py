"""NVIDIA GPUs through NVML's own bindings (nvidia-ml-py, optional).

Each value by itself: what a board does not have is None, what it cannot tell is unread. Reads only. Runs inside the check's process: a driver that
hangs takes nobody along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

GONE = {
    "NVML_ERROR_GPU_IS_LOST": ("gpu_lost", "fatal"),
    "NVML_ERROR_RESET_REQUIRED": ("gpu_requires_reset", "critical"),
    "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED": ("gpu_requires_reset", "critical"),
    "NVML_ERROR_IRQ_ISSUE": ("gpu_unreachable", "critical"),
    "NVML_ERROR_CORRUPTED_INFOROM": ("inforom_corrupted", "warning"),
    "NVML_ERROR_DRIVER_NOT_LOADED": ("driver_not_loaded", "fatal"),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": ("driver_library_mismatch", "critical"),
    "NVML_ERROR_LIBRARY_NOT_FOUND": ("nvml_missing", "critical"),
    "NVML_ERROR_INSUFFICIENT_POWER": ("gpu_unreachable", "critical"),
    "NVML_ERROR_GPU_NOT_FOUND": ("no_gpu_found", "fatal"),
}
"""NVML's errors -> code and severity (names: nvml.h). leptonai/gpud#604: a text that is not known is not health; every other error is unread."""
ABSENT = {"NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_INVALID_ARGUMENT", "NVML_ERROR_ARGUMENT_VERSION_MISMATCH"}
"""The board, or this driver, does not have the value: normal."""
ESSENTIAL = {"handle", "PCI address", "temperature", "ECC", "remapped rows"}
"""What a GPU that is well always tells. "Unknown error" elsewhere is usual in virtual machines (the host's side of PCIe): noted, no more."""
MOST_LINKS = 18
"""NVLinks of a board at most (nvml.h, NVML_NVLINK_MAX_LINKS)."""


@dataclass
class Board:
    """One GPU. `lost`: (code, severity, text) when it does not answer; None in a field: the board does not have it."""

    index: int
    bus: str = ""
    uuid: str = ""
    name: str = ""
    lost: tuple[str, str, str] | None = None
    temperature: int | None = None
    slowdown_at: int | None = None
    margin: int | None = None
    uncorrected: int | None = None
    remapped: tuple[int, int, int, int] | None = None  # corrected, uncorrected, pending, failed
    retired: int | None = None
    retired_pending: int | None = None
    reasons: int | None = None
    width: tuple[int, int] | None = None  # now, possible
    generation: tuple[int, int] | None = None
    utilization: int | None = None
    links: dict[int, bool] = field(default_factory=dict)
    processes: tuple[int, ...] | None = None
    unread: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


@dataclass
class Survey:
    """`failed`: (code, severity, text) when NVML itself does not start. `missing`: the bindings are not installed."""

    boards: list[Board] = field(default_factory=list)
    driver: str = ""
    failed: tuple[str, str, str] | None = None
    missing: bool = False


def survey() -> Survey:
    try:
        import pynvml
    except ImportError:
        return Survey(missing=True)
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        name = error_name(pynvml, error)
        code, severity = GONE.get(name, ("nvml_init_failed", "critical"))
        return Survey(failed=(code, severity, f"{name}: {error}"))
    found = Survey()
    driver = ask(pynvml, pynvml.nvmlSystemGetDriverVersion)
    found.driver = driver if isinstance(driver, str) else ""
    found.boards = [read_board(pynvml, index) for index in range(count)]
    return found


def error_name(pynvml: Any, error: Any) -> str:
    """ "NVML_ERROR_GPU_IS_LOST" of an error."""
    number = int(getattr(error, "value", -1))
    return next((name for name in dir(pynvml) if name.startswith("NVML_ERROR_") and getattr(pynvml, name) == number), f"NVML error {number}")


@dataclass(frozen=True)
class Failure:
    name: str
    text: str


def ask(pynvml: Any, question: Callable[[], Any]) -> Any:
    """The answer, or a Failure."""
    try:
        return question()
    except pynvml.NVMLError as error:
        return Failure(error_name(pynvml, error), str(error))
    except pynvml.NVMLLibraryMismatchError as error:  # a driver older than the bindings lacks this function
        return Failure("NVML_ERROR_FUNCTION_NOT_FOUND", str(error))
    except (ValueError, MemoryError) as error:  # a name that is no text, more entries than there can be
        return Failure("not understood", str(error) or type(error).__name__)


def read_board(pynvml: Any, index: int) -> Board:
    board = Board(index)

    def get(what: str, question: Callable[[], Any]) -> Any:
        if board.lost is not None and board.lost[1] != "warning":
            return None
        answer = ask(pynvml, question)
        if not isinstance(answer, Failure):
            return answer
        if answer.name in GONE:
            board.lost = (*GONE[answer.name], f"{what}: {answer.text}")
        elif answer.name not in ABSENT:
            if what in ESSENTIAL and answer.name != "NVML_ERROR_NO_PERMISSION":
                board.unread.append(f"{what}: {answer.text}")
            else:
                board.hidden.append(what)
        return None

    handle = get("handle", lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return board
    pci = get("PCI address", lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    bus = pci.busId if pci is not None else ""
    board.bus = (bus.decode() if isinstance(bus, bytes) else bus).lower()
    board.uuid = get("UUID", lambda: pynvml.nvmlDeviceGetUUID(handle)) or ""
    board.name = get("name", lambda: pynvml.nvmlDeviceGetName(handle)) or ""
    board.temperature = get("temperature", lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    board.slowdown_at = get(
        "slowdown temperature", lambda: pynvml.nvmlDeviceGetTemperatureThreshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    )
    board.margin = get("temperature margin", lambda: pynvml.nvmlDeviceGetMarginTemperature(handle))
    board.uncorrected = get(
        "ECC", lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    )
    rows = get("remapped rows", lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    board.remapped = tuple(rows) if rows is not None else None
    pages = [
        get("retired pages", partial(retired_pages, pynvml, handle, cause))
        for cause in (pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    ]
    board.retired = sum(n for n in pages if n is not None) if any(n is not None for n in pages) else None
    board.retired_pending = get("retirement pending", lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    board.reasons = get("clock reasons", lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    board.width = both(
        get("PCIe width", lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        get("PCIe width", lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
    )
    board.generation = both(
        get("PCIe generation", lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        get("PCIe generation", lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
    )
    busy = get("utilization", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    board.utilization = busy.gpu if busy is not None else None
    for link in range(MOST_LINKS):
        state = get(f"NVLink {link}", partial(pynvml.nvmlDeviceGetNvLinkState, handle, link))
        if state is None:
            break
        board.links[link] = bool(state)
    running = get("processes", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    if running is None:  # drivers before 510
        running = get("processes", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle))
    board.processes = tuple(int(process.pid) for process in running) if running is not None else None
    return board


def retired_pages(pynvml: Any, handle: Any, cause: int) -> int:
    return len(pynvml.nvmlDeviceGetRetiredPages(handle, cause))


def both(now: int | None, most: int | None) -> tuple[int, int] | None:
    return (now, most) if now is not None and most is not None else None
