"""A round of checks as an order wants it: the child's tree gone first, then the checks, then one Finish with what they say."""

from __future__ import annotations

import os
import time

from aegis_proto.phases import OrderPhase

from aegis_agent import ports
from aegis_agent.checks.registry import Context, run_round
from aegis_agent.executor import Executor
from aegis_agent.scope import scope_id, scope_prefix
from aegis_agent.training import Training
from aegis_agent.writer import ReportWriter


async def diagnose(executor: Executor, training: Training, write: ReportWriter, phase: OrderPhase, address: str) -> None:
    """Answer one bootcheck or troubleshoot round. `address` is told to the others: rank 0's store is made there."""
    write.ack(phase)
    gone = await training.end()
    task = executor.task
    context = Context(scope_prefix(task.uid, task.pod, task.attempt), task.spec.cwd or os.getcwd(), os.getpid(), task.node)
    scope = scope_id(task.uid, task.pod, task.attempt, "check")
    began = time.monotonic()
    results = await run_round(executor.reaper, phase.value, context, executor.environ, scope=scope)
    failed = [f"{result.CheckType} failed: {result.Result}" for result in results if not result.Pass]
    executor.say(f"{phase.value}: {len(results)} checks in {time.monotonic() - began:.3f} s: {'; '.join(failed) or 'passed'}")
    port = ports.free_port(task.spec.masterPortRange) if executor.index == 0 else 0
    write.checked(phase, results, address=address, port=port, gone=gone)
