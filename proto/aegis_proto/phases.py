"""The words of the phase machine: job phases, order phases, message types, reasons.

Owns the vocabulary only; what follows from what is decided in `aegis_master.machine`.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Phase of a job, and of each pod (`innerPhase`). Names of the seed."""

    PENDING = "Pending"
    BOOT_CHECKING = "BootChecking"
    RUN_COMMAND = "RunCommand"
    RESTARTING = "Restarting"
    TROUBLESHOOTING = "Troubleshooting"
    SUCCEED = "Succeed"
    FAILED = "Failed"

    @property
    def terminal(self) -> bool:
        return self is Phase.SUCCEED or self is Phase.FAILED

    @property
    def is_round(self) -> bool:
        """Entering one of these is a new order round: seqNum + 1, finished := false for all."""
        return self in (Phase.BOOT_CHECKING, Phase.RUN_COMMAND, Phase.TROUBLESHOOTING)


class OrderPhase(StrEnum):
    """What an order asks of a worker (`phase` of the wire message)."""

    WAIT = "wait"  # subscribe and wait; a running child keeps running
    BOOTCHECK = "bootcheck"  # check the node before the first run
    COMMAND = "command"  # run the user's command
    TROUBLESHOOT = "troubleshoot"  # stop the child, verify its tree is gone, run the checks
    STOP = "stop"  # stop the child and wait (a place is empty)
    HANG = "hang"  # take evidence, keep the child
    HANG_WITH_QUIT = "hangWithQuit"  # this pod leaves (its child stopped), exit code 1
    QUIT = "quit"  # the job has ended: stop the child, leave
    PLAIN = "plain"  # give up Aegis: run the command as a plain job


class MessageType(StrEnum):
    ACK = "ACK"
    ORDER = "Order"
    ERROR = "Error"
    FINISH = "Finish"


class ReportKind(StrEnum):
    """Last token of `aegis.job.<j>.worker.<pod>.<kind>`. Enumerated in the rights of an agent."""

    PENDING = "pending"
    ACK = "ack"
    CHECK = "check"
    ERROR = "error"
    FINISH = "finish"
    HANG = "hang"
    STOPPED = "stopped"


class FactKind(StrEnum):
    """`kind` of a message on `aegis.job.<j>.fact.<pod>`: what the platform or an authorised person says. Not agent-writable."""

    PLACED = "placed"  # place and slot are recorded
    RUNNING = "running"  # the platform confirms that the agent's process runs
    GONE = "gone"  # the agent's process and every process of its scope are gone (code, signal)
    NODE_SILENT = "nodeSilent"  # the platform cannot confirm "running"
    NODE_LOST = "nodeLost"  # the machine is off or its processes cannot run (operator, power, scheduler)
    PLAIN = "plain"  # the agent runs the command without Aegis
    STOP = "stop"
    SUSPEND = "suspend"
    RESUME = "resume"
    RESTART = "restart"
    SET = "set"
    INJECT = "inject"
    VERDICT = "verdict"
    CHECKPOINT = "checkpoint"  # a complete checkpoint exists at `step`


class Mode(StrEnum):
    MANAGED = "managed"
    PLAIN = "plain"


class FailedReason(StrEnum):
    BUDGET = "budget"
    BOOT = "boot"
    PLACING = "placing"
    STOPPED = "stopped"
    COMMAND = "command"  # exit 126/127: the command itself cannot be started; not counted, not retried
    EXITED = "exited"  # plain job: the command's own exit code
    PROGRESS = "progress"  # run after run failed and no checkpoint came


class LostReason(StrEnum):
    """Why a pod or a run of the command ended (`lastFailedReason`, ledger, events)."""

    KILLED = "killed"  # agent process killed or gone
    SIGNAL = "signal"  # child killed by a signal
    ERROR = "error"  # child exited non-zero by itself
    COLLATERAL = "collateral"  # child failed because a peer did (peer closed, collective timeout)
    NODE_LOST = "nodeLost"
    GPU_LOST = "gpuLost"
    PREEMPTED = "preempted"
    RESTARTED = "restarted"  # same attempt, new boot
    HUNG = "hung"
    SLOW = "slow"
    NO_ANSWER = "noAnswer"  # round deadline passed
    ORDERED = "ordered"  # left by order
    PORT = "port"  # EADDRINUSE soon after the start: new port, not counted


class LedgerState(StrEnum):
    """Second-exact states of a job; every ETTR is a sum over them (docs/history.md, "Ledgers")."""

    QUEUED = "queued"
    BOOTING = "booting"
    RESTORING = "restoring"
    CHECKING = "checking"
    PRODUCTIVE = "productive"
    LOST = "lost"
    SAVING = "saving"
    HUNG = "hung"
    DRAINED = "drained"
