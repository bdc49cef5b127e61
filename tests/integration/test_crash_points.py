"""kill -9 of a service at every named point between "report received" and "effect done": the story and the counts come out the same.

One job per point: 2 workers, w1 raises in its first run, w0's agent is killed in its second, then it ends. The service dies at the point, by its own
hand, and is started anew without it. What is compared: phases entered, retries, recoverCount, incarnations, and how often each run was started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from aegis_agent.daemon.crashpoints import CRASHPOINTS as DAEMON
from aegis_jobcontroller.crashpoints import CRASHPOINTS as CONTROLLER
from aegis_master.crashpoints import POINTS as MASTER
from harness.waiting import until
from support.house import Child, House, house, phases, retries

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]
ELSEWHERE = {
    "master.dlq-before": "needs a malformed report: shown with simulated agents",
    "master.dlq-after": "the same",
    "master.takeover-before-cas": "needs a second replica: shown with simulated agents",
    "master.takeover-after-cas": "the same",
    "master.deadline-before-commit": "needs a deadline to pass: shown with simulated agents",
    "master.death-before-commit": "needs a judged death: shown with simulated agents",
    "master.submit-before-create": "the client sees it: shown with simulated agents",
    "master.submit-after-create": "the same",
    "master.api-before-fact": "the same",
    "master.api-after-fact": "the same",
    "master.release-before-cas": "needs SIGTERM: shown with simulated agents",
    "master.release-after-cas": "the same",
    "jobcontroller.before-release": "after the end of the job, when the story is over: shown in the tests of the job controller",
    "jobcontroller.after-release": "the same",
}
"""Points this story does not pass, and where they are tried."""
CASES = [
    *(("m1", point) for point in MASTER if point not in ELSEWHERE),
    *(("jc1", point) for point in CONTROLLER if point not in ELSEWHERE),
    *(("n1", point) for point in DAEMON),
]
WANTED = (
    ["Pending", "BootChecking", "RunCommand", "Troubleshooting", "RunCommand", "Restarting", "Troubleshooting", "RunCommand", "Succeed"],
    "2:2",
    2,
    2,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_at_least_twelve_points_are_tried_here() -> None:
    assert len(CASES) >= 12


async def again(child: Child, times: list[int]) -> None:
    """Start a service anew whenever it ends, without the crash point."""
    while True:
        code = await child.ended(3600)
        times.append(code)
        await child.start({"AEGIS_CRASH_AT": ""})


async def one_story(h: House, name: str, folder: Path) -> tuple[tuple[list[str], str, int, int], list[int], str]:
    folder.mkdir()
    job = await h.submit(COMMAND, name=name, workers=2, maxRetry=3, cwd=str(folder), placingTimeout=120.0, roundTimeout=60.0)

    async def runs(incarnation: int) -> None:
        def told() -> str:
            return "\n".join([f"{name}: run {incarnation}", *(f"{child.name}: {child.log.read_text()[-1500:]}" for child in h.children.values())])

        await until(lambda: len({p.name.split("-")[1] for p in folder.glob(f"run-w*-{incarnation}-*")}) == 2, 60, told)

    await runs(0)
    (folder / "raise-w1-0").touch()
    await runs(1)
    os.kill(await h.agent_pid(job, "w0"), signal.SIGKILL)
    await runs(2)
    (folder / "finish").touch()
    state = await h.ended(job, 90)
    starts = [len(list(folder.glob(f"run-w{w}-{i}-*"))) for i in range(4) for w in range(2)]
    return (phases(await h.story(job)), retries(state), state.head.recoverCount, state.head.incarnation), starts, await h.describe(job)


@pytest.mark.parametrize("service", ["m1", "jc1", "n1"])
async def test_the_story_is_the_same_whoever_dies_where(tmp_path: Path, service: str) -> None:
    failures = []
    async with house(tmp_path, nodes=2) as h:
        child = h.children[service]
        deaths: list[int] = []
        keeper = asyncio.create_task(again(child, deaths))
        try:
            for n, (_, point) in enumerate(case for case in CASES if case[0] == service):
                # the crash point is armed by a restart; where it is passed more than once, the third time is in the middle of the story
                for times in (1, 3):
                    before = len(deaths)
                    keeper.cancel()
                    await child.kill9()
                    await child.start({"AEGIS_CRASH_AT": f"{point}:{times}"})
                    keeper = asyncio.create_task(again(child, deaths))
                    result, starts, text = await one_story(h, f"c{n}-{times}", tmp_path / f"case-{n}-{times}")
                    died = deaths[before:]
                    if result != WANTED:
                        failures.append(f"{point}:{times}: {result}\n{text}")
                    if died and died[0] != -signal.SIGKILL:
                        failures.append(f"{point}:{times}: the service left with {died}")
                    if not died and times == 1:
                        failures.append(f"{point}: was never passed")
                    if starts != [1, 1, 1, 1, 1, 1, 0, 0]:
                        failures.append(f"{point}:{times}: runs started {starts}")
        finally:
            keeper.cancel()
    assert not failures, "\n".join(failures)
