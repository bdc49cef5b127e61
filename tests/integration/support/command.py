"""An ordinary command without torch, for tests of the stack: it starts in milliseconds and does what control files in its working folder say.

    finish                      every rank exits 0
    raise-<pod>-<incarnation>   that worker raises
    exit-<pod>-<incarnation>    that worker exits with the number in the file

It writes run-<pod>-<incarnation>-<pid> at its start: what ran, when, and with which rank variables.
"""

import json
import os
import sys
import time
from pathlib import Path

pod, incarnation = os.environ.get("AEGIS_POD", "plain"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "plain")
here = Path.cwd()
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
record = {name: os.environ.get(name, "") for name in names} | {"secrets": [k for k in os.environ if "TOKEN" in k or "SEED" in k], "at": time.time()}
part = here / f".run-{pod}-{incarnation}-{os.getpid()}"
part.write_text(json.dumps(record))
part.replace(here / f"run-{pod}-{incarnation}-{os.getpid()}")
while True:
    if (here / "finish").exists():
        sys.exit(0)
    if (here / f"raise-{pod}-{incarnation}").exists():
        raise ValueError("as asked by the test")
    ask = here / f"exit-{pod}-{incarnation}"
    if ask.exists() and (code := ask.read_text()):  # the test may just be writing it
        sys.exit(int(code))
    time.sleep(0.02)
