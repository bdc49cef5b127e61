"""A round of checks as an order wants it: the child's tree gone first, then the checks, then one Finish with what they say."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from aegis_proto.phases import OrderPhase
from aegis_proto.state import Order

from aegis_agent import ports
from aegis_agent.checks import meeting
from aegis_agent.checks.interpreter import Interpreter, read
from aegis_agent.checks.registry import Context, accelerators, run_round
from aegis_agent.deep.baseline import in_round
from aegis_agent.executor import Executor
from aegis_agent.scope import scope_id, scope_prefix
from aegis_agent.training import Training
from aegis_agent.writer import ReportWriter

NOTHING_RUNS = 10.0
"""Seconds between the first and the last worker of a round in which no command has to be stopped."""


async def interpreter_of(executor: Executor) -> Interpreter:
    """What the command names, as far as its scripts can be read."""
    spec = executor.task.spec
    return await read(spec.command, {**executor.environ, **spec.env}, spec.cwd or os.getcwd())


def context_of(executor: Executor, interpreter: Interpreter, round_name: str) -> Context:
    """What the checks of this worker are told; by hand without a round."""
    task, run = executor.task, executor.run
    return Context(
        scope_prefix(task.uid, task.pod, task.attempt),
        task.spec.cwd or os.getcwd(),
        os.getpid(),
        task.node,
        round_name,
        run_for=run.age if run is not None else 0.0,
        python=interpreter.python if interpreter.torch else "",
        env=task.spec.env,
    )


async def diagnose(executor: Executor, training: Training, write: ReportWriter, order: Order, *, phase: OrderPhase, address: str) -> None:
    """Answer one bootcheck or troubleshoot round. `address` is told to the others: rank 0's store is made there."""
    write.ack(phase)
    gone = await training.end()
    task, spec = executor.task, executor.task.spec
    began = time.monotonic()
    interpreter = await interpreter_of(executor)
    context = context_of(executor, interpreter, phase.value)
    scope = scope_id(task.uid, task.pod, task.attempt, "check")
    met = meeting.prepare(
        task,
        executor.environ,
        index=executor.index,
        host=order.masterAddr,
        port=order.masterPort,
        round_key=(write.era, order.incarnation, order.seqNum),
        grace=NOTHING_RUNS if phase is OrderPhase.BOOTCHECK else NOTHING_RUNS + max(spec.stopGrace, order.grace),
        gpus=accelerators(),
        interpreter=interpreter,
    )
    local = run_round(executor.reaper, context, executor.environ, scope=scope)
    if met is None:
        results = await local
    else:
        both = await asyncio.gather(local, met.run(executor.reaper, scope, task.node, executor.standby))
        results = [*both[0], *both[1]]
        if task.baseline:
            results = in_round(Path(task.baseline), results)
    failed = [f"{result.CheckType} failed: {result.Result}" for result in results if not result.Pass]
    executor.say(f"{phase.value}: {len(results)} checks in {time.monotonic() - began:.3f} s: {'; '.join(failed) or 'passed'}")
    port, check_port = two_ports(spec.masterPortRange) if executor.index == 0 else (0, 0)
    write.checked(phase, results, address=address, port=port, check_port=check_port, gone=gone)


def two_ports(span: tuple[int, int]) -> tuple[int, int]:
    """A free port for the next run and another one for the next round of checks; 0 where there is none."""
    first = ports.free_port(span)
    second = ports.free_port(span)
    return first, second if second != first else 0
