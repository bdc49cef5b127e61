"""Machines with GPUs that are none: NVML compiled from our own source, what it tells in a file per machine, and a kernel log per machine."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "unit" / "checks" / "fake_nvml.c"


def build(folder: Path) -> Path:
    """The folder of a libnvidia-ml.so.1 that NVIDIA's bindings load."""
    cc = shutil.which("cc")
    assert cc is not None
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([cc, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], check=True)
    return folder


@dataclass(frozen=True)
class Machine:
    """Two GPUs. `env` is what the machine's daemon is started with."""

    folder: Path
    library: Path
    name: str

    @property
    def env(self) -> dict[str, str]:
        self.kernel.touch()
        self.facts.touch()
        return {
            "LD_LIBRARY_PATH": str(self.library),
            "FAKE_NVML_FILE": str(self.facts),
            "AEGIS_CHECKS_EXPECTED_GPUS": "2",
            "AEGIS_CHECKS_KERNEL_LOG": str(self.kernel),
        }

    @property
    def facts(self) -> Path:
        return self.folder / f"nvml-{self.name}"

    @property
    def kernel(self) -> Path:
        return self.folder / f"kmsg-{self.name}"

    def tells(self, facts: str) -> None:
        """What NVML says from now on, as "1.lost=1"; "" = all is well."""
        part = self.facts.with_suffix(".part")
        part.write_text(facts)
        part.replace(self.facts)

    def kernel_says(self, text: str) -> None:
        with self.kernel.open("a") as log:
            log.write(f"4,{time.monotonic_ns()},{time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000},-;{text}\n")
