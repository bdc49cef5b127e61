"""The story of a job in words: the retries string, transitions, sentences in English and Chinese.

Owns the wording; reads a head and pods, writes nothing.
"""

from __future__ import annotations

from aegis_proto.phases import LostReason
from aegis_proto.state import Head, JobState, Pod

from aegis_master.transitions import Trigger

SHOWN = 16
"""Places shown in a retries string."""


def retries(shards: tuple[tuple[Pod, ...], ...]) -> str:
    """`1:0:0`. More than 16 places: the odd ones first (most retries, then by place) as `w7=2`, then `...` and what the rest has."""
    values = [pod.retries for shard in shards for pod in shard]
    if len(values) <= SHOWN:
        return ":".join(map(str, values))
    low = min(values)
    odd = sorted((i for i, value in enumerate(values) if value != low), key=lambda i: (-values[i], i))[:SHOWN]
    return ":".join([*(f"w{i}={values[i]}" for i in odd), f"...{low}"])


def budget(head: Head) -> tuple[str, str]:
    """What the user sees of the budget, English and Chinese (the second is the seed's sentence)."""
    used = head.recoverCount if head.recoverCount <= head.maxRetry else head.maxRetry
    return (
        f"at most {head.maxRetry} restarts, {used} used; on a hardware fault the system re-places by itself, {head.errorNodesTotal} times so far",
        f"您的最大重启次数为 {head.maxRetry} 次,目前已重启 {used} 次;当发现硬件问题,系统将自动帮您重调度,目前已发生 {head.errorNodesTotal} 次",
    )


CAUSES: dict[str, tuple[str, str]] = {
    LostReason.KILLED: ("was killed", "被杀"),
    LostReason.SIGNAL: ("died of a signal", "被信号终止"),
    LostReason.ERROR: ("reported an error", "上报错误"),
    LostReason.COLLATERAL: ("failed because a peer did", "因其他 worker 失败而退出"),
    LostReason.NODE_LOST: ("lost its node", "所在节点失联"),
    LostReason.GPU_LOST: ("lost a GPU", "掉卡"),
    LostReason.PREEMPTED: ("was preempted", "被抢占"),
    LostReason.RESTARTED: ("was restarted", "重启"),
    LostReason.HUNG: ("made no progress", "挂起"),
    LostReason.SLOW: ("was slow", "过慢"),
    LostReason.NO_ANSWER: ("gave no answer", "未应答"),
    LostReason.ORDERED: ("left by order", "按指令退出"),
    LostReason.PORT: ("found its port taken", "端口被占用"),
}
"""LostReason -> predicate."""

SENTENCES: dict[Trigger, tuple[str, str]] = {
    Trigger.CREATED: ("job created", "任务创建"),
    Trigger.LOST: ("{pod} {cause}", "{pod} {causeZh}"),
    Trigger.PREEMPTED: ("{pod} was preempted, not counted", "{pod} 被抢占,不计数"),
    Trigger.ERROR: ("{pod} {cause}", "{pod} {causeZh}"),
    Trigger.PORT: ("{pod} found the master port taken, new port, not counted", "{pod} 端口被占用,更换端口,不计数"),
    Trigger.MARK_PAID: ("{pod} {cause}", "{pod} {causeZh}"),
    Trigger.READY: ("every place filled", "全员就绪"),
    Trigger.PASSED: ("all passed, run", "全员通过,开始执行"),
    Trigger.LEAVE: ("{pod} {cause}, it leaves", "{pod} {causeZh},退出重调度"),
    Trigger.COMMON: ("most fail alike: {cause}; nobody leaves, once more", "多数同样失败:{cause};不踢出,重试一次"),
    Trigger.FINISHED: ("all finished", "全员完成"),
    Trigger.BUDGET: ("budget spent", "容错次数用尽"),
    Trigger.BOOT: ("cannot start: {cause}", "无法启动:{cause}"),
    Trigger.PLACING: ("cannot place: awaited pods did not come in time", "无法调度:等待的 Pod 超时未就绪"),
    Trigger.STOPPED: ("stopped", "已停止"),
    Trigger.COMMAND: ("the command of {pod} cannot be started, not counted, not retried", "{pod} 的命令无法启动,不计数,不重试"),
    Trigger.PLAIN: ("all run as a plain job ({pod} is without Aegis)", "全员回退为普通任务({pod} 无法建联)"),
    Trigger.EXITED: ("{pod} of a plain job ended with an error", "普通任务的 {pod} 异常退出"),
    Trigger.SUSPEND: ("suspended", "已挂起"),
    Trigger.RESTART: ("restart asked, not counted", "按要求重启,不计数"),
    Trigger.ERA: ("new era of the store: asking what runs", "状态存储更换:询问现状"),
    Trigger.ADOPTED: ("all run the same incarnation: taken over untouched", "全员运行同一轮次:原样接管"),
}
"""Trigger -> sentence; `{pod}`, `{cause}`, `{causeZh}` are filled in."""


def sentence(trigger: Trigger, pod: str = "", cause: str = "", counted: bool = False, message: str = "") -> tuple[str, str]:
    """One line for people, English and Chinese. `message` (a worker's own words) is appended to the first."""
    english, chinese = CAUSES.get(cause, (f"failed {cause}", f"失败 {cause}")) if trigger not in (Trigger.COMMON, Trigger.BOOT) else (cause, cause)
    texts = [text.format(pod=pod or "a worker", cause=english, causeZh=chinese) for text in SENTENCES[trigger]]
    if message:
        texts[0] = f"{texts[0]}: {message}"
    if counted:
        texts = [f"{texts[0]}, counted", f"{texts[1]},计数"]
    return texts[0], texts[1]


def tell(state: JobState) -> str:
    """What happened so far, for an error message: the last transitions and where the job stands."""
    head = state.head
    lines = [
        f"  {t.timeStamp} {t.phaseFrom}->{t.phaseTo} seq {t.seqNum} inc {t.incarnation} ({t.retries}) {t.cause} {t.podName} {t.message}".rstrip()
        for t in head.recent
    ]
    now = f"job {head.job}: {head.phase} seq {head.seqNum} inc {head.incarnation} ({retries(state.shards)}) {head.tally}"
    return "\n".join([now, *lines])
