"""Who says it, and of when it is true: decided before the machine sees it."""

from __future__ import annotations

import msgspec
import pytest
from aegis_master import events as ev
from aegis_master import intake, machine
from aegis_master.publish import note_event
from aegis_proto import messages, shards
from aegis_proto.messages import AckData, CheckResponse, ErrorData, Fact, FinishData, HangData, Message, PendingData, StoppedData
from aegis_proto.phases import FactKind, LostReason, MessageType, Phase
from aegis_proto.state import SHARD, JobSpec, JobState, Pod

JOB, UID, ERA = "ddp-abc123", "uid-0001", "era1"


def running() -> JobState:
    """Two workers in RunCommand, incarnation 0, seqNum 3."""
    state = machine.create(JOB, JobSpec("ddp", ("true",), workers=2), UID, ERA, 1000)
    for i in range(2):
        state, _ = machine.step(state, ev.PodReady(i, 1, f"boot{i}"), 1001 + i)
    seq = state.head.seqNum
    for i in range(2):
        state, _ = machine.step(state, ev.Finished(i, 1, f"boot{i}", 0, seq, addr="10.0.0.1", port=20000), 1010)
    assert state.head.phase is Phase.RUN_COMMAND
    return state


def body(state: JobState, type_: str, phase: str, data: msgspec.Struct, **changes: object) -> bytes:
    fields: dict[str, object] = dict(
        AegisName="ddp",
        AegisNamespace="default",
        podName="w1",
        type=MessageType(type_),
        phase=phase,
        data=messages.raw(data),
        uid=UID,
        era=ERA,
        attempt=1,
        boot="boot1",
        incarnation=state.head.incarnation,
        seqNum=state.head.seqNum,
    )
    return messages.encode(Message(**{**fields, **changes}))  # type: ignore[arg-type]


def take(state: JobState, kind: str, data: bytes, pod: str = "w1") -> intake.Taken:
    return intake.take(state, f"aegis.job.{JOB}.worker.{pod}.{kind}", data, 5000)


def test_each_kind_of_report_becomes_its_event() -> None:
    state = running()
    seq = state.head.seqNum
    cases = [
        ("ack", "ACK", "command", AckData(), ev.Acked(1, 1, "boot1", seq)),
        ("finish", "Finish", "command", FinishData(0, 7), ev.Finished(1, 1, "boot1", 0, seq, exit_code=0, step=7)),
        ("hang", "Error", "hang", HangData("slow"), ev.Marked(1, 1, "boot1", 0, "slow")),
        ("stopped", "ACK", "stop", StoppedData(0), ev.Stopped(1, 1, "boot1", 0)),
        ("pending", "ACK", "", PendingData("10.0.0.9", "n9"), ev.PodReady(1, 1, "boot1", ip="10.0.0.9", node="n9")),
    ]
    for kind, type_, phase, data, event in cases:
        taken = take(state, kind, body(state, type_, phase, data))
        assert taken.events == (event,), kind
        assert (taken.bad, taken.heard) == ("", 1)


def test_an_error_is_dated_by_its_death_but_never_later_than_the_server_heard_of_it() -> None:
    state = running()
    data = ErrorData("signal", None, 9, diedAt=4000)
    [event] = take(state, "error", body(state, "Error", "command", data)).events
    assert isinstance(event, ev.Errored)
    assert (event.reason, event.signal, event.at) == (LostReason.SIGNAL, 9, 4000)
    [event] = take(state, "error", body(state, "Error", "command", ErrorData(diedAt=99_000))).events
    assert isinstance(event, ev.Errored)
    assert event.at == 5000


@pytest.mark.parametrize("reason", ["killed", "nodeLost", "nonsense", "ordered"])
def test_an_agent_cannot_speak_for_the_platform(reason: str) -> None:
    state = running()
    [event] = take(state, "error", body(state, "Error", "command", ErrorData(reason))).events
    assert isinstance(event, ev.Errored)
    assert event.reason is LostReason.ERROR


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(uid="other"), "uid"),
        (dict(attempt=0), "attempt"),
        (dict(attempt=2), "attempt"),
        (dict(boot="boot0"), "boot"),
        (dict(era="era0"), "era"),
        (dict(incarnation=1), "incarnation"),
        (dict(seqNum=0), "seqNum"),
        (dict(seqNum=99), "seqNum"),
    ],
)
def test_a_report_of_another_time_or_place_changes_nothing(changes: dict[str, object], why: str) -> None:
    state = running()
    taken = take(state, "finish", body(state, "Finish", "command", FinishData(), **changes))
    assert (taken.events, taken.dropped, taken.bad) == ((), why, "")


