"""The hooks that are shipped for slurm.conf, on a real Slurm: a node that fails its checks is drained with the finding."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.waiting import until_sync
from support.slurm import Slurm, cluster

HOOKS = Path(__file__).parents[2] / "deploy" / "slurm"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SETTINGS = """
PATH={bin}:$PATH
SLURM_CONF={folder}/slurm/etc/slurm.conf
PYTHONPATH={path}
AEGIS_AGENT="{python} -m aegis_agent"
AEGIS_PROLOG="check run gpu"
AEGIS_EPILOG="check run gpu"
AEGIS_HEALTH="check run gpu"
# A file makes one hook of one node find too few GPUs.
if [ -e {folder}/sick-$HOOK-$SLURMD_NODENAME ]; then AEGIS_CHECKS_EXPECTED_GPUS=8; fi
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Slurm, Path]]:
    folder = tmp_path_factory.mktemp("hooks")
    folder.chmod(0o755)
    settings = folder / "settings"
    values = {"bin": Path(sys.executable).parent, "folder": folder, "python": sys.executable, "path": os.pathsep.join(filter(None, sys.path))}
    settings.write_text(SETTINGS.format(**values))
    hooks = {}
    for key, name in (("Prolog", "prolog"), ("Epilog", "epilog"), ("HealthCheckProgram", "health"), ("EpilogSlurmctld", "epilogslurmctld")):
        hooks[key] = str(folder / f"{name}.sh")
        Path(hooks[key]).write_text(f"#!/bin/sh\nexport AEGIS_HOOKS_ENV={settings} HOOK={name}\nexec {HOOKS}/{name}.sh\n")
        Path(hooks[key]).chmod(0o755)
    more = {"HealthCheckInterval": "5", "HealthCheckNodeState": "ANY", "RequeueExit": "75", "RequeueExitHold": "76"}
    with cluster(folder / "slurm", nodes=3, **hooks, **more) as running:
        yield running, folder


def drained(slurm: Slurm, node: str, hook: str, timeout: float = 180) -> None:
    until_sync(lambda: "DRAIN" in slurm.show("node", node)["State"], timeout, f"{node} drained")
    assert slurm.show("node", node)["Reason"].startswith(f"aegis {hook}: gpu: "), slurm.show("node", node)


def test_a_node_that_fails_its_health_check_is_drained_and_stays_so(site: tuple[Slurm, Path]) -> None:
    slurm, folder = site
    mark = folder / "sick-health-cn-2"
    mark.touch()
    drained(slurm, "cn-2", "health")
    mark.unlink()
    three = slurm.submit("#!/bin/bash\n#SBATCH --nodes=3\ntrue\n", folder / "three")
    until_sync(lambda: "DRAINED" in slurm.show("job", three).get("Reason", "").upper(), 30, f"{slurm.show('job', three)}")
    slurm.run("scontrol", "update", "NodeName=cn-2", "State=RESUME")
    assert slurm.ended(three)["JobState"] == "COMPLETED"


def test_no_job_begins_on_a_node_that_fails_its_prolog_and_the_job_is_not_held(site: tuple[Slurm, Path]) -> None:
    slurm, folder = site
    mark = folder / "sick-prolog-cn-1"
    mark.touch()
    job = slurm.submit("#!/bin/bash\n#SBATCH --nodelist=cn-1\ntouch began\n", folder / "prolog")
    drained(slurm, "cn-1", "prolog")
    until_sync(lambda: slurm.state(job) == "PENDING", 30, "back in the queue")
    assert not (folder / "prolog" / "began").exists() and slurm.show("job", job)["Priority"] != "0"
    slurm.run("scancel", job)
    mark.unlink()
    slurm.run("scontrol", "update", "NodeName=cn-1", "State=RESUME")


def test_a_node_that_fails_after_a_job_is_drained_and_the_job_is_none_the_worse(site: tuple[Slurm, Path]) -> None:
    slurm, folder = site
    mark = folder / "sick-epilog-cn-3"
    mark.touch()
    job = slurm.submit("#!/bin/bash\n#SBATCH --nodelist=cn-3\ntrue\n", folder / "epilog")
    assert slurm.ended(job)["ExitCode"] == "0:0"
    drained(slurm, "cn-3", "epilog")
    mark.unlink()
    slurm.run("scontrol", "update", "NodeName=cn-3", "State=RESUME")


def test_a_job_that_asks_for_another_start_by_its_code_does_not_wait_two_minutes(site: tuple[Slurm, Path]) -> None:
    """Several, one after another: one that starts in the second in which it was ended is refused by its node, and that is a matter of luck."""
    slurm, folder = site
    for n in range(4):
        job = slurm.submit('#!/bin/bash\n[ "$SLURM_RESTART_COUNT" ] && exit 0\nexit 75\n', folder / f"again-{n}")
        ended = slurm.ended(job, 110)
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), (n, ended)
