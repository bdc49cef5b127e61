"""`main` of one deep test: told {"test", "seconds", "kind"} on stdin, says one answer as every check does."""

from __future__ import annotations

import json
import sys

from .work import Broken, run


def main() -> None:
    told = json.loads(sys.stdin.readline())
    print(json.dumps(answer(told["test"], float(told["seconds"]), told["kind"])), flush=True)


def answer(test: str, seconds: float, kind: str) -> dict[str, object]:
    try:
        values = run(test, seconds, kind)
    except Broken as error:
        return {"pass": False, "result": str(error), "code": error.code, "values": {}}
    except ImportError as error:
        return {"pass": True, "result": f"not applicable: {error}", "code": "", "values": {}}
    if kind == "cpu":
        values["host"] = 1.0
    said = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "host")
    return {"pass": True, "result": said, "code": "", "values": values}