def test_a_start_is_news_even_with_a_new_boot_and_without_a_round() -> None:
    state = running()
    taken = take(state, "pending", body(state, "ACK", "", PendingData(), boot="new", incarnation=0, seqNum=0, era=""))
    assert taken.events == (ev.PodReady(1, 1, "new"),)
    late = take(state, "pending", body(state, "ACK", "", PendingData(), attempt=0))
    assert late.dropped == "attempt"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("finish", b""),
        ("finish", b"\xff\xfe"),
        ("finish", b"{}"),
        ("finish", b"[" * 100_000),
        ("finish", b'{"AegisName":1}'),
        ("shout", b"{}"),
    ],
)
def test_what_is_no_message_is_bad(kind: str, data: bytes) -> None:
    assert take(running(), kind, data).bad


def test_a_body_that_contradicts_its_subject_is_bad() -> None:
    state = running()
    finish = body(state, "Finish", "command", FinishData())
    assert "cannot come on .ack" in take(state, "ack", finish).bad
    assert "on the subject of w0" in take(state, "finish", finish, pod="w0").bad
    assert "2 workers" in take(state, "finish", body(state, "Finish", "command", FinishData(), podName="w7"), pod="w7").bad
    assert take(state, "finish", finish, pod="x1").bad
    assert "version 9" in take(state, "finish", body(state, "Finish", "command", FinishData(), v=9)).bad
    assert take(state, "finish", body(state, "Finish", "dance", FinishData())).bad
    assert "boot" in take(state, "finish", body(state, "Finish", "command", FinishData(), boot="")).bad


def fact(state: JobState, about: str, kind: FactKind, **more: object) -> intake.Taken:
    data = messages.encode(Fact(kind, **{"uid": UID, "attempt": 1, **more}))  # type: ignore[arg-type]
    return intake.take(state, f"aegis.job.{JOB}.fact.{about}", data, 5000)


def test_exit_0_of_the_platform_in_a_run_is_finish() -> None:
    first, second = fact(running(), "w1", FactKind.GONE, exitCode=0).events
    assert isinstance(first, ev.Finished)
    assert isinstance(second, ev.PodLost)
    assert second.gone


def test_a_killed_agent_is_a_lost_pod_that_is_gone() -> None:
    [event] = fact(running(), "w1", FactKind.GONE, signal=9, node="n1", at=4500).events
    assert event == ev.PodLost(1, 1, LostReason.KILLED, 4500, 137, "n1", gone=True, message="killed by signal 9")


def test_a_pod_removed_by_force_is_lost_and_its_place_is_not_free() -> None:
    [event] = fact(running(), "w1", FactKind.GONE, verified=False).events
    assert isinstance(event, ev.PodLost) and not event.gone and not event.blame
    state = running().with_pod(1, msgspec.structs.replace(running().pod(1), attempt=2, boot=""))
    assert not fact(state, "w1", FactKind.GONE, attempt=1, verified=False).events


def test_news_of_an_attempt_that_was_replaced_only_frees_its_place() -> None:
    state = running()
    state, _ = machine.step(state, ev.PodLost(1, 1), 2000)
    assert fact(state, "w1", FactKind.GONE, attempt=1).events == (ev.PodGone(1, 1),)
    [lost] = fact(state, "w1", FactKind.NODE_LOST, attempt=1, node="n1").events
    after, _ = machine.step(state, lost, 3000)
    assert (after.pod(1).gone, after.pod(1).attempt, after.head.failures) == (True, 2, state.head.failures)
    assert fact(state, "w1", FactKind.RUNNING, attempt=1).dropped == "attempt"
    assert fact(state, "w1", FactKind.RUNNING, attempt=3).dropped == "attempt"


def test_the_words_of_the_platform_reach_the_judge() -> None:
    state = running()
    assert fact(state, "w1", FactKind.RUNNING).word == intake.PlatformWord(1, 1, True)
    assert fact(state, "w1", FactKind.NODE_SILENT).word == intake.PlatformWord(1, 1, False)


