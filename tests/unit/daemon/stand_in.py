"""A tiny agent for tests of the daemon: `stand_in.py --slot-file FILE`. Runs the command of the task in its scope, and ends as that did.

Environment of the job: STARTS names a file that gets one line per start; NO_WORD keeps it from writing a last word; DEAF makes it ignore SIGTERM.
"""

import json
import os
import signal
import subprocess
import sys
import time

path = sys.argv[sys.argv.index("--slot-file") + 1]
with open(path) as file:
    task = json.load(file)
os.unlink(path)
spec = task["spec"]
env = spec.get("env", {})
who = {"uid": task["uid"], "pod": task.get("pod", "w0"), "attempt": task.get("attempt", 1)}
if "STARTS" in env:
    with open(env["STARTS"], "a") as file:
        file.write(f"{who['uid']} {who['pod']} {who['attempt']} {os.getpid()}\n")
child: subprocess.Popen[bytes] | None = None
asked: list[int] = []


def stop(number: int, _: object) -> None:
    """Pass SIGTERM on. It may come while the child is being started: it lives before Popen returns."""
    asked.append(number)
    if child is not None:
        child.terminate()


signal.signal(signal.SIGTERM, signal.SIG_IGN if "DEAF" in env else stop)
scope = f"{who['uid']}.{who['pod']}.{who['attempt']}.0"
child = subprocess.Popen(spec["command"], env={**os.environ, **env, "AEGIS_SCOPE": scope}, start_new_session=True)
if asked:
    child.terminate()
if env.get("PLAIN"):
    with open(os.path.join(task["stateDir"], "status.json"), "w") as file:
        json.dump({"pid": os.getpid(), "boot": "b", **who, "plain": True}, file)
code = child.wait()
while "DEAF" in env:
    time.sleep(1)
code = 128 - code if code < 0 else code
if "NO_WORD" not in env:
    word = {"code": code, "reason": "error" if code else "finished", "message": f"ended with {code}", **who}
    with open(os.path.join(task["stateDir"], ".exit"), "w") as file:
        json.dump(word, file)
    os.rename(os.path.join(task["stateDir"], ".exit"), os.path.join(task["stateDir"], "exit.json"))
sys.exit(code)
