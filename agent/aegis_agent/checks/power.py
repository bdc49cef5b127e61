"""Check `power`: power supplies and fans, as the board's controller tells (ipmitool, where it is and may be asked), and as the kernel does (hwmon).

Reads sysfs and what ipmitool prints; writes nothing. A machine that tells neither is not judged: most containers see none of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Any

from aegis_parsers import parse
from aegis_parsers.schema import Severity

from aegis_agent.checks import tool
from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.memory import number
from aegis_agent.checks.settings import Settings

DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
ASK = 20.0
"""Seconds a controller may take for all of its sensors."""
ALARM = re.compile(r"(?P<what>fan|power|in)(?P<n>\d+)_(?P<kind>alarm|fault|crit_alarm|lcrit_alarm)")


def board(answer: Answer, settings: Settings) -> int:
    """What ipmitool tells; how many sensors."""
    program = shutil.which("ipmitool")
    if program is None or not any(os.access(settings.under(name), os.R_OK | os.W_OK) for name in DEVICES):
        return 0
    try:
        done = tool.ask([program, "sdr", "elist"], ASK)
    except (OSError, subprocess.TimeoutExpired) as error:
        answer.finding("bmc_silent", "warning", "node", f"the board's controller does not answer: {type(error).__name__}")
        return 0
    told = parse("ipmitool", done.stdout.decode(errors="replace"))
    for finding in told.findings:
        answer.take(finding)
    if done.returncode != 0 and not told.items:
        answer.finding("bmc_silent", "warning", "node", (done.stderr.decode(errors="replace") or "no sensors").strip())
    return len(told.items)


def kernel(answer: Answer, settings: Settings) -> int:
    """What the kernel's sensors tell; how many fans."""
    root = settings.under("sys/class/hwmon")
    fans = 0
    try:
        chips = sorted(os.listdir(root))
    except OSError:
        return 0
    for chip in chips:
        folder = f"{root}/{chip}"
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if match := ALARM.fullmatch(name):
                if number(f"{folder}/{name}"):
                    fan = match["what"] == "fan"
                    grade: Severity = "critical" if fan else "warning"
                    answer.finding("fan_failed" if fan else "power_alarm", grade, f"{chip} {match['what']}{match['n']}", f"{name} is set")
            elif re.fullmatch(r"fan\d+_input", name):
                fans += 1
                least = number(f"{folder}/{name.replace('_input', '_min')}")
                if number(f"{folder}/{name}") == 0 and least:
                    answer.finding("fan_failed", "critical", f"{chip} {name.removesuffix('_input')}", f"0 RPM, at least {least}")
    return fans


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    sensors, fans = board(answer, settings), kernel(answer, settings)
    answer.values |= {"sensors": float(sensors), "fans": float(fans)}
    return f"{sensors} sensors of the board, {fans} fans of the kernel" if sensors or fans else "not applicable: no sensor can be read here"


if __name__ == "__main__":
    run("power", examine)