def test_what_is_asked_from_outside_is_about_the_job() -> None:
    state = running()
    assert fact(state, "job", FactKind.STOP, who="alice", message="enough").events == (ev.StopAsked("alice", "enough"),)
    assert fact(state, "job", FactKind.SET, settings={"max-retry": "5"}, who="bob").events == (ev.SettingChanged(5, "bob"),)
    assert fact(state, "job", FactKind.CHECKPOINT, step=40).events == (ev.Checkpointed(0, 40),)
    assert fact(state, "job", FactKind.GONE).bad
    assert fact(state, "w1", FactKind.STOP).bad
    assert fact(state, "job", FactKind.SET, settings={"max-retry": "-1"}).bad
    assert fact(state, "job", FactKind.STOP, uid="other").dropped == "uid"


def test_a_preempted_agent_says_so_in_its_last_word_and_nothing_it_says_excludes_its_node() -> None:
    word = '{"reason":"preempted","message":"SIGTERM","excludeNode":true}'
    [event] = fact(running(), "w1", FactKind.GONE, exitCode=143, lastWord=word).events
    assert isinstance(event, ev.PodLost)
    assert (event.reason, event.message, event.blame) == (LostReason.PREEMPTED, "SIGTERM", "")
    [event] = fact(running(), "w1", FactKind.GONE, exitCode=1, lastWord="{not json").events
    assert isinstance(event, ev.PodLost)
    assert event.message == "{not json"


def test_a_worker_that_could_not_be_verified_gone_makes_its_node_suspect() -> None:
    """Its daemon says so, not the worker: also of the attempt before, whose end was awaited."""
    [event] = fact(running(), "w1", FactKind.GONE, node="n7", signal=9, clean=False, message="processes 77 do not die", lastWord="fine").events
    assert isinstance(event, ev.PodLost)
    assert (event.blame, event.node, event.gone, event.message) == (intake.UNCLEAN, "n7", True, "processes 77 do not die")
    state, _ = machine.step(running(), ev.PodLost(1, 1, LostReason.KILLED, 2000), 2000)
    assert [item.name for item in state.head.errorNodes] == []
    for clean, blamed in ((True, []), (False, [("n7", "unclean")])):
        [event] = fact(state, "w1", FactKind.GONE, attempt=1, node="n7", clean=clean).events
        after, _ = machine.step(state, event, 3000)
        assert after.pod(1).gone and [(item.name, item.reason) for item in after.head.errorNodes] == blamed


def test_a_node_that_could_not_start_the_agent_is_not_used_again() -> None:
    state = machine.step(running(), ev.PodLost(1, 1, LostReason.KILLED, 2000), 2000)[0]
    for attempt in (1, 2):
        [event] = fact(state, "w1", FactKind.GONE, attempt=attempt, node="n7", notStarted=True, message="no room").events
        after, _ = machine.step(state, event, 3000)
        assert [(item.name, item.reason) for item in after.head.errorNodes] == [("n7", "notStarted")]


def test_a_check_response_carries_where_a_run_could_listen() -> None:
    state = running()
    state, _ = machine.step(state, ev.Errored(0, 1, "boot0", 0, state.head.seqNum), 2000)
    [event] = take(state, "finish", body(state, "Finish", "troubleshoot", CheckResponse((), "10.0.0.1", 21000))).events
    assert isinstance(event, ev.Finished)
    assert (event.addr, event.port, event.tree_gone) == ("10.0.0.1", 21000, True)


def test_the_last_word_of_a_replaced_attempt_frees_its_place() -> None:
    state = running()
    lost, _ = machine.step(state, ev.PodLost(1, 1, LostReason.NODE_LOST, 2000), 2000)
    assert (lost.pod(1).attempt, lost.pod(1).gone) == (2, False)
    taken = take(lost, "stopped", body(lost, "ACK", "stop", StoppedData(0)))
    after, _ = machine.step(lost, taken.events[0], 2100)
    assert after.pod(1).gone
    # of another boot, or not clean: nothing is known of what runs there
    assert not take(lost, "stopped", body(lost, "ACK", "stop", StoppedData(0), boot="boot9")).events
    unclean = take(lost, "stopped", body(lost, "ACK", "stop", StoppedData(0, clean=False))).events
    assert not machine.step(lost, unclean[0], 2100)[0].pod(1).gone


@pytest.mark.parametrize("number", ["1" + "0" * 400, "18446744073709551615", "-1" + "0" * 400])
@pytest.mark.parametrize(
    ("kind", "type_", "phase", "data"),
    [
        ("finish", "Finish", "command", '{"exitCode":0,"step":%s}'),
        ("error", "Error", "command", '{"reason":"error","exitCode":%s}'),
        ("pending", "ACK", "", '{"podIP":"10.0.0.9","stopped":%s}'),
    ],
)
def test_a_number_that_nothing_can_be_computed_with_is_a_dead_letter(kind: str, type_: str, phase: str, data: str, number: str) -> None:
    state = running()
    sent = body(state, type_, phase, AckData(), boot="boot1").replace(b"{}", (data % number).encode())
    assert number.encode() in sent
    taken = take(state, kind, sent)
    assert not taken.events and taken.bad


@pytest.mark.parametrize("field", ["n", "step", "checkpoint", "incarnation", "attempt"])
def test_a_heartbeat_with_such_a_number_is_none(field: str) -> None:
    with pytest.raises(messages.BadMessage):
        messages.decode(messages.Heartbeat, b'{"boot":"b","n":1,"%s":1%s}' % (field.encode(), b"0" * 400))


def test_nothing_that_a_terminal_obeys_comes_from_a_tenant_into_the_story() -> None:
    state = running()
    evil = "\x1b[2J\x1b]0;mine\x07\n0 errors \u202e"
    said = take(state, "error", body(state, "Error", "command", ErrorData(message=evil))).events
    said += take(state, "hang", body(state, "Error", "hang", HangData("slow", message=evil))).events
    said += take(state, "pending", body(state, "ACK", "", PendingData(evil, evil, podUid=evil))).events
    lost = Fact(FactKind.GONE, UID, 1, "n1", exitCode=1, message=evil, lastWord=evil)
    said += intake.take(state, f"aegis.job.{JOB}.fact.w1", messages.encode(lost), 5000).events
    checked = CheckResponse((messages.CheckResult(evil, False, evil, code=evil),))
    said += take(state, "finish", body(state, "Finish", "troubleshoot", checked)).events
    assert len(said) == 5
    assert all(ord(char) >= 32 and char not in "\x7f\u202e" for event in said for char in str(event))
    assert not any("\\x1b" in repr(event) for event in said)


def test_a_verdict_is_told_to_people_and_changes_nothing() -> None:
    state = running()
    fact = Fact(
        FactKind.VERDICT,
        UID,
        message="w1/r1: GPU hardware\x1b[2J",
        who="lognexus",
        at=4000,
        settings={"cause": "gpu_hw", "incarnation": "0", "zh": "GPU 硬件故障"},
    )
    taken = intake.take(state, f"aegis.job.{JOB}.fact.job", messages.encode(fact), 5000)
    assert not taken.events and not taken.bad
    (note,) = taken.notes
    event = note_event(state.head, note, 0)
    assert (event.type, event.cause, event.incarnation, event.messageZh) == ("verdict", "gpu_hw", 0, "GPU 硬件故障")
    assert event.message == "w1/r1: GPU hardware [2J" and not event.counted
    odd = intake.take(state, f"aegis.job.{JOB}.fact.job", messages.encode(msgspec.structs.replace(fact, settings={"incarnation": "999"})), 5000)
    assert odd.notes[0].details["incarnation"] == "0"
    other = intake.take(state, f"aegis.job.{JOB}.fact.job", messages.encode(msgspec.structs.replace(fact, uid="another")), 5000)
    assert not other.notes


def test_what_an_agent_calls_itself_is_short_so_that_a_full_shard_stays_readable() -> None:
    state = running()
    long = "\N{GRINNING FACE}" * 1500
    taken = take(state, "pending", body(state, "ACK", "", PendingData(long, "n\u202e9", podUid=long), boot="b" * 64, attempt=2))
    (ready,) = taken.events
    assert isinstance(ready, ev.PodReady)
    assert (ready.ip, ready.node, ready.uid) == ("?" * 128, "n?9", "?" * 128)
    assert "65 characters" in take(state, "pending", body(state, "ACK", "", PendingData(), boot="b" * 65, attempt=2)).bad
    pods = (Pod(ready.ip, ready.ip, uid=ready.ip, boot="b" * 64, oldBoot="b" * 64, reason="\N{GRINNING FACE}" * 64),) * SHARD
    assert shards.decode(shards.encode(pods), SHARD) == pods
