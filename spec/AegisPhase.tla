------------------------------ MODULE AegisPhase ------------------------------
(* P0, the phase machine as it is built: one step = one event, run to the end, as in *)
(* aegis_master.machine.step.  spec/mapping.md says which variable is which field.    *)
(*                                                                                    *)
(* The seed's numbers.  Its eight Controller branches are the macros B1 .. B8 and the *)
(* conditions of B2 inside `answered`; its three Environment branches are E1 (Finish),*)
(* E2 (a pod restarts, is killed, comes), E3 (told from outside).  Everything else is *)
(* ours and marked (+).                                                               *)
(*                                                                                    *)
(* Each event is a process of its own, so that TLC's traces and graph carry its name. *)
(* Events are what the master reads from the stream: those of old attempts, boots and *)
(* rounds never get here (AegisMessages).  Fair are only the deadlines and a training *)
(* that makes progress; nothing is asked of pods, platform or people.                 *)
EXTENDS Naturals, FiniteSets, TLC
CONSTANTS Workers, MaxRetry, MaxUncounted, MaxPort,
  Features        \* which of the disturbances marked On(...) below may happen
On(f)     == f \in Features
Min(a, b) == IF a < b THEN a ELSE b
All(v)    == [w \in Workers |-> v]
None      == All("no")
First(S)  == CHOOSE w \in S : TRUE
N         == Cardinality(Workers)
Half      == IF N \div 2 + 1 > 2 THEN N \div 2 + 1 ELSE 2
Ids(e)    == {e} \X Workers
Phases    == {"Init","Pending","BootChecking","RunCommand","Restarting","Troubleshooting","Succeed","Failed"}
Terminal  == {"Succeed","Failed"}
Checks    == {"BootChecking","Troubleshooting"}
Rounds    == Checks \cup {"RunCommand"}
\* with actions.mode observe or advise nobody leaves for the sake of its node
Acts              == ~On("advise")
\* who wants to leave a round of checks: q ordered to, e could not diagnose, f failed a check of its node or its container; and who then does
Wants(q, e, f)    == {w \in Workers : q[w] # "no" \/ e[w] \/ f[w] \in {"node", "container"}}
Leavers(q, e, f)  == {w \in Wants(q, e, f) : Acts \/ q[w] # "no" \/ f[w] # "node"}
\* checks that say nothing about one place: nobody leaves for one of them
Noted             == {"performance", "allreduce", "hang"}
\* most (two or more) would leave, or fail the same: what they share is suspect, nobody leaves
Common(q, e, f)   == Cardinality(Wants(q, e, f)) >= Half \/ \E n \in Noted : Cardinality({w \in Workers : f[w] = n}) >= Half
OrderOut(q, e, f) == [w \in Workers |-> IF q[w] = "no" /\ w \in Leavers(q, e, f) /\ ~Common(q, e, f) THEN "ordered" ELSE q[w]]
\* marked pods leave when the run stops: half of them at most
Leaving(M)        == [w \in Workers |-> IF Acts /\ w \in M /\ 2 * Cardinality(M) <= N THEN "ordered" ELSE "no"]
\* (+) what tests of two workers at a time say in the end, when t told of such tests: who is bad, or (nobody is) who is slow, and of whom one or more
\* are bad but the tests cannot say which. Each test has one in t who told of it; one in t who passed a test clears the other's accuser.
NoVerdict         == [bad |-> {}, some |-> {}, slow |-> {}]
Shown(t, B, S)    == B \subseteq t \/ ~(t \subseteq B \cup S)
Vague(t, B)       == {S \in SUBSET (Workers \ B) : Cardinality(S) > 1 /\ S \cap t # {} /\ Shown(t, B, S)}
Named(t)          == {B \in SUBSET Workers : Shown(t, B, {})}
Verdicts(t)       == {[NoVerdict EXCEPT !.slow = W] : W \in Named(t)} \cup {[NoVerdict EXCEPT !.bad = B] : B \in Named(t)}
                     \cup UNION {{[NoVerdict EXCEPT !.bad = B, !.some = S] : S \in Vague(t, B)} : B \in (SUBSET Workers) \ {{}}}
\* the failed checks, weighed: beside one who is bad by itself such tests say nothing; who is named is bad, and what it spoiled for others is void;
\* where nobody can be named the round is made again (again), and then the tests are void
Weighed(v, f, t, others, again) ==
  [w \in Workers |-> IF others = {} /\ w \in v.bad THEN "node"
                     ELSE IF f[w] = "allreduce" /\ t # {} /\ (others # {} \/ (IF v.bad = {} THEN again ELSE w \notin v.some)) THEN ""
                     ELSE f[w]]
\* what a pod says in a new era: that it runs the present incarnation (cur) or a later one (next); or it does not run (idle), runs another than
\* the others (mixed), and has been told of the present one (past) or of a later one (newer)
Says              == {"idle", "past", "newer", "cur", "next"}
Higher(h, says)   == IF says \in {"next", "newer"} \/ h = "next" THEN "next" ELSE IF says \in {"cur", "past"} THEN "cur" ELSE h
Strength          == [pod |-> 4, signal |-> 3, error |-> 2, collateral |-> 1]   \* how well a reason names the first cause

(* --algorithm Phase
variables
  \* the head
  phase = "Init", mode = "managed", recoverCount = 0, failures = 0, shouldQuit = FALSE, failedReason = "none",
  started = FALSE,              \* RunCommand was entered
  booted = FALSE,               \* BootChecking was passed
  counted = FALSE,              \* this incarnation has its count: countedIncarnation = incarnation
  holder = "none", evidence = 0, moved = FALSE,   \* (+) who holds the count ("nobody": taken back), on what evidence, moved already
  massQuit = 0,                 \* (+) rounds repeated because most failed alike
  portRetries = 0, suspended = FALSE,
  adopting = FALSE, runs = "none", heard = "none", \* (+) new era: what all run so far; highest incarnation heard of
  \* the pods
  innerPhase = All("Init"), present = All(FALSE), placed = All(FALSE), finished = All(FALSE), errored = All(FALSE), failed = All(""),
  retries = All(0), uncounted = All(0), toQuit = None, mark = All(""), suspect = All(FALSE),
  told = All(FALSE),            \* (+) its answer in this round told of tests with others
  \* the world, and a ghost that no branch reads: incarnations that really failed
  noise = TRUE, ended = 0;
define
  Live       == phase \notin Terminal \cup {"Init"}
  Managed    == Live /\ mode = "managed"
  Marked     == {w \in Workers : mark[w] # ""}
  Hung       == \E w \in Workers : mark[w] = "hang"
  Answered   == {w \in Workers : finished[w] \/ errored[w]}
  Spent      == failures > MaxRetry
  MayGoPlain == Managed /\ ~started /\ ~suspended /\ phase # "RunCommand"
  \* the one deadline that stands
  Deadline   == CASE phase = "Pending" /\ suspended -> "none"
                  [] phase = "Pending" /\ ~started /\ toQuit = None /\ (\A w \in Workers : placed[w]) -> "pending"
                  [] phase \in {"Pending","Restarting"} -> "placing"
                  [] phase \in Checks -> "round"
                  [] phase = "RunCommand" /\ Hung -> "hang"
                  [] OTHER -> "none"
  \* the order that stands; toQuit pods get hangWithQuit instead
  Order      == CASE phase \in Terminal -> "quit"
                  [] phase = "Pending" -> IF suspended THEN "stop" ELSE "wait"
                  [] phase = "BootChecking" -> "bootcheck"
                  [] phase = "Troubleshooting" -> "troubleshoot"
                  [] phase = "Restarting" -> IF adopting THEN "wait" ELSE "stop"
                  [] phase = "RunCommand" -> IF mode = "plain" THEN "plain" ELSE IF Hung THEN "hang" ELSE "command"
                  [] OTHER -> "none"
end define;

macro void() begin finished := All(FALSE); errored := All(FALSE); failed := All(""); told := All(FALSE); end macro;
macro clear() begin void(); mark := All(""); end macro;
macro uncount() begin counted := FALSE; holder := "none"; evidence := 0; moved := FALSE; end macro;
macro noAdopting() begin adopting := FALSE; runs := "none"; heard := "none"; end macro;
macro empty(w, refill) begin placed[w] := refill /\ On("plain"); suspect[w] := FALSE; end macro;

macro B2_round(p, np, nq) begin          \* a new round of checks: nobody is finished, pending reports are void
  phase := p; innerPhase := All(p); present := np; toQuit := nq; clear();
end macro;

macro B8_run(np, slow) begin             \* into RunCommand; alignment happens here and nowhere else; who was slow in all its tests is only marked
  phase := "RunCommand"; innerPhase := All("RunCommand"); present := np; toQuit := None;
  void(); mark := [v \in Workers |-> IF v \in slow THEN "slow" ELSE ""];
  retries := All(recoverCount); uncounted := All(0);
  started := TRUE; booted := TRUE; massQuit := 0; uncount(); noAdopting();
end macro;

macro B7_close(r) begin                  \* Failed; only a spent budget takes recoverCount beyond its cap
  phase := "Failed"; innerPhase := All("Failed"); failedReason := r; shouldQuit := TRUE;
  toQuit := None; mark := All(""); suspended := FALSE; noAdopting();
end macro;

macro B3_stopRun(w, cnt, str, np, nq, diag) begin   \* the run ends: counted (cnt) or not, w the place, then diagnose at once (diag) or wait
  with spent = cnt /\ ~counted /\ failures >= MaxRetry,
       on = (\A v \in Workers : np[v]) /\ (diag \/ nq = None),
       nin = [v \in Workers |-> IF np[v] /\ (v # w \/ diag) THEN innerPhase[v] ELSE "Restarting"] do
    if cnt /\ ~counted then
      retries[w] := retries[w] + 1; failures := failures + 1; counted := TRUE;
      recoverCount := IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry);
      if On("move") then holder := w; evidence := str; moved := FALSE; end if;
    end if;
    clear(); present := np;
    if spent then                        \* B6, B7: waits for no pod and no report
      phase := "Failed"; innerPhase := All("Failed"); failedReason := "budget"; shouldQuit := TRUE; toQuit := None;
    elsif on then
      phase := "Troubleshooting"; innerPhase := All("Troubleshooting"); toQuit := nq;
    else
      phase := "Restarting"; innerPhase := nin; toQuit := nq;
    end if;
  end with;
end macro;

macro giveUpAdopting(nh) begin           \* (+) a normal restart, above every incarnation anybody has heard of
  if adopting then
    started := started \/ nh # "none";
    if nh = "next" then uncount(); end if;
    noAdopting();
  end if;
end macro;

macro B5_settle(np, nr, nh) begin        \* Restarting, every place filled, nobody on the way out
  if adopting /\ (nr = "next" \/ (nr = "cur" /\ ~counted)) then          \* (+) all run the same: taken over untouched
    B8_run(np, {});
  else
    giveUpAdopting(nh);
    B2_round(IF booted THEN "Troubleshooting" ELSE "BootChecking", np, None);
  end if;
end macro;

macro B4_loseElsewhere(w, refill, prem, early, lh) begin   \* a pod is lost outside RunCommand: not counted, only that place is reset
  with moves  = early /\ ~prem /\ phase \in {"Restarting","Troubleshooting"} /\ counted /\ ~moved /\ holder # w /\ Strength.pod > evidence,
       feeds  = ~moves /\ ~prem /\ toQuit[w] # "preempted" /\ ~suspended,
       dead   = feeds /\ uncounted[w] + 1 >= MaxUncounted,
       lp     = [present EXCEPT ![w] = refill],
       lq     = [(IF phase \in Checks THEN OrderOut(toQuit, errored, failed) ELSE toQuit) EXCEPT ![w] = "no"],
       all     = (\A v \in Workers : lp[v]) /\ lq = None,
       lin    = [v \in Workers |-> IF lp[v] /\ v # w THEN innerPhase[v] ELSE "Restarting"] do
    if moves then                        \* (+) better evidence of the same incarnation: the count goes there, failures stay
      retries := [retries EXCEPT ![holder] = @ - 1, ![w] = @ + 1];
    end if;
    if adopting /\ all /\ lh = "next" then uncount();
    elsif moves then holder := w; evidence := Strength.pod; moved := TRUE; end if;
    if feeds then uncounted[w] := uncounted[w] + 1; end if;
    if dead then B7_close("boot");
    else
      empty(w, refill);
      if phase = "Pending" then
        if all /\ ~suspended then B2_round("BootChecking", lp, None);
        else present := lp; toQuit := lq; end if;
      elsif all then
        if adopting then started := started \/ lh # "none"; noAdopting(); end if;
        B2_round(IF booted THEN "Troubleshooting" ELSE "BootChecking", lp, None);
      else
        phase := "Restarting"; innerPhase := lin; present := lp; toQuit := lq; clear();
        if adopting then runs := "mixed"; heard := lh; end if;
      end if;
    end if;
  end with;
end macro;

macro B2_answered(f, e, x, t) begin      \* an answer is in: nothing, or the end of the round
  with waits = \E v \in Workers : ~f[v] /\ ~e[v],
       tellers = {v \in Workers : t[v]}, others = Wants(toQuit, e, x),
       verdict \in IF waits \/ tellers = {} \/ others # {} THEN {NoVerdict} ELSE Verdicts(tellers),
       y = IF waits THEN x ELSE Weighed(verdict, x, tellers, others, massQuit > 0),
       common = Common(toQuit, e, y), out = OrderOut(toQuit, e, y) do
    if waits \/ (common /\ massQuit > 0) then
      finished := f; errored := e; failed := y; told := t;
      if ~waits then B7_close("boot"); end if;
    elsif common then
      massQuit := 1; clear(); innerPhase := All(phase);                   \* the same round once more
    elsif out # None then
      phase := "Restarting"; clear(); toQuit := out;
    else B8_run(present, verdict.slow); end if;
  end with;
end macro;

fair process B1_Create = "create"
begin
Create: while TRUE do await phase = "Init"; phase := "Pending"; innerPhase := All("Pending"); end while;
end process;

\* ---- E1: reports --------------------------------------------------------------------
fair+ process Finish \in Ids("finish")           \* of the command, by a training that makes progress, if only now and then
begin
FinishL: while TRUE do
    await Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]] /\ mark[self[2]] # "hang";
    with w = self[2], f = [finished EXCEPT ![w] = TRUE] do
      mark[w] := "";
      if \A v \in Workers : f[v] then finished := f; phase := "Succeed"; innerPhase := All("Succeed"); else finished := f; end if;
    end with;
  end while;
end process;

process FinishHung \in Ids("finishHung")         \* (+) the mark was wrong
begin
FinishHungL: while TRUE do
    await Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]] /\ mark[self[2]] = "hang";
    with w = self[2], f = [finished EXCEPT ![w] = TRUE] do
      mark[w] := "";
      if \A v \in Workers : f[v] then finished := f; phase := "Succeed"; innerPhase := All("Succeed"); else finished := f; end if;
    end with;
  end while;
end process;

process Checked \in Ids("checked")               \* Finish of bootcheck or troubleshoot, with results
begin
CheckedL: while TRUE do
    await phase \in Checks /\ self[2] \notin Answered /\ toQuit[self[2]] = "no";
    with w = self[2], r \in {""} \cup (IF On("check") THEN {"node","performance"} ELSE {}) \cup (IF On("checks") THEN Noted ELSE {})
                      \cup (IF On("levels") THEN {"container"} ELSE {}),
         tells \in {FALSE, On("pairs")}, f = [finished EXCEPT ![w] = TRUE], x = [failed EXCEPT ![w] = r], t = [told EXCEPT ![w] = tells] do
      B2_answered(f, errored, x, t);
    end with;
  end while;
end process;

process Undiagnosed \in Ids("undiagnosed")       \* Error of a round of checks: could not diagnose
begin
UndiagnosedL: while TRUE do
    await phase \in Checks /\ self[2] \notin Answered /\ toQuit[self[2]] = "no";
    with w = self[2], r \in {""} \cup (IF On("check") THEN {"node"} ELSE {}),     \* node: its GPU is gone
         e = [errored EXCEPT ![w] = TRUE], x = [failed EXCEPT ![w] = r] do
      B2_answered(finished, e, x, told);
    end with;
  end while;
end process;

process Failing \in Ids("failing")               \* Error in RunCommand: the child failed
begin
FailingL: while TRUE do
    await Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]];
    with w = self[2], str \in IF On("move") THEN {4, 3, 2, 1} ELSE {2},
         nq = Leaving(Marked) do
      ended := ended + 1; portRetries := 0;
      B3_stopRun(w, TRUE, str, present, nq, TRUE);
    end with;
  end while;
end process;

process PortTaken \in Ids("portTaken")           \* (+) the port was taken at the start: a new one, not counted, so many times
begin
PortTakenL: while TRUE do
    await On("port") /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]];
    with w = self[2], free = portRetries < MaxPort,
         nq = Leaving(Marked) do
      if ~free then ended := ended + 1; end if;
      portRetries := IF free THEN portRetries + 1 ELSE 0;
      B3_stopRun(w, ~free, 2, present, nq, TRUE);
    end with;
  end while;
end process;

process NotStarted \in Ids("notStarted")         \* (+) exit 126, 127: the command cannot be started
begin
NotStartedL: while TRUE do
    await On("command") /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]];
    B7_close("command");
  end while;
end process;

process LateError \in Ids("lateError")           \* (+) an Error of the run that was counted: may name a better first cause
begin
LateErrorL: while TRUE do
    await On("move") /\ phase \in {"Restarting","Troubleshooting"} /\ present[self[2]] /\ counted /\ ~moved /\ holder # self[2];
    with w = self[2], str \in {s \in {4, 3, 2} : s > evidence} do
      retries := [retries EXCEPT ![holder] = @ - 1, ![w] = @ + 1]; holder := w; evidence := str; moved := TRUE;
    end with;
  end while;
end process;

process LateNotice \in Ids("lateNotice")         \* (+) a pod was being preempted before the run was stopped: its peers were heard first
begin
LateNoticeL: while TRUE do
    await On("move") /\ On("preempt") /\ noise /\ phase \in {"Restarting","Troubleshooting"} /\ present[self[2]] /\ counted /\ holder # "nobody";
    with f = failures - 1 do             \* taken back, once: nothing of this incarnation counts again
      retries[holder] := retries[holder] - 1; failures := f; ended := ended - 1; recoverCount := Min(f, MaxRetry);
      holder := "nobody"; evidence := 0; moved := TRUE;
    end with;
  end while;
end process;

process Mark \in Ids("mark")                     \* (+) hang or slow mark only; withdrawn at no cost
begin
MarkL: while TRUE do
    await On("mark") /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]];
    with m \in {"", "hang", "slow"} \ {mark[self[2]]} do mark[self[2]] := m; end with;
  end while;
end process;

process Checkpoint = "checkpoint"                \* (+) a complete checkpoint pays the marks
begin
CheckpointL: while TRUE do
    await Managed /\ phase = "RunCommand" /\ Marked # {};
    with nq = Leaving(Marked) do
      ended := ended + 1; B3_stopRun(First(Marked), TRUE, 2, present, nq, TRUE);
    end with;
  end while;
end process;

\* ---- E2: pods come and go -----------------------------------------------------------
process Ready \in Ids("ready")                   \* a place is filled
begin
ReadyL: while TRUE do
    await Managed /\ ~present[self[2]];
    with w = self[2], says \in IF adopting THEN Says ELSE {"idle"},
         np = [present EXCEPT ![w] = TRUE],
         on = (\A v \in Workers : np[v]) /\ toQuit = None,
         nr = IF ~adopting THEN runs ELSE IF says \in {"cur", "next"} /\ runs \in {"none", says} THEN says ELSE "mixed",
         nh = Higher(heard, says) do
      empty(w, TRUE);
      if phase = "Pending" /\ on /\ ~suspended then B2_round("BootChecking", np, None);
      elsif phase = "Restarting" /\ on then B5_settle(np, nr, nh);
      else present := np; runs := nr; heard := nh; end if;
    end with;
  end while;
end process;

process Lost \in Ids("lost")                     \* killed (or restarted: its successor is there at once)
begin
LostL: while TRUE do
    await Managed /\ (phase # "RunCommand" \/ present[self[2]] \/ placed[self[2]]);
    with w = self[2], refill \in {FALSE, present[w]}, early \in {FALSE, On("move")},
         says \in IF adopting /\ refill THEN Says ELSE {"idle"},
         np = [present EXCEPT ![w] = refill], nq = Leaving(Marked \ {w}) do
      if phase = "RunCommand" then
        if finished[w] then present := np;       \* its Finish is in: no failure
        else ended := ended + 1; B3_stopRun(w, TRUE, Strength.pod, np, nq, FALSE); end if;
        empty(w, refill);
      else B4_loseElsewhere(w, refill, FALSE, early, Higher(heard, says)); end if;
    end with;
  end while;
end process;

process Left \in Ids("left")                     \* (+) the platform saw exit 0 in RunCommand: that is Finish, and the pod is gone
begin
LeftL: while TRUE do
    await Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]];
    with w = self[2], f = [finished EXCEPT ![w] = TRUE] do
      mark[w] := ""; present[w] := FALSE; empty(w, FALSE);
      if \A v \in Workers : f[v] then finished := f; phase := "Succeed"; innerPhase := All("Succeed"); else finished := f; end if;
    end with;
  end while;
end process;

process Preempted \in Ids("preempted")           \* (+) the platform takes a pod away: not counted anywhere
begin
PreemptedL: while TRUE do
    await On("preempt") /\ noise /\ Managed /\ (phase # "RunCommand" \/ present[self[2]] \/ placed[self[2]]);
    with w = self[2], np = [present EXCEPT ![w] = FALSE], nq = Leaving(Marked \ {w}) do
      if phase = "RunCommand" then
        if finished[w] then present := np;
        else B3_stopRun(w, FALSE, 0, np, nq, FALSE); end if;
        empty(w, FALSE);
      else B4_loseElsewhere(w, FALSE, TRUE, FALSE, heard); end if;
    end with;
  end while;
end process;

process Notice \in Ids("notice")                 \* (+) a pod says that it is being preempted: it leaves
begin
NoticeL: while TRUE do
    await On("preempt") /\ noise /\ Managed /\ phase \in Rounds /\ present[self[2]] /\ self[2] \notin Answered /\ toQuit[self[2]] = "no";
    with w = self[2],
         rest = Leaving(Marked \ {w}),
         nq = [v \in Workers |-> IF v = w THEN "preempted" ELSE IF rest[v] # "no" THEN rest[v] ELSE toQuit[v]],
         nin = [v \in Workers |-> IF present[v] THEN innerPhase[v] ELSE "Restarting"] do
      phase := "Restarting"; innerPhase := nin; toQuit := nq; clear();
    end with;
  end while;
end process;

process Running \in Ids("running")               \* (+) the platform confirms a pod that is not heard yet
begin
RunningL: while TRUE do await On("plain") /\ Managed /\ ~placed[self[2]]; placed[self[2]] := TRUE; end while;
end process;

process Suspect \in Ids("suspect")               \* (+) silence alone: a flag
begin
SuspectL: while TRUE do await On("suspect") /\ Managed /\ present[self[2]]; suspect[self[2]] := ~suspect[self[2]]; end while;
end process;

\* ---- (+) deadlines: each may pass at any time after it is set -------------------------
fair process PlacingDeadline = "placing"
begin
PlacingL: while TRUE do
    await Managed /\ Deadline = "placing";
    if adopting then giveUpAdopting(heard); else B7_close("placing"); end if;
  end while;
end process;

fair process RoundDeadline = "round"             \* no answer is taken as Error
begin
RoundL: while TRUE do
    await Deadline = "round";
    with e = [w \in Workers |-> errored[w] \/ ~finished[w]] do B2_answered(finished, e, failed, told); end with;
  end while;
end process;

fair process HangDeadline = "hang"               \* no progress at all: nothing can be lost any more
begin
HangL: while TRUE do
    await Managed /\ Deadline = "hang";
    with nq = Leaving(Marked) do
      ended := ended + 1; B3_stopRun(First(Marked), TRUE, 2, present, nq, TRUE);
    end with;
  end while;
end process;

\* ---- (+) plain: somebody runs without Aegis, so all do; one counted failure ------------
process Plain \in Ids("plain")
begin
PlainL: while TRUE do
    await On("plain") /\ MayGoPlain /\ ~present[self[2]];
    with w = self[2] do
      mode := "plain"; phase := "RunCommand"; innerPhase := All("RunCommand"); clear(); toQuit := None; noAdopting();
      started := TRUE; massQuit := 0;
      retries[w] := retries[w] + 1; failures := failures + 1; recoverCount := Min(recoverCount + 1, MaxRetry); counted := TRUE;
      ended := ended + 1;
      if On("move") then holder := w; evidence := 0; moved := FALSE; end if;
    end with;
  end while;
end process;

process PlainOver \in Ids("plainOver")           \* it is over already when it is heard of
begin
PlainOverL: while TRUE do
    await On("plain") /\ MayGoPlain /\ ~present[self[2]];
    with w = self[2], ok \in BOOLEAN, f = [v \in Workers |-> ok /\ v = w], p = IF ~ok THEN "Failed" ELSE IF N = 1 THEN "Succeed" ELSE "RunCommand" do
      mode := "plain"; phase := p; innerPhase := All(p); toQuit := None; noAdopting();
      finished := f; errored := All(FALSE); failed := All(""); mark := All(""); told := All(FALSE);
      started := TRUE; massQuit := 0;
      retries[w] := retries[w] + 1; failures := failures + 1; recoverCount := Min(recoverCount + 1, MaxRetry); counted := TRUE;
      ended := ended + 1;
      if ~ok then failedReason := "exited"; shouldQuit := TRUE; end if;
      if On("move") then holder := w; evidence := 0; moved := FALSE; end if;
    end with;
  end while;
end process;

fair process PendingDeadline = "pending"
begin
PendingL: while TRUE do
    await Managed /\ Deadline = "pending" /\ (\E v \in Workers : ~present[v]);
    with w = First({v \in Workers : ~present[v]}) do
      mode := "plain"; phase := "RunCommand"; innerPhase := All("RunCommand"); clear(); toQuit := None; noAdopting();
      started := TRUE; massQuit := 0;
      retries[w] := retries[w] + 1; failures := failures + 1; recoverCount := Min(recoverCount + 1, MaxRetry); counted := TRUE;
      ended := ended + 1;
      if On("move") then holder := w; evidence := 0; moved := FALSE; end if;
    end with;
  end while;
end process;

fair process PlainExit \in Ids("plainExit")
begin
PlainExitL: while TRUE do
    await Live /\ mode = "plain" /\ ~finished[self[2]];
    either
      with f = [finished EXCEPT ![self[2]] = TRUE] do
        if \A v \in Workers : f[v] then finished := f; phase := "Succeed"; innerPhase := All("Succeed"); else finished := f; end if;
      end with;
    or B7_close("exited"); end either;
  end while;
end process;

\* ---- E3: told from outside ------------------------------------------------------------
process Stop = "stop"
begin
StopL: while TRUE do await On("stop") /\ Live; B7_close("stopped"); end while;
end process;

process Suspend = "suspend"                      \* (+)
begin
SuspendL: while TRUE do
    await On("suspend") /\ noise /\ Managed /\ ~suspended;
    suspended := TRUE; noAdopting();
    if phase # "Pending" then phase := "Pending"; innerPhase := All("Pending"); clear(); end if;
  end while;
end process;

process Resume = "resume"                        \* (+)
begin
ResumeL: while TRUE do
    await suspended;
    suspended := FALSE;
    if (\A w \in Workers : present[w]) /\ toQuit = None then B2_round("BootChecking", present, None); end if;
  end while;
end process;

process Restart = "restart"                      \* (+) restart in place, not counted
begin
RestartL: while TRUE do
    await On("restart") /\ noise /\ Managed /\ phase = "RunCommand";
    with w = First(Workers), nq = Leaving(Marked) do
      B3_stopRun(w, FALSE, 0, present, nq, TRUE);
    end with;
  end while;
end process;

process Healthy = "healthy"                      \* (+) retryResetAfter: the budget is given back
begin
HealthyL: while TRUE do
    await On("healthy") /\ noise /\ Managed /\ phase = "RunCommand" /\ failures > 0;
    failures := 0; recoverCount := 0; retries := All(0); ended := 0;
  end while;
end process;

process Era = "era"                              \* (+) another store: ask what runs, stop nothing
begin
EraL: while TRUE do
    await On("era") /\ noise /\ Managed /\ ~suspended;
    phase := "Restarting"; innerPhase := All("Restarting"); present := All(FALSE); toQuit := None; suspect := All(FALSE); clear();
    adopting := TRUE; runs := "none"; heard := "none";
  end while;
end process;

fair process Quiet = "quiet"                     \* people and platform let the job alone in the end
begin
QuietL: while TRUE do await On("quiet") /\ noise; noise := FALSE; end while;
end process;
end algorithm; *)
\* BEGIN TRANSLATION
VARIABLES phase, mode, recoverCount, failures, shouldQuit, failedReason, 
          started, booted, counted, holder, evidence, moved, massQuit, 
          portRetries, suspended, adopting, runs, heard, innerPhase, present, 
          placed, finished, errored, failed, retries, uncounted, toQuit, mark, 
          suspect, told, noise, ended

(* define statement *)
Live       == phase \notin Terminal \cup {"Init"}
Managed    == Live /\ mode = "managed"
Marked     == {w \in Workers : mark[w] # ""}
Hung       == \E w \in Workers : mark[w] = "hang"
Answered   == {w \in Workers : finished[w] \/ errored[w]}
Spent      == failures > MaxRetry
MayGoPlain == Managed /\ ~started /\ ~suspended /\ phase # "RunCommand"

Deadline   == CASE phase = "Pending" /\ suspended -> "none"
                [] phase = "Pending" /\ ~started /\ toQuit = None /\ (\A w \in Workers : placed[w]) -> "pending"
                [] phase \in {"Pending","Restarting"} -> "placing"
                [] phase \in Checks -> "round"
                [] phase = "RunCommand" /\ Hung -> "hang"
                [] OTHER -> "none"

Order      == CASE phase \in Terminal -> "quit"
                [] phase = "Pending" -> IF suspended THEN "stop" ELSE "wait"
                [] phase = "BootChecking" -> "bootcheck"
                [] phase = "Troubleshooting" -> "troubleshoot"
                [] phase = "Restarting" -> IF adopting THEN "wait" ELSE "stop"
                [] phase = "RunCommand" -> IF mode = "plain" THEN "plain" ELSE IF Hung THEN "hang" ELSE "command"
                [] OTHER -> "none"


vars == << phase, mode, recoverCount, failures, shouldQuit, failedReason, 
           started, booted, counted, holder, evidence, moved, massQuit, 
           portRetries, suspended, adopting, runs, heard, innerPhase, present, 
           placed, finished, errored, failed, retries, uncounted, toQuit, 
           mark, suspect, told, noise, ended >>

ProcSet == {"create"} \cup (Ids("finish")) \cup (Ids("finishHung")) \cup (Ids("checked")) \cup (Ids("undiagnosed")) \cup (Ids("failing")) \cup (Ids("portTaken")) \cup (Ids("notStarted")) \cup (Ids("lateError")) \cup (Ids("lateNotice")) \cup (Ids("mark")) \cup {"checkpoint"} \cup (Ids("ready")) \cup (Ids("lost")) \cup (Ids("left")) \cup (Ids("preempted")) \cup (Ids("notice")) \cup (Ids("running")) \cup (Ids("suspect")) \cup {"placing"} \cup {"round"} \cup {"hang"} \cup (Ids("plain")) \cup (Ids("plainOver")) \cup {"pending"} \cup (Ids("plainExit")) \cup {"stop"} \cup {"suspend"} \cup {"resume"} \cup {"restart"} \cup {"healthy"} \cup {"era"} \cup {"quiet"}

Init == (* Global variables *)
        /\ phase = "Init"
        /\ mode = "managed"
        /\ recoverCount = 0
        /\ failures = 0
        /\ shouldQuit = FALSE
        /\ failedReason = "none"
        /\ started = FALSE
        /\ booted = FALSE
        /\ counted = FALSE
        /\ holder = "none"
        /\ evidence = 0
        /\ moved = FALSE
        /\ massQuit = 0
        /\ portRetries = 0
        /\ suspended = FALSE
        /\ adopting = FALSE
        /\ runs = "none"
        /\ heard = "none"
        /\ innerPhase = All("Init")
        /\ present = All(FALSE)
        /\ placed = All(FALSE)
        /\ finished = All(FALSE)
        /\ errored = All(FALSE)
        /\ failed = All("")
        /\ retries = All(0)
        /\ uncounted = All(0)
        /\ toQuit = None
        /\ mark = All("")
        /\ suspect = All(FALSE)
        /\ told = All(FALSE)
        /\ noise = TRUE
        /\ ended = 0

B1_Create == /\ phase = "Init"
             /\ phase' = "Pending"
             /\ innerPhase' = All("Pending")
             /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, 
                             failedReason, started, booted, counted, holder, 
                             evidence, moved, massQuit, portRetries, suspended, 
                             adopting, runs, heard, present, placed, finished, 
                             errored, failed, retries, uncounted, toQuit, mark, 
                             suspect, told, noise, ended >>

Finish(self) == /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]] /\ mark[self[2]] # "hang"
                /\ LET w == self[2] IN
                     LET f == [finished EXCEPT ![w] = TRUE] IN
                       /\ mark' = [mark EXCEPT ![w] = ""]
                       /\ IF \A v \in Workers : f[v]
                             THEN /\ finished' = f
                                  /\ phase' = "Succeed"
                                  /\ innerPhase' = All("Succeed")
                             ELSE /\ finished' = f
                                  /\ UNCHANGED << phase, innerPhase >>
                /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, 
                                failedReason, started, booted, counted, holder, 
                                evidence, moved, massQuit, portRetries, 
                                suspended, adopting, runs, heard, present, 
                                placed, errored, failed, retries, uncounted, 
                                toQuit, suspect, told, noise, ended >>

FinishHung(self) == /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]] /\ mark[self[2]] = "hang"
                    /\ LET w == self[2] IN
                         LET f == [finished EXCEPT ![w] = TRUE] IN
                           /\ mark' = [mark EXCEPT ![w] = ""]
                           /\ IF \A v \in Workers : f[v]
                                 THEN /\ finished' = f
                                      /\ phase' = "Succeed"
                                      /\ innerPhase' = All("Succeed")
                                 ELSE /\ finished' = f
                                      /\ UNCHANGED << phase, innerPhase >>
                    /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, 
                                    failedReason, started, booted, counted, 
                                    holder, evidence, moved, massQuit, 
                                    portRetries, suspended, adopting, runs, 
                                    heard, present, placed, errored, failed, 
                                    retries, uncounted, toQuit, suspect, told, 
                                    noise, ended >>

Checked(self) == /\ phase \in Checks /\ self[2] \notin Answered /\ toQuit[self[2]] = "no"
                 /\ LET w == self[2] IN
                      \E r \in       {""} \cup (IF On("check") THEN {"node","performance"} ELSE {}) \cup (IF On("checks") THEN Noted ELSE {})
                               \cup (IF On("levels") THEN {"container"} ELSE {}):
                        \E tells \in {FALSE, On("pairs")}:
                          LET f == [finished EXCEPT ![w] = TRUE] IN
                            LET x == [failed EXCEPT ![w] = r] IN
                              LET t == [told EXCEPT ![w] = tells] IN
                                LET waits == \E v \in Workers : ~f[v] /\ ~errored[v] IN
                                  LET tellers == {v \in Workers : t[v]} IN
                                    LET others == Wants(toQuit, errored, x) IN
                                      \E verdict \in IF waits \/ tellers = {} \/ others # {} THEN {NoVerdict} ELSE Verdicts(tellers):
                                        LET y == IF waits THEN x ELSE Weighed(verdict, x, tellers, others, massQuit > 0) IN
                                          LET common == Common(toQuit, errored, y) IN
                                            LET out == OrderOut(toQuit, errored, y) IN
                                              IF waits \/ (common /\ massQuit > 0)
                                                 THEN /\ finished' = f
                                                      /\ errored' = errored
                                                      /\ failed' = y
                                                      /\ told' = t
                                                      /\ IF ~waits
                                                            THEN /\ phase' = "Failed"
                                                                 /\ innerPhase' = All("Failed")
                                                                 /\ failedReason' = "boot"
                                                                 /\ shouldQuit' = TRUE
                                                                 /\ toQuit' = None
                                                                 /\ mark' = All("")
                                                                 /\ suspended' = FALSE
                                                                 /\ adopting' = FALSE
                                                                 /\ runs' = "none"
                                                                 /\ heard' = "none"
                                                            ELSE /\ TRUE
                                                                 /\ UNCHANGED << phase, 
                                                                                 shouldQuit, 
                                                                                 failedReason, 
                                                                                 suspended, 
                                                                                 adopting, 
                                                                                 runs, 
                                                                                 heard, 
                                                                                 innerPhase, 
                                                                                 toQuit, 
                                                                                 mark >>
                                                      /\ UNCHANGED << started, 
                                                                      booted, 
                                                                      counted, 
                                                                      holder, 
                                                                      evidence, 
                                                                      moved, 
                                                                      massQuit, 
                                                                      present, 
                                                                      retries, 
                                                                      uncounted >>
                                                 ELSE /\ IF common
                                                            THEN /\ massQuit' = 1
                                                                 /\ finished' = All(FALSE)
                                                                 /\ errored' = All(FALSE)
                                                                 /\ failed' = All("")
                                                                 /\ told' = All(FALSE)
                                                                 /\ mark' = All("")
                                                                 /\ innerPhase' = All(phase)
                                                                 /\ UNCHANGED << phase, 
                                                                                 started, 
                                                                                 booted, 
                                                                                 counted, 
                                                                                 holder, 
                                                                                 evidence, 
                                                                                 moved, 
                                                                                 adopting, 
                                                                                 runs, 
                                                                                 heard, 
                                                                                 present, 
                                                                                 retries, 
                                                                                 uncounted, 
                                                                                 toQuit >>
                                                            ELSE /\ IF out # None
                                                                       THEN /\ phase' = "Restarting"
                                                                            /\ finished' = All(FALSE)
                                                                            /\ errored' = All(FALSE)
                                                                            /\ failed' = All("")
                                                                            /\ told' = All(FALSE)
                                                                            /\ mark' = All("")
                                                                            /\ toQuit' = out
                                                                            /\ UNCHANGED << started, 
                                                                                            booted, 
                                                                                            counted, 
                                                                                            holder, 
                                                                                            evidence, 
                                                                                            moved, 
                                                                                            massQuit, 
                                                                                            adopting, 
                                                                                            runs, 
                                                                                            heard, 
                                                                                            innerPhase, 
                                                                                            present, 
                                                                                            retries, 
                                                                                            uncounted >>
                                                                       ELSE /\ phase' = "RunCommand"
                                                                            /\ innerPhase' = All("RunCommand")
                                                                            /\ present' = present
                                                                            /\ toQuit' = None
                                                                            /\ finished' = All(FALSE)
                                                                            /\ errored' = All(FALSE)
                                                                            /\ failed' = All("")
                                                                            /\ told' = All(FALSE)
                                                                            /\ mark' = [v \in Workers |-> IF v \in (verdict.slow) THEN "slow" ELSE ""]
                                                                            /\ retries' = All(recoverCount)
                                                                            /\ uncounted' = All(0)
                                                                            /\ started' = TRUE
                                                                            /\ booted' = TRUE
                                                                            /\ massQuit' = 0
                                                                            /\ counted' = FALSE
                                                                            /\ holder' = "none"
                                                                            /\ evidence' = 0
                                                                            /\ moved' = FALSE
                                                                            /\ adopting' = FALSE
                                                                            /\ runs' = "none"
                                                                            /\ heard' = "none"
                                                      /\ UNCHANGED << shouldQuit, 
                                                                      failedReason, 
                                                                      suspended >>
                 /\ UNCHANGED << mode, recoverCount, failures, portRetries, 
                                 placed, suspect, noise, ended >>

Undiagnosed(self) == /\ phase \in Checks /\ self[2] \notin Answered /\ toQuit[self[2]] = "no"
                     /\ LET w == self[2] IN
                          \E r \in {""} \cup (IF On("check") THEN {"node"} ELSE {}):
                            LET e == [errored EXCEPT ![w] = TRUE] IN
                              LET x == [failed EXCEPT ![w] = r] IN
                                LET waits == \E v \in Workers : ~finished[v] /\ ~e[v] IN
                                  LET tellers == {v \in Workers : told[v]} IN
                                    LET others == Wants(toQuit, e, x) IN
                                      \E verdict \in IF waits \/ tellers = {} \/ others # {} THEN {NoVerdict} ELSE Verdicts(tellers):
                                        LET y == IF waits THEN x ELSE Weighed(verdict, x, tellers, others, massQuit > 0) IN
                                          LET common == Common(toQuit, e, y) IN
                                            LET out == OrderOut(toQuit, e, y) IN
                                              IF waits \/ (common /\ massQuit > 0)
                                                 THEN /\ finished' = finished
                                                      /\ errored' = e
                                                      /\ failed' = y
                                                      /\ told' = told
                                                      /\ IF ~waits
                                                            THEN /\ phase' = "Failed"
                                                                 /\ innerPhase' = All("Failed")
                                                                 /\ failedReason' = "boot"
                                                                 /\ shouldQuit' = TRUE
                                                                 /\ toQuit' = None
                                                                 /\ mark' = All("")
                                                                 /\ suspended' = FALSE
                                                                 /\ adopting' = FALSE
                                                                 /\ runs' = "none"
                                                                 /\ heard' = "none"
                                                            ELSE /\ TRUE
                                                                 /\ UNCHANGED << phase, 
                                                                                 shouldQuit, 
                                                                                 failedReason, 
                                                                                 suspended, 
                                                                                 adopting, 
                                                                                 runs, 
                                                                                 heard, 
                                                                                 innerPhase, 
                                                                                 toQuit, 
                                                                                 mark >>
                                                      /\ UNCHANGED << started, 
                                                                      booted, 
                                                                      counted, 
                                                                      holder, 
                                                                      evidence, 
                                                                      moved, 
                                                                      massQuit, 
                                                                      present, 
                                                                      retries, 
                                                                      uncounted >>
                                                 ELSE /\ IF common
                                                            THEN /\ massQuit' = 1
                                                                 /\ finished' = All(FALSE)
                                                                 /\ errored' = All(FALSE)
                                                                 /\ failed' = All("")
                                                                 /\ told' = All(FALSE)
                                                                 /\ mark' = All("")
                                                                 /\ innerPhase' = All(phase)
                                                                 /\ UNCHANGED << phase, 
                                                                                 started, 
                                                                                 booted, 
                                                                                 counted, 
                                                                                 holder, 
                                                                                 evidence, 
                                                                                 moved, 
                                                                                 adopting, 
                                                                                 runs, 
                                                                                 heard, 
                                                                                 present, 
                                                                                 retries, 
                                                                                 uncounted, 
                                                                                 toQuit >>
                                                            ELSE /\ IF out # None
                                                                       THEN /\ phase' = "Restarting"
                                                                            /\ finished' = All(FALSE)
                                                                            /\ errored' = All(FALSE)
                                                                            /\ failed' = All("")
                                                                            /\ told' = All(FALSE)
                                                                            /\ mark' = All("")
                                                                            /\ toQuit' = out
                                                                            /\ UNCHANGED << started, 
                                                                                            booted, 
                                                                                            counted, 
                                                                                            holder, 
                                                                                            evidence, 
                                                                                            moved, 
                                                                                            massQuit, 
                                                                                            adopting, 
                                                                                            runs, 
                                                                                            heard, 
                                                                                            innerPhase, 
                                                                                            present, 
                                                                                            retries, 
                                                                                            uncounted >>
                                                                       ELSE /\ phase' = "RunCommand"
                                                                            /\ innerPhase' = All("RunCommand")
                                                                            /\ present' = present
                                                                            /\ toQuit' = None
                                                                            /\ finished' = All(FALSE)
                                                                            /\ errored' = All(FALSE)
                                                                            /\ failed' = All("")
                                                                            /\ told' = All(FALSE)
                                                                            /\ mark' = [v \in Workers |-> IF v \in (verdict.slow) THEN "slow" ELSE ""]
                                                                            /\ retries' = All(recoverCount)
                                                                            /\ uncounted' = All(0)
                                                                            /\ started' = TRUE
                                                                            /\ booted' = TRUE
                                                                            /\ massQuit' = 0
                                                                            /\ counted' = FALSE
                                                                            /\ holder' = "none"
                                                                            /\ evidence' = 0
                                                                            /\ moved' = FALSE
                                                                            /\ adopting' = FALSE
                                                                            /\ runs' = "none"
                                                                            /\ heard' = "none"
                                                      /\ UNCHANGED << shouldQuit, 
                                                                      failedReason, 
                                                                      suspended >>
                     /\ UNCHANGED << mode, recoverCount, failures, portRetries, 
                                     placed, suspect, noise, ended >>

Failing(self) == /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]]
                 /\ LET w == self[2] IN
                      \E str \in IF On("move") THEN {4, 3, 2, 1} ELSE {2}:
                        LET nq == Leaving(Marked) IN
                          /\ ended' = ended + 1
                          /\ portRetries' = 0
                          /\ LET spent == TRUE /\ ~counted /\ failures >= MaxRetry IN
                               LET on == (\A v \in Workers : present[v]) /\ (TRUE \/ nq = None) IN
                                 LET nin == [v \in Workers |-> IF present[v] /\ (v # w \/ TRUE) THEN innerPhase[v] ELSE "Restarting"] IN
                                   /\ IF TRUE /\ ~counted
                                         THEN /\ retries' = [retries EXCEPT ![w] = retries[w] + 1]
                                              /\ failures' = failures + 1
                                              /\ counted' = TRUE
                                              /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                              /\ IF On("move")
                                                    THEN /\ holder' = w
                                                         /\ evidence' = str
                                                         /\ moved' = FALSE
                                                    ELSE /\ TRUE
                                                         /\ UNCHANGED << holder, 
                                                                         evidence, 
                                                                         moved >>
                                         ELSE /\ TRUE
                                              /\ UNCHANGED << recoverCount, 
                                                              failures, 
                                                              counted, holder, 
                                                              evidence, moved, 
                                                              retries >>
                                   /\ finished' = All(FALSE)
                                   /\ errored' = All(FALSE)
                                   /\ failed' = All("")
                                   /\ told' = All(FALSE)
                                   /\ mark' = All("")
                                   /\ present' = present
                                   /\ IF spent
                                         THEN /\ phase' = "Failed"
                                              /\ innerPhase' = All("Failed")
                                              /\ failedReason' = "budget"
                                              /\ shouldQuit' = TRUE
                                              /\ toQuit' = None
                                         ELSE /\ IF on
                                                    THEN /\ phase' = "Troubleshooting"
                                                         /\ innerPhase' = All("Troubleshooting")
                                                         /\ toQuit' = nq
                                                    ELSE /\ phase' = "Restarting"
                                                         /\ innerPhase' = nin
                                                         /\ toQuit' = nq
                                              /\ UNCHANGED << shouldQuit, 
                                                              failedReason >>
                 /\ UNCHANGED << mode, started, booted, massQuit, suspended, 
                                 adopting, runs, heard, placed, uncounted, 
                                 suspect, noise >>

PortTaken(self) == /\ On("port") /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]]
                   /\ LET w == self[2] IN
                        LET free == portRetries < MaxPort IN
                          LET nq == Leaving(Marked) IN
                            /\ IF ~free
                                  THEN /\ ended' = ended + 1
                                  ELSE /\ TRUE
                                       /\ ended' = ended
                            /\ portRetries' = IF free THEN portRetries + 1 ELSE 0
                            /\ LET spent == (~free) /\ ~counted /\ failures >= MaxRetry IN
                                 LET on == (\A v \in Workers : present[v]) /\ (TRUE \/ nq = None) IN
                                   LET nin == [v \in Workers |-> IF present[v] /\ (v # w \/ TRUE) THEN innerPhase[v] ELSE "Restarting"] IN
                                     /\ IF (~free) /\ ~counted
                                           THEN /\ retries' = [retries EXCEPT ![w] = retries[w] + 1]
                                                /\ failures' = failures + 1
                                                /\ counted' = TRUE
                                                /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                                /\ IF On("move")
                                                      THEN /\ holder' = w
                                                           /\ evidence' = 2
                                                           /\ moved' = FALSE
                                                      ELSE /\ TRUE
                                                           /\ UNCHANGED << holder, 
                                                                           evidence, 
                                                                           moved >>
                                           ELSE /\ TRUE
                                                /\ UNCHANGED << recoverCount, 
                                                                failures, 
                                                                counted, 
                                                                holder, 
                                                                evidence, 
                                                                moved, retries >>
                                     /\ finished' = All(FALSE)
                                     /\ errored' = All(FALSE)
                                     /\ failed' = All("")
                                     /\ told' = All(FALSE)
                                     /\ mark' = All("")
                                     /\ present' = present
                                     /\ IF spent
                                           THEN /\ phase' = "Failed"
                                                /\ innerPhase' = All("Failed")
                                                /\ failedReason' = "budget"
                                                /\ shouldQuit' = TRUE
                                                /\ toQuit' = None
                                           ELSE /\ IF on
                                                      THEN /\ phase' = "Troubleshooting"
                                                           /\ innerPhase' = All("Troubleshooting")
                                                           /\ toQuit' = nq
                                                      ELSE /\ phase' = "Restarting"
                                                           /\ innerPhase' = nin
                                                           /\ toQuit' = nq
                                                /\ UNCHANGED << shouldQuit, 
                                                                failedReason >>
                   /\ UNCHANGED << mode, started, booted, massQuit, suspended, 
                                   adopting, runs, heard, placed, uncounted, 
                                   suspect, noise >>

NotStarted(self) == /\ On("command") /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]]
                    /\ phase' = "Failed"
                    /\ innerPhase' = All("Failed")
                    /\ failedReason' = "command"
                    /\ shouldQuit' = TRUE
                    /\ toQuit' = None
                    /\ mark' = All("")
                    /\ suspended' = FALSE
                    /\ adopting' = FALSE
                    /\ runs' = "none"
                    /\ heard' = "none"
                    /\ UNCHANGED << mode, recoverCount, failures, started, 
                                    booted, counted, holder, evidence, moved, 
                                    massQuit, portRetries, present, placed, 
                                    finished, errored, failed, retries, 
                                    uncounted, suspect, told, noise, ended >>

LateError(self) == /\ On("move") /\ phase \in {"Restarting","Troubleshooting"} /\ present[self[2]] /\ counted /\ ~moved /\ holder # self[2]
                   /\ LET w == self[2] IN
                        \E str \in {s \in {4, 3, 2} : s > evidence}:
                          /\ retries' = [retries EXCEPT ![holder] = @ - 1, ![w] = @ + 1]
                          /\ holder' = w
                          /\ evidence' = str
                          /\ moved' = TRUE
                   /\ UNCHANGED << phase, mode, recoverCount, failures, 
                                   shouldQuit, failedReason, started, booted, 
                                   counted, massQuit, portRetries, suspended, 
                                   adopting, runs, heard, innerPhase, present, 
                                   placed, finished, errored, failed, 
                                   uncounted, toQuit, mark, suspect, told, 
                                   noise, ended >>

LateNotice(self) == /\ On("move") /\ On("preempt") /\ noise /\ phase \in {"Restarting","Troubleshooting"} /\ present[self[2]] /\ counted /\ holder # "nobody"
                    /\ LET f == failures - 1 IN
                         /\ retries' = [retries EXCEPT ![holder] = retries[holder] - 1]
                         /\ failures' = f
                         /\ ended' = ended - 1
                         /\ recoverCount' = Min(f, MaxRetry)
                         /\ holder' = "nobody"
                         /\ evidence' = 0
                         /\ moved' = TRUE
                    /\ UNCHANGED << phase, mode, shouldQuit, failedReason, 
                                    started, booted, counted, massQuit, 
                                    portRetries, suspended, adopting, runs, 
                                    heard, innerPhase, present, placed, 
                                    finished, errored, failed, uncounted, 
                                    toQuit, mark, suspect, told, noise >>

Mark(self) == /\ On("mark") /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]]
              /\ \E m \in {"", "hang", "slow"} \ {mark[self[2]]}:
                   mark' = [mark EXCEPT ![self[2]] = m]
              /\ UNCHANGED << phase, mode, recoverCount, failures, shouldQuit, 
                              failedReason, started, booted, counted, holder, 
                              evidence, moved, massQuit, portRetries, 
                              suspended, adopting, runs, heard, innerPhase, 
                              present, placed, finished, errored, failed, 
                              retries, uncounted, toQuit, suspect, told, noise, 
                              ended >>

Checkpoint == /\ Managed /\ phase = "RunCommand" /\ Marked # {}
              /\ LET nq == Leaving(Marked) IN
                   /\ ended' = ended + 1
                   /\ LET spent == TRUE /\ ~counted /\ failures >= MaxRetry IN
                        LET on == (\A v \in Workers : present[v]) /\ (TRUE \/ nq = None) IN
                          LET nin == [v \in Workers |-> IF present[v] /\ (v # (First(Marked)) \/ TRUE) THEN innerPhase[v] ELSE "Restarting"] IN
                            /\ IF TRUE /\ ~counted
                                  THEN /\ retries' = [retries EXCEPT ![(First(Marked))] = retries[(First(Marked))] + 1]
                                       /\ failures' = failures + 1
                                       /\ counted' = TRUE
                                       /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                       /\ IF On("move")
                                             THEN /\ holder' = First(Marked)
                                                  /\ evidence' = 2
                                                  /\ moved' = FALSE
                                             ELSE /\ TRUE
                                                  /\ UNCHANGED << holder, 
                                                                  evidence, 
                                                                  moved >>
                                  ELSE /\ TRUE
                                       /\ UNCHANGED << recoverCount, failures, 
                                                       counted, holder, 
                                                       evidence, moved, 
                                                       retries >>
                            /\ finished' = All(FALSE)
                            /\ errored' = All(FALSE)
                            /\ failed' = All("")
                            /\ told' = All(FALSE)
                            /\ mark' = All("")
                            /\ present' = present
                            /\ IF spent
                                  THEN /\ phase' = "Failed"
                                       /\ innerPhase' = All("Failed")
                                       /\ failedReason' = "budget"
                                       /\ shouldQuit' = TRUE
                                       /\ toQuit' = None
                                  ELSE /\ IF on
                                             THEN /\ phase' = "Troubleshooting"
                                                  /\ innerPhase' = All("Troubleshooting")
                                                  /\ toQuit' = nq
                                             ELSE /\ phase' = "Restarting"
                                                  /\ innerPhase' = nin
                                                  /\ toQuit' = nq
                                       /\ UNCHANGED << shouldQuit, 
                                                       failedReason >>
              /\ UNCHANGED << mode, started, booted, massQuit, portRetries, 
                              suspended, adopting, runs, heard, placed, 
                              uncounted, suspect, noise >>

Ready(self) == /\ Managed /\ ~present[self[2]]
               /\ LET w == self[2] IN
                    \E says \in IF adopting THEN Says ELSE {"idle"}:
                      LET np == [present EXCEPT ![w] = TRUE] IN
                        LET on == (\A v \in Workers : np[v]) /\ toQuit = None IN
                          LET nr == IF ~adopting THEN runs ELSE IF says \in {"cur", "next"} /\ runs \in {"none", says} THEN says ELSE "mixed" IN
                            LET nh == Higher(heard, says) IN
                              /\ placed' = [placed EXCEPT ![w] = TRUE /\ On("plain")]
                              /\ suspect' = [suspect EXCEPT ![w] = FALSE]
                              /\ IF phase = "Pending" /\ on /\ ~suspended
                                    THEN /\ phase' = "BootChecking"
                                         /\ innerPhase' = All("BootChecking")
                                         /\ present' = np
                                         /\ toQuit' = None
                                         /\ finished' = All(FALSE)
                                         /\ errored' = All(FALSE)
                                         /\ failed' = All("")
                                         /\ told' = All(FALSE)
                                         /\ mark' = All("")
                                         /\ UNCHANGED << started, booted, 
                                                         counted, holder, 
                                                         evidence, moved, 
                                                         massQuit, adopting, 
                                                         runs, heard, retries, 
                                                         uncounted >>
                                    ELSE /\ IF phase = "Restarting" /\ on
                                               THEN /\ IF adopting /\ (nr = "next" \/ (nr = "cur" /\ ~counted))
                                                          THEN /\ phase' = "RunCommand"
                                                               /\ innerPhase' = All("RunCommand")
                                                               /\ present' = np
                                                               /\ toQuit' = None
                                                               /\ finished' = All(FALSE)
                                                               /\ errored' = All(FALSE)
                                                               /\ failed' = All("")
                                                               /\ told' = All(FALSE)
                                                               /\ mark' = [v \in Workers |-> IF v \in ({}) THEN "slow" ELSE ""]
                                                               /\ retries' = All(recoverCount)
                                                               /\ uncounted' = All(0)
                                                               /\ started' = TRUE
                                                               /\ booted' = TRUE
                                                               /\ massQuit' = 0
                                                               /\ counted' = FALSE
                                                               /\ holder' = "none"
                                                               /\ evidence' = 0
                                                               /\ moved' = FALSE
                                                               /\ adopting' = FALSE
                                                               /\ runs' = "none"
                                                               /\ heard' = "none"
                                                          ELSE /\ IF adopting
                                                                     THEN /\ started' = (started \/ nh # "none")
                                                                          /\ IF nh = "next"
                                                                                THEN /\ counted' = FALSE
                                                                                     /\ holder' = "none"
                                                                                     /\ evidence' = 0
                                                                                     /\ moved' = FALSE
                                                                                ELSE /\ TRUE
                                                                                     /\ UNCHANGED << counted, 
                                                                                                     holder, 
                                                                                                     evidence, 
                                                                                                     moved >>
                                                                          /\ adopting' = FALSE
                                                                          /\ runs' = "none"
                                                                          /\ heard' = "none"
                                                                     ELSE /\ TRUE
                                                                          /\ UNCHANGED << started, 
                                                                                          counted, 
                                                                                          holder, 
                                                                                          evidence, 
                                                                                          moved, 
                                                                                          adopting, 
                                                                                          runs, 
                                                                                          heard >>
                                                               /\ phase' = IF booted THEN "Troubleshooting" ELSE "BootChecking"
                                                               /\ innerPhase' = All((IF booted THEN "Troubleshooting" ELSE "BootChecking"))
                                                               /\ present' = np
                                                               /\ toQuit' = None
                                                               /\ finished' = All(FALSE)
                                                               /\ errored' = All(FALSE)
                                                               /\ failed' = All("")
                                                               /\ told' = All(FALSE)
                                                               /\ mark' = All("")
                                                               /\ UNCHANGED << booted, 
                                                                               massQuit, 
                                                                               retries, 
                                                                               uncounted >>
                                               ELSE /\ present' = np
                                                    /\ runs' = nr
                                                    /\ heard' = nh
                                                    /\ UNCHANGED << phase, 
                                                                    started, 
                                                                    booted, 
                                                                    counted, 
                                                                    holder, 
                                                                    evidence, 
                                                                    moved, 
                                                                    massQuit, 
                                                                    adopting, 
                                                                    innerPhase, 
                                                                    finished, 
                                                                    errored, 
                                                                    failed, 
                                                                    retries, 
                                                                    uncounted, 
                                                                    toQuit, 
                                                                    mark, told >>
               /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, 
                               failedReason, portRetries, suspended, noise, 
                               ended >>

Lost(self) == /\ Managed /\ (phase # "RunCommand" \/ present[self[2]] \/ placed[self[2]])
              /\ LET w == self[2] IN
                   \E refill \in {FALSE, present[w]}:
                     \E early \in {FALSE, On("move")}:
                       \E says \in IF adopting /\ refill THEN Says ELSE {"idle"}:
                         LET np == [present EXCEPT ![w] = refill] IN
                           LET nq == Leaving(Marked \ {w}) IN
                             IF phase = "RunCommand"
                                THEN /\ IF finished[w]
                                           THEN /\ present' = np
                                                /\ UNCHANGED << phase, 
                                                                recoverCount, 
                                                                failures, 
                                                                shouldQuit, 
                                                                failedReason, 
                                                                counted, 
                                                                holder, 
                                                                evidence, 
                                                                moved, 
                                                                innerPhase, 
                                                                finished, 
                                                                errored, 
                                                                failed, 
                                                                retries, 
                                                                toQuit, mark, 
                                                                told, ended >>
                                           ELSE /\ ended' = ended + 1
                                                /\ LET spent == TRUE /\ ~counted /\ failures >= MaxRetry IN
                                                     LET on == (\A v \in Workers : np[v]) /\ (FALSE \/ nq = None) IN
                                                       LET nin == [v \in Workers |-> IF np[v] /\ (v # w \/ FALSE) THEN innerPhase[v] ELSE "Restarting"] IN
                                                         /\ IF TRUE /\ ~counted
                                                               THEN /\ retries' = [retries EXCEPT ![w] = retries[w] + 1]
                                                                    /\ failures' = failures + 1
                                                                    /\ counted' = TRUE
                                                                    /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                                                    /\ IF On("move")
                                                                          THEN /\ holder' = w
                                                                               /\ evidence' = Strength.pod
                                                                               /\ moved' = FALSE
                                                                          ELSE /\ TRUE
                                                                               /\ UNCHANGED << holder, 
                                                                                               evidence, 
                                                                                               moved >>
                                                               ELSE /\ TRUE
                                                                    /\ UNCHANGED << recoverCount, 
                                                                                    failures, 
                                                                                    counted, 
                                                                                    holder, 
                                                                                    evidence, 
                                                                                    moved, 
                                                                                    retries >>
                                                         /\ finished' = All(FALSE)
                                                         /\ errored' = All(FALSE)
                                                         /\ failed' = All("")
                                                         /\ told' = All(FALSE)
                                                         /\ mark' = All("")
                                                         /\ present' = np
                                                         /\ IF spent
                                                               THEN /\ phase' = "Failed"
                                                                    /\ innerPhase' = All("Failed")
                                                                    /\ failedReason' = "budget"
                                                                    /\ shouldQuit' = TRUE
                                                                    /\ toQuit' = None
                                                               ELSE /\ IF on
                                                                          THEN /\ phase' = "Troubleshooting"
                                                                               /\ innerPhase' = All("Troubleshooting")
                                                                               /\ toQuit' = nq
                                                                          ELSE /\ phase' = "Restarting"
                                                                               /\ innerPhase' = nin
                                                                               /\ toQuit' = nq
                                                                    /\ UNCHANGED << shouldQuit, 
                                                                                    failedReason >>
                                     /\ placed' = [placed EXCEPT ![w] = refill /\ On("plain")]
                                     /\ suspect' = [suspect EXCEPT ![w] = FALSE]
                                     /\ UNCHANGED << started, suspended, 
                                                     adopting, runs, heard, 
                                                     uncounted >>
                                ELSE /\ LET moves == early /\ ~FALSE /\ phase \in {"Restarting","Troubleshooting"} /\ counted /\ ~moved /\ holder # w /\ Strength.pod > evidence IN
                                          LET feeds == ~moves /\ ~FALSE /\ toQuit[w] # "preempted" /\ ~suspended IN
                                            LET dead == feeds /\ uncounted[w] + 1 >= MaxUncounted IN
                                              LET lp == [present EXCEPT ![w] = refill] IN
                                                LET lq == [(IF phase \in Checks THEN OrderOut(toQuit, errored, failed) ELSE toQuit) EXCEPT ![w] = "no"] IN
                                                  LET all == (\A v \in Workers : lp[v]) /\ lq = None IN
                                                    LET lin == [v \in Workers |-> IF lp[v] /\ v # w THEN innerPhase[v] ELSE "Restarting"] IN
                                                      /\ IF moves
                                                            THEN /\ retries' = [retries EXCEPT ![holder] = @ - 1, ![w] = @ + 1]
                                                            ELSE /\ TRUE
                                                                 /\ UNCHANGED retries
                                                      /\ IF adopting /\ all /\ (Higher(heard, says)) = "next"
                                                            THEN /\ counted' = FALSE
                                                                 /\ holder' = "none"
                                                                 /\ evidence' = 0
                                                                 /\ moved' = FALSE
                                                            ELSE /\ IF moves
                                                                       THEN /\ holder' = w
                                                                            /\ evidence' = Strength.pod
                                                                            /\ moved' = TRUE
                                                                       ELSE /\ TRUE
                                                                            /\ UNCHANGED << holder, 
                                                                                            evidence, 
                                                                                            moved >>
                                                                 /\ UNCHANGED counted
                                                      /\ IF feeds
                                                            THEN /\ uncounted' = [uncounted EXCEPT ![w] = uncounted[w] + 1]
                                                            ELSE /\ TRUE
                                                                 /\ UNCHANGED uncounted
                                                      /\ IF dead
                                                            THEN /\ phase' = "Failed"
                                                                 /\ innerPhase' = All("Failed")
                                                                 /\ failedReason' = "boot"
                                                                 /\ shouldQuit' = TRUE
                                                                 /\ toQuit' = None
                                                                 /\ mark' = All("")
                                                                 /\ suspended' = FALSE
                                                                 /\ adopting' = FALSE
                                                                 /\ runs' = "none"
                                                                 /\ heard' = "none"
                                                                 /\ UNCHANGED << started, 
                                                                                 present, 
                                                                                 placed, 
                                                                                 finished, 
                                                                                 errored, 
                                                                                 failed, 
                                                                                 suspect, 
                                                                                 told >>
                                                            ELSE /\ placed' = [placed EXCEPT ![w] = refill /\ On("plain")]
                                                                 /\ suspect' = [suspect EXCEPT ![w] = FALSE]
                                                                 /\ IF phase = "Pending"
                                                                       THEN /\ IF all /\ ~suspended
                                                                                  THEN /\ phase' = "BootChecking"
                                                                                       /\ innerPhase' = All("BootChecking")
                                                                                       /\ present' = lp
                                                                                       /\ toQuit' = None
                                                                                       /\ finished' = All(FALSE)
                                                                                       /\ errored' = All(FALSE)
                                                                                       /\ failed' = All("")
                                                                                       /\ told' = All(FALSE)
                                                                                       /\ mark' = All("")
                                                                                  ELSE /\ present' = lp
                                                                                       /\ toQuit' = lq
                                                                                       /\ UNCHANGED << phase, 
                                                                                                       innerPhase, 
                                                                                                       finished, 
                                                                                                       errored, 
                                                                                                       failed, 
                                                                                                       mark, 
                                                                                                       told >>
                                                                            /\ UNCHANGED << started, 
                                                                                            adopting, 
                                                                                            runs, 
                                                                                            heard >>
                                                                       ELSE /\ IF all
                                                                                  THEN /\ IF adopting
                                                                                             THEN /\ started' = (started \/ (Higher(heard, says)) # "none")
                                                                                                  /\ adopting' = FALSE
                                                                                                  /\ runs' = "none"
                                                                                                  /\ heard' = "none"
                                                                                             ELSE /\ TRUE
                                                                                                  /\ UNCHANGED << started, 
                                                                                                                  adopting, 
                                                                                                                  runs, 
                                                                                                                  heard >>
                                                                                       /\ phase' = IF booted THEN "Troubleshooting" ELSE "BootChecking"
                                                                                       /\ innerPhase' = All((IF booted THEN "Troubleshooting" ELSE "BootChecking"))
                                                                                       /\ present' = lp
                                                                                       /\ toQuit' = None
                                                                                       /\ finished' = All(FALSE)
                                                                                       /\ errored' = All(FALSE)
                                                                                       /\ failed' = All("")
                                                                                       /\ told' = All(FALSE)
                                                                                       /\ mark' = All("")
                                                                                  ELSE /\ phase' = "Restarting"
                                                                                       /\ innerPhase' = lin
                                                                                       /\ present' = lp
                                                                                       /\ toQuit' = lq
                                                                                       /\ finished' = All(FALSE)
                                                                                       /\ errored' = All(FALSE)
                                                                                       /\ failed' = All("")
                                                                                       /\ told' = All(FALSE)
                                                                                       /\ mark' = All("")
                                                                                       /\ IF adopting
                                                                                             THEN /\ runs' = "mixed"
                                                                                                  /\ heard' = Higher(heard, says)
                                                                                             ELSE /\ TRUE
                                                                                                  /\ UNCHANGED << runs, 
                                                                                                                  heard >>
                                                                                       /\ UNCHANGED << started, 
                                                                                                       adopting >>
                                                                 /\ UNCHANGED << shouldQuit, 
                                                                                 failedReason, 
                                                                                 suspended >>
                                     /\ UNCHANGED << recoverCount, failures, 
                                                     ended >>
              /\ UNCHANGED << mode, booted, massQuit, portRetries, noise >>

Left(self) == /\ Managed /\ phase = "RunCommand" /\ present[self[2]] /\ ~finished[self[2]]
              /\ LET w == self[2] IN
                   LET f == [finished EXCEPT ![w] = TRUE] IN
                     /\ mark' = [mark EXCEPT ![w] = ""]
                     /\ present' = [present EXCEPT ![w] = FALSE]
                     /\ placed' = [placed EXCEPT ![w] = FALSE /\ On("plain")]
                     /\ suspect' = [suspect EXCEPT ![w] = FALSE]
                     /\ IF \A v \in Workers : f[v]
                           THEN /\ finished' = f
                                /\ phase' = "Succeed"
                                /\ innerPhase' = All("Succeed")
                           ELSE /\ finished' = f
                                /\ UNCHANGED << phase, innerPhase >>
              /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, 
                              failedReason, started, booted, counted, holder, 
                              evidence, moved, massQuit, portRetries, 
                              suspended, adopting, runs, heard, errored, 
                              failed, retries, uncounted, toQuit, told, noise, 
                              ended >>

Preempted(self) == /\ On("preempt") /\ noise /\ Managed /\ (phase # "RunCommand" \/ present[self[2]] \/ placed[self[2]])
                   /\ LET w == self[2] IN
                        LET np == [present EXCEPT ![w] = FALSE] IN
                          LET nq == Leaving(Marked \ {w}) IN
                            IF phase = "RunCommand"
                               THEN /\ IF finished[w]
                                          THEN /\ present' = np
                                               /\ UNCHANGED << phase, 
                                                               recoverCount, 
                                                               failures, 
                                                               shouldQuit, 
                                                               failedReason, 
                                                               counted, holder, 
                                                               evidence, moved, 
                                                               innerPhase, 
                                                               finished, 
                                                               errored, failed, 
                                                               retries, toQuit, 
                                                               mark, told >>
                                          ELSE /\ LET spent == FALSE /\ ~counted /\ failures >= MaxRetry IN
                                                    LET on == (\A v \in Workers : np[v]) /\ (FALSE \/ nq = None) IN
                                                      LET nin == [v \in Workers |-> IF np[v] /\ (v # w \/ FALSE) THEN innerPhase[v] ELSE "Restarting"] IN
                                                        /\ IF FALSE /\ ~counted
                                                              THEN /\ retries' = [retries EXCEPT ![w] = retries[w] + 1]
                                                                   /\ failures' = failures + 1
                                                                   /\ counted' = TRUE
                                                                   /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                                                   /\ IF On("move")
                                                                         THEN /\ holder' = w
                                                                              /\ evidence' = 0
                                                                              /\ moved' = FALSE
                                                                         ELSE /\ TRUE
                                                                              /\ UNCHANGED << holder, 
                                                                                              evidence, 
                                                                                              moved >>
                                                              ELSE /\ TRUE
                                                                   /\ UNCHANGED << recoverCount, 
                                                                                   failures, 
                                                                                   counted, 
                                                                                   holder, 
                                                                                   evidence, 
                                                                                   moved, 
                                                                                   retries >>
                                                        /\ finished' = All(FALSE)
                                                        /\ errored' = All(FALSE)
                                                        /\ failed' = All("")
                                                        /\ told' = All(FALSE)
                                                        /\ mark' = All("")
                                                        /\ present' = np
                                                        /\ IF spent
                                                              THEN /\ phase' = "Failed"
                                                                   /\ innerPhase' = All("Failed")
                                                                   /\ failedReason' = "budget"
                                                                   /\ shouldQuit' = TRUE
                                                                   /\ toQuit' = None
                                                              ELSE /\ IF on
                                                                         THEN /\ phase' = "Troubleshooting"
                                                                              /\ innerPhase' = All("Troubleshooting")
                                                                              /\ toQuit' = nq
                                                                         ELSE /\ phase' = "Restarting"
                                                                              /\ innerPhase' = nin
                                                                              /\ toQuit' = nq
                                                                   /\ UNCHANGED << shouldQuit, 
                                                                                   failedReason >>
                                    /\ placed' = [placed EXCEPT ![w] = FALSE /\ On("plain")]
                                    /\ suspect' = [suspect EXCEPT ![w] = FALSE]
                                    /\ UNCHANGED << started, suspended, 
                                                    adopting, runs, heard, 
                                                    uncounted >>
                               ELSE /\ LET moves == FALSE /\ ~TRUE /\ phase \in {"Restarting","Troubleshooting"} /\ counted /\ ~moved /\ holder # w /\ Strength.pod > evidence IN
                                         LET feeds == ~moves /\ ~TRUE /\ toQuit[w] # "preempted" /\ ~suspended IN
                                           LET dead == feeds /\ uncounted[w] + 1 >= MaxUncounted IN
                                             LET lp == [present EXCEPT ![w] = FALSE] IN
                                               LET lq == [(IF phase \in Checks THEN OrderOut(toQuit, errored, failed) ELSE toQuit) EXCEPT ![w] = "no"] IN
                                                 LET all == (\A v \in Workers : lp[v]) /\ lq = None IN
                                                   LET lin == [v \in Workers |-> IF lp[v] /\ v # w THEN innerPhase[v] ELSE "Restarting"] IN
                                                     /\ IF moves
                                                           THEN /\ retries' = [retries EXCEPT ![holder] = @ - 1, ![w] = @ + 1]
                                                           ELSE /\ TRUE
                                                                /\ UNCHANGED retries
                                                     /\ IF adopting /\ all /\ heard = "next"
                                                           THEN /\ counted' = FALSE
                                                                /\ holder' = "none"
                                                                /\ evidence' = 0
                                                                /\ moved' = FALSE
                                                           ELSE /\ IF moves
                                                                      THEN /\ holder' = w
                                                                           /\ evidence' = Strength.pod
                                                                           /\ moved' = TRUE
                                                                      ELSE /\ TRUE
                                                                           /\ UNCHANGED << holder, 
                                                                                           evidence, 
                                                                                           moved >>
                                                                /\ UNCHANGED counted
                                                     /\ IF feeds
                                                           THEN /\ uncounted' = [uncounted EXCEPT ![w] = uncounted[w] + 1]
                                                           ELSE /\ TRUE
                                                                /\ UNCHANGED uncounted
                                                     /\ IF dead
                                                           THEN /\ phase' = "Failed"
                                                                /\ innerPhase' = All("Failed")
                                                                /\ failedReason' = "boot"
                                                                /\ shouldQuit' = TRUE
                                                                /\ toQuit' = None
                                                                /\ mark' = All("")
                                                                /\ suspended' = FALSE
                                                                /\ adopting' = FALSE
                                                                /\ runs' = "none"
                                                                /\ heard' = "none"
                                                                /\ UNCHANGED << started, 
                                                                                present, 
                                                                                placed, 
                                                                                finished, 
                                                                                errored, 
                                                                                failed, 
                                                                                suspect, 
                                                                                told >>
                                                           ELSE /\ placed' = [placed EXCEPT ![w] = FALSE /\ On("plain")]
                                                                /\ suspect' = [suspect EXCEPT ![w] = FALSE]
                                                                /\ IF phase = "Pending"
                                                                      THEN /\ IF all /\ ~suspended
                                                                                 THEN /\ phase' = "BootChecking"
                                                                                      /\ innerPhase' = All("BootChecking")
                                                                                      /\ present' = lp
                                                                                      /\ toQuit' = None
                                                                                      /\ finished' = All(FALSE)
                                                                                      /\ errored' = All(FALSE)
                                                                                      /\ failed' = All("")
                                                                                      /\ told' = All(FALSE)
                                                                                      /\ mark' = All("")
                                                                                 ELSE /\ present' = lp
                                                                                      /\ toQuit' = lq
                                                                                      /\ UNCHANGED << phase, 
                                                                                                      innerPhase, 
                                                                                                      finished, 
                                                                                                      errored, 
                                                                                                      failed, 
                                                                                                      mark, 
                                                                                                      told >>
                                                                           /\ UNCHANGED << started, 
                                                                                           adopting, 
                                                                                           runs, 
                                                                                           heard >>
                                                                      ELSE /\ IF all
                                                                                 THEN /\ IF adopting
                                                                                            THEN /\ started' = (started \/ heard # "none")
                                                                                                 /\ adopting' = FALSE
                                                                                                 /\ runs' = "none"
                                                                                                 /\ heard' = "none"
                                                                                            ELSE /\ TRUE
                                                                                                 /\ UNCHANGED << started, 
                                                                                                                 adopting, 
                                                                                                                 runs, 
                                                                                                                 heard >>
                                                                                      /\ phase' = IF booted THEN "Troubleshooting" ELSE "BootChecking"
                                                                                      /\ innerPhase' = All((IF booted THEN "Troubleshooting" ELSE "BootChecking"))
                                                                                      /\ present' = lp
                                                                                      /\ toQuit' = None
                                                                                      /\ finished' = All(FALSE)
                                                                                      /\ errored' = All(FALSE)
                                                                                      /\ failed' = All("")
                                                                                      /\ told' = All(FALSE)
                                                                                      /\ mark' = All("")
                                                                                 ELSE /\ phase' = "Restarting"
                                                                                      /\ innerPhase' = lin
                                                                                      /\ present' = lp
                                                                                      /\ toQuit' = lq
                                                                                      /\ finished' = All(FALSE)
                                                                                      /\ errored' = All(FALSE)
                                                                                      /\ failed' = All("")
                                                                                      /\ told' = All(FALSE)
                                                                                      /\ mark' = All("")
                                                                                      /\ IF adopting
                                                                                            THEN /\ runs' = "mixed"
                                                                                                 /\ heard' = heard
                                                                                            ELSE /\ TRUE
                                                                                                 /\ UNCHANGED << runs, 
                                                                                                                 heard >>
                                                                                      /\ UNCHANGED << started, 
                                                                                                      adopting >>
                                                                /\ UNCHANGED << shouldQuit, 
                                                                                failedReason, 
                                                                                suspended >>
                                    /\ UNCHANGED << recoverCount, failures >>
                   /\ UNCHANGED << mode, booted, massQuit, portRetries, noise, 
                                   ended >>

Notice(self) == /\ On("preempt") /\ noise /\ Managed /\ phase \in Rounds /\ present[self[2]] /\ self[2] \notin Answered /\ toQuit[self[2]] = "no"
                /\ LET w == self[2] IN
                     LET rest == Leaving(Marked \ {w}) IN
                       LET nq == [v \in Workers |-> IF v = w THEN "preempted" ELSE IF rest[v] # "no" THEN rest[v] ELSE toQuit[v]] IN
                         LET nin == [v \in Workers |-> IF present[v] THEN innerPhase[v] ELSE "Restarting"] IN
                           /\ phase' = "Restarting"
                           /\ innerPhase' = nin
                           /\ toQuit' = nq
                           /\ finished' = All(FALSE)
                           /\ errored' = All(FALSE)
                           /\ failed' = All("")
                           /\ told' = All(FALSE)
                           /\ mark' = All("")
                /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, 
                                failedReason, started, booted, counted, holder, 
                                evidence, moved, massQuit, portRetries, 
                                suspended, adopting, runs, heard, present, 
                                placed, retries, uncounted, suspect, noise, 
                                ended >>

Running(self) == /\ On("plain") /\ Managed /\ ~placed[self[2]]
                 /\ placed' = [placed EXCEPT ![self[2]] = TRUE]
                 /\ UNCHANGED << phase, mode, recoverCount, failures, 
                                 shouldQuit, failedReason, started, booted, 
                                 counted, holder, evidence, moved, massQuit, 
                                 portRetries, suspended, adopting, runs, heard, 
                                 innerPhase, present, finished, errored, 
                                 failed, retries, uncounted, toQuit, mark, 
                                 suspect, told, noise, ended >>

Suspect(self) == /\ On("suspect") /\ Managed /\ present[self[2]]
                 /\ suspect' = [suspect EXCEPT ![self[2]] = ~suspect[self[2]]]
                 /\ UNCHANGED << phase, mode, recoverCount, failures, 
                                 shouldQuit, failedReason, started, booted, 
                                 counted, holder, evidence, moved, massQuit, 
                                 portRetries, suspended, adopting, runs, heard, 
                                 innerPhase, present, placed, finished, 
                                 errored, failed, retries, uncounted, toQuit, 
                                 mark, told, noise, ended >>

PlacingDeadline == /\ Managed /\ Deadline = "placing"
                   /\ IF adopting
                         THEN /\ IF adopting
                                    THEN /\ started' = (started \/ heard # "none")
                                         /\ IF heard = "next"
                                               THEN /\ counted' = FALSE
                                                    /\ holder' = "none"
                                                    /\ evidence' = 0
                                                    /\ moved' = FALSE
                                               ELSE /\ TRUE
                                                    /\ UNCHANGED << counted, 
                                                                    holder, 
                                                                    evidence, 
                                                                    moved >>
                                         /\ adopting' = FALSE
                                         /\ runs' = "none"
                                         /\ heard' = "none"
                                    ELSE /\ TRUE
                                         /\ UNCHANGED << started, counted, 
                                                         holder, evidence, 
                                                         moved, adopting, runs, 
                                                         heard >>
                              /\ UNCHANGED << phase, shouldQuit, failedReason, 
                                              suspended, innerPhase, toQuit, 
                                              mark >>
                         ELSE /\ phase' = "Failed"
                              /\ innerPhase' = All("Failed")
                              /\ failedReason' = "placing"
                              /\ shouldQuit' = TRUE
                              /\ toQuit' = None
                              /\ mark' = All("")
                              /\ suspended' = FALSE
                              /\ adopting' = FALSE
                              /\ runs' = "none"
                              /\ heard' = "none"
                              /\ UNCHANGED << started, counted, holder, 
                                              evidence, moved >>
                   /\ UNCHANGED << mode, recoverCount, failures, booted, 
                                   massQuit, portRetries, present, placed, 
                                   finished, errored, failed, retries, 
                                   uncounted, suspect, told, noise, ended >>

RoundDeadline == /\ Deadline = "round"
                 /\ LET e == [w \in Workers |-> errored[w] \/ ~finished[w]] IN
                      LET waits == \E v \in Workers : ~finished[v] /\ ~e[v] IN
                        LET tellers == {v \in Workers : told[v]} IN
                          LET others == Wants(toQuit, e, failed) IN
                            \E verdict \in IF waits \/ tellers = {} \/ others # {} THEN {NoVerdict} ELSE Verdicts(tellers):
                              LET y == IF waits THEN failed ELSE Weighed(verdict, failed, tellers, others, massQuit > 0) IN
                                LET common == Common(toQuit, e, y) IN
                                  LET out == OrderOut(toQuit, e, y) IN
                                    IF waits \/ (common /\ massQuit > 0)
                                       THEN /\ finished' = finished
                                            /\ errored' = e
                                            /\ failed' = y
                                            /\ told' = told
                                            /\ IF ~waits
                                                  THEN /\ phase' = "Failed"
                                                       /\ innerPhase' = All("Failed")
                                                       /\ failedReason' = "boot"
                                                       /\ shouldQuit' = TRUE
                                                       /\ toQuit' = None
                                                       /\ mark' = All("")
                                                       /\ suspended' = FALSE
                                                       /\ adopting' = FALSE
                                                       /\ runs' = "none"
                                                       /\ heard' = "none"
                                                  ELSE /\ TRUE
                                                       /\ UNCHANGED << phase, 
                                                                       shouldQuit, 
                                                                       failedReason, 
                                                                       suspended, 
                                                                       adopting, 
                                                                       runs, 
                                                                       heard, 
                                                                       innerPhase, 
                                                                       toQuit, 
                                                                       mark >>
                                            /\ UNCHANGED << started, booted, 
                                                            counted, holder, 
                                                            evidence, moved, 
                                                            massQuit, present, 
                                                            retries, uncounted >>
                                       ELSE /\ IF common
                                                  THEN /\ massQuit' = 1
                                                       /\ finished' = All(FALSE)
                                                       /\ errored' = All(FALSE)
                                                       /\ failed' = All("")
                                                       /\ told' = All(FALSE)
                                                       /\ mark' = All("")
                                                       /\ innerPhase' = All(phase)
                                                       /\ UNCHANGED << phase, 
                                                                       started, 
                                                                       booted, 
                                                                       counted, 
                                                                       holder, 
                                                                       evidence, 
                                                                       moved, 
                                                                       adopting, 
                                                                       runs, 
                                                                       heard, 
                                                                       present, 
                                                                       retries, 
                                                                       uncounted, 
                                                                       toQuit >>
                                                  ELSE /\ IF out # None
                                                             THEN /\ phase' = "Restarting"
                                                                  /\ finished' = All(FALSE)
                                                                  /\ errored' = All(FALSE)
                                                                  /\ failed' = All("")
                                                                  /\ told' = All(FALSE)
                                                                  /\ mark' = All("")
                                                                  /\ toQuit' = out
                                                                  /\ UNCHANGED << started, 
                                                                                  booted, 
                                                                                  counted, 
                                                                                  holder, 
                                                                                  evidence, 
                                                                                  moved, 
                                                                                  massQuit, 
                                                                                  adopting, 
                                                                                  runs, 
                                                                                  heard, 
                                                                                  innerPhase, 
                                                                                  present, 
                                                                                  retries, 
                                                                                  uncounted >>
                                                             ELSE /\ phase' = "RunCommand"
                                                                  /\ innerPhase' = All("RunCommand")
                                                                  /\ present' = present
                                                                  /\ toQuit' = None
                                                                  /\ finished' = All(FALSE)
                                                                  /\ errored' = All(FALSE)
                                                                  /\ failed' = All("")
                                                                  /\ told' = All(FALSE)
                                                                  /\ mark' = [v \in Workers |-> IF v \in (verdict.slow) THEN "slow" ELSE ""]
                                                                  /\ retries' = All(recoverCount)
                                                                  /\ uncounted' = All(0)
                                                                  /\ started' = TRUE
                                                                  /\ booted' = TRUE
                                                                  /\ massQuit' = 0
                                                                  /\ counted' = FALSE
                                                                  /\ holder' = "none"
                                                                  /\ evidence' = 0
                                                                  /\ moved' = FALSE
                                                                  /\ adopting' = FALSE
                                                                  /\ runs' = "none"
                                                                  /\ heard' = "none"
                                            /\ UNCHANGED << shouldQuit, 
                                                            failedReason, 
                                                            suspended >>
                 /\ UNCHANGED << mode, recoverCount, failures, portRetries, 
                                 placed, suspect, noise, ended >>

HangDeadline == /\ Managed /\ Deadline = "hang"
                /\ LET nq == Leaving(Marked) IN
                     /\ ended' = ended + 1
                     /\ LET spent == TRUE /\ ~counted /\ failures >= MaxRetry IN
                          LET on == (\A v \in Workers : present[v]) /\ (TRUE \/ nq = None) IN
                            LET nin == [v \in Workers |-> IF present[v] /\ (v # (First(Marked)) \/ TRUE) THEN innerPhase[v] ELSE "Restarting"] IN
                              /\ IF TRUE /\ ~counted
                                    THEN /\ retries' = [retries EXCEPT ![(First(Marked))] = retries[(First(Marked))] + 1]
                                         /\ failures' = failures + 1
                                         /\ counted' = TRUE
                                         /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                         /\ IF On("move")
                                               THEN /\ holder' = First(Marked)
                                                    /\ evidence' = 2
                                                    /\ moved' = FALSE
                                               ELSE /\ TRUE
                                                    /\ UNCHANGED << holder, 
                                                                    evidence, 
                                                                    moved >>
                                    ELSE /\ TRUE
                                         /\ UNCHANGED << recoverCount, 
                                                         failures, counted, 
                                                         holder, evidence, 
                                                         moved, retries >>
                              /\ finished' = All(FALSE)
                              /\ errored' = All(FALSE)
                              /\ failed' = All("")
                              /\ told' = All(FALSE)
                              /\ mark' = All("")
                              /\ present' = present
                              /\ IF spent
                                    THEN /\ phase' = "Failed"
                                         /\ innerPhase' = All("Failed")
                                         /\ failedReason' = "budget"
                                         /\ shouldQuit' = TRUE
                                         /\ toQuit' = None
                                    ELSE /\ IF on
                                               THEN /\ phase' = "Troubleshooting"
                                                    /\ innerPhase' = All("Troubleshooting")
                                                    /\ toQuit' = nq
                                               ELSE /\ phase' = "Restarting"
                                                    /\ innerPhase' = nin
                                                    /\ toQuit' = nq
                                         /\ UNCHANGED << shouldQuit, 
                                                         failedReason >>
                /\ UNCHANGED << mode, started, booted, massQuit, portRetries, 
                                suspended, adopting, runs, heard, placed, 
                                uncounted, suspect, noise >>

Plain(self) == /\ On("plain") /\ MayGoPlain /\ ~present[self[2]]
               /\ LET w == self[2] IN
                    /\ mode' = "plain"
                    /\ phase' = "RunCommand"
                    /\ innerPhase' = All("RunCommand")
                    /\ finished' = All(FALSE)
                    /\ errored' = All(FALSE)
                    /\ failed' = All("")
                    /\ told' = All(FALSE)
                    /\ mark' = All("")
                    /\ toQuit' = None
                    /\ adopting' = FALSE
                    /\ runs' = "none"
                    /\ heard' = "none"
                    /\ started' = TRUE
                    /\ massQuit' = 0
                    /\ retries' = [retries EXCEPT ![w] = retries[w] + 1]
                    /\ failures' = failures + 1
                    /\ recoverCount' = Min(recoverCount + 1, MaxRetry)
                    /\ counted' = TRUE
                    /\ ended' = ended + 1
                    /\ IF On("move")
                          THEN /\ holder' = w
                               /\ evidence' = 0
                               /\ moved' = FALSE
                          ELSE /\ TRUE
                               /\ UNCHANGED << holder, evidence, moved >>
               /\ UNCHANGED << shouldQuit, failedReason, booted, portRetries, 
                               suspended, present, placed, uncounted, suspect, 
                               noise >>

PlainOver(self) == /\ On("plain") /\ MayGoPlain /\ ~present[self[2]]
                   /\ LET w == self[2] IN
                        \E ok \in BOOLEAN:
                          LET f == [v \in Workers |-> ok /\ v = w] IN
                            LET p == IF ~ok THEN "Failed" ELSE IF N = 1 THEN "Succeed" ELSE "RunCommand" IN
                              /\ mode' = "plain"
                              /\ phase' = p
                              /\ innerPhase' = All(p)
                              /\ toQuit' = None
                              /\ adopting' = FALSE
                              /\ runs' = "none"
                              /\ heard' = "none"
                              /\ finished' = f
                              /\ errored' = All(FALSE)
                              /\ failed' = All("")
                              /\ mark' = All("")
                              /\ told' = All(FALSE)
                              /\ started' = TRUE
                              /\ massQuit' = 0
                              /\ retries' = [retries EXCEPT ![w] = retries[w] + 1]
                              /\ failures' = failures + 1
                              /\ recoverCount' = Min(recoverCount + 1, MaxRetry)
                              /\ counted' = TRUE
                              /\ ended' = ended + 1
                              /\ IF ~ok
                                    THEN /\ failedReason' = "exited"
                                         /\ shouldQuit' = TRUE
                                    ELSE /\ TRUE
                                         /\ UNCHANGED << shouldQuit, 
                                                         failedReason >>
                              /\ IF On("move")
                                    THEN /\ holder' = w
                                         /\ evidence' = 0
                                         /\ moved' = FALSE
                                    ELSE /\ TRUE
                                         /\ UNCHANGED << holder, evidence, 
                                                         moved >>
                   /\ UNCHANGED << booted, portRetries, suspended, present, 
                                   placed, uncounted, suspect, noise >>

PendingDeadline == /\ Managed /\ Deadline = "pending" /\ (\E v \in Workers : ~present[v])
                   /\ LET w == First({v \in Workers : ~present[v]}) IN
                        /\ mode' = "plain"
                        /\ phase' = "RunCommand"
                        /\ innerPhase' = All("RunCommand")
                        /\ finished' = All(FALSE)
                        /\ errored' = All(FALSE)
                        /\ failed' = All("")
                        /\ told' = All(FALSE)
                        /\ mark' = All("")
                        /\ toQuit' = None
                        /\ adopting' = FALSE
                        /\ runs' = "none"
                        /\ heard' = "none"
                        /\ started' = TRUE
                        /\ massQuit' = 0
                        /\ retries' = [retries EXCEPT ![w] = retries[w] + 1]
                        /\ failures' = failures + 1
                        /\ recoverCount' = Min(recoverCount + 1, MaxRetry)
                        /\ counted' = TRUE
                        /\ ended' = ended + 1
                        /\ IF On("move")
                              THEN /\ holder' = w
                                   /\ evidence' = 0
                                   /\ moved' = FALSE
                              ELSE /\ TRUE
                                   /\ UNCHANGED << holder, evidence, moved >>
                   /\ UNCHANGED << shouldQuit, failedReason, booted, 
                                   portRetries, suspended, present, placed, 
                                   uncounted, suspect, noise >>

PlainExit(self) == /\ Live /\ mode = "plain" /\ ~finished[self[2]]
                   /\ \/ /\ LET f == [finished EXCEPT ![self[2]] = TRUE] IN
                              IF \A v \in Workers : f[v]
                                 THEN /\ finished' = f
                                      /\ phase' = "Succeed"
                                      /\ innerPhase' = All("Succeed")
                                 ELSE /\ finished' = f
                                      /\ UNCHANGED << phase, innerPhase >>
                         /\ UNCHANGED <<shouldQuit, failedReason, suspended, adopting, runs, heard, toQuit, mark>>
                      \/ /\ phase' = "Failed"
                         /\ innerPhase' = All("Failed")
                         /\ failedReason' = "exited"
                         /\ shouldQuit' = TRUE
                         /\ toQuit' = None
                         /\ mark' = All("")
                         /\ suspended' = FALSE
                         /\ adopting' = FALSE
                         /\ runs' = "none"
                         /\ heard' = "none"
                         /\ UNCHANGED finished
                   /\ UNCHANGED << mode, recoverCount, failures, started, 
                                   booted, counted, holder, evidence, moved, 
                                   massQuit, portRetries, present, placed, 
                                   errored, failed, retries, uncounted, 
                                   suspect, told, noise, ended >>

Stop == /\ On("stop") /\ Live
        /\ phase' = "Failed"
        /\ innerPhase' = All("Failed")
        /\ failedReason' = "stopped"
        /\ shouldQuit' = TRUE
        /\ toQuit' = None
        /\ mark' = All("")
        /\ suspended' = FALSE
        /\ adopting' = FALSE
        /\ runs' = "none"
        /\ heard' = "none"
        /\ UNCHANGED << mode, recoverCount, failures, started, booted, counted, 
                        holder, evidence, moved, massQuit, portRetries, 
                        present, placed, finished, errored, failed, retries, 
                        uncounted, suspect, told, noise, ended >>

Suspend == /\ On("suspend") /\ noise /\ Managed /\ ~suspended
           /\ suspended' = TRUE
           /\ adopting' = FALSE
           /\ runs' = "none"
           /\ heard' = "none"
           /\ IF phase # "Pending"
                 THEN /\ phase' = "Pending"
                      /\ innerPhase' = All("Pending")
                      /\ finished' = All(FALSE)
                      /\ errored' = All(FALSE)
                      /\ failed' = All("")
                      /\ told' = All(FALSE)
                      /\ mark' = All("")
                 ELSE /\ TRUE
                      /\ UNCHANGED << phase, innerPhase, finished, errored, 
                                      failed, mark, told >>
           /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, 
                           failedReason, started, booted, counted, holder, 
                           evidence, moved, massQuit, portRetries, present, 
                           placed, retries, uncounted, toQuit, suspect, noise, 
                           ended >>

Resume == /\ suspended
          /\ suspended' = FALSE
          /\ IF (\A w \in Workers : present[w]) /\ toQuit = None
                THEN /\ phase' = "BootChecking"
                     /\ innerPhase' = All("BootChecking")
                     /\ present' = present
                     /\ toQuit' = None
                     /\ finished' = All(FALSE)
                     /\ errored' = All(FALSE)
                     /\ failed' = All("")
                     /\ told' = All(FALSE)
                     /\ mark' = All("")
                ELSE /\ TRUE
                     /\ UNCHANGED << phase, innerPhase, present, finished, 
                                     errored, failed, toQuit, mark, told >>
          /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, 
                          failedReason, started, booted, counted, holder, 
                          evidence, moved, massQuit, portRetries, adopting, 
                          runs, heard, placed, retries, uncounted, suspect, 
                          noise, ended >>

Restart == /\ On("restart") /\ noise /\ Managed /\ phase = "RunCommand"
           /\ LET w == First(Workers) IN
                LET nq == Leaving(Marked) IN
                  LET spent == FALSE /\ ~counted /\ failures >= MaxRetry IN
                    LET on == (\A v \in Workers : present[v]) /\ (TRUE \/ nq = None) IN
                      LET nin == [v \in Workers |-> IF present[v] /\ (v # w \/ TRUE) THEN innerPhase[v] ELSE "Restarting"] IN
                        /\ IF FALSE /\ ~counted
                              THEN /\ retries' = [retries EXCEPT ![w] = retries[w] + 1]
                                   /\ failures' = failures + 1
                                   /\ counted' = TRUE
                                   /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                   /\ IF On("move")
                                         THEN /\ holder' = w
                                              /\ evidence' = 0
                                              /\ moved' = FALSE
                                         ELSE /\ TRUE
                                              /\ UNCHANGED << holder, evidence, 
                                                              moved >>
                              ELSE /\ TRUE
                                   /\ UNCHANGED << recoverCount, failures, 
                                                   counted, holder, evidence, 
                                                   moved, retries >>
                        /\ finished' = All(FALSE)
                        /\ errored' = All(FALSE)
                        /\ failed' = All("")
                        /\ told' = All(FALSE)
                        /\ mark' = All("")
                        /\ present' = present
                        /\ IF spent
                              THEN /\ phase' = "Failed"
                                   /\ innerPhase' = All("Failed")
                                   /\ failedReason' = "budget"
                                   /\ shouldQuit' = TRUE
                                   /\ toQuit' = None
                              ELSE /\ IF on
                                         THEN /\ phase' = "Troubleshooting"
                                              /\ innerPhase' = All("Troubleshooting")
                                              /\ toQuit' = nq
                                         ELSE /\ phase' = "Restarting"
                                              /\ innerPhase' = nin
                                              /\ toQuit' = nq
                                   /\ UNCHANGED << shouldQuit, failedReason >>
           /\ UNCHANGED << mode, started, booted, massQuit, portRetries, 
                           suspended, adopting, runs, heard, placed, uncounted, 
                           suspect, noise, ended >>

Healthy == /\ On("healthy") /\ noise /\ Managed /\ phase = "RunCommand" /\ failures > 0
           /\ failures' = 0
           /\ recoverCount' = 0
           /\ retries' = All(0)
           /\ ended' = 0
           /\ UNCHANGED << phase, mode, shouldQuit, failedReason, started, 
                           booted, counted, holder, evidence, moved, massQuit, 
                           portRetries, suspended, adopting, runs, heard, 
                           innerPhase, present, placed, finished, errored, 
                           failed, uncounted, toQuit, mark, suspect, told, 
                           noise >>

Era == /\ On("era") /\ noise /\ Managed /\ ~suspended
       /\ phase' = "Restarting"
       /\ innerPhase' = All("Restarting")
       /\ present' = All(FALSE)
       /\ toQuit' = None
       /\ suspect' = All(FALSE)
       /\ finished' = All(FALSE)
       /\ errored' = All(FALSE)
       /\ failed' = All("")
       /\ told' = All(FALSE)
       /\ mark' = All("")
       /\ adopting' = TRUE
       /\ runs' = "none"
       /\ heard' = "none"
       /\ UNCHANGED << mode, recoverCount, failures, shouldQuit, failedReason, 
                       started, booted, counted, holder, evidence, moved, 
                       massQuit, portRetries, suspended, placed, retries, 
                       uncounted, noise, ended >>

Quiet == /\ On("quiet") /\ noise
         /\ noise' = FALSE
         /\ UNCHANGED << phase, mode, recoverCount, failures, shouldQuit, 
                         failedReason, started, booted, counted, holder, 
                         evidence, moved, massQuit, portRetries, suspended, 
                         adopting, runs, heard, innerPhase, present, placed, 
                         finished, errored, failed, retries, uncounted, toQuit, 
                         mark, suspect, told, ended >>

Next == B1_Create \/ Checkpoint \/ PlacingDeadline \/ RoundDeadline
           \/ HangDeadline \/ PendingDeadline \/ Stop \/ Suspend \/ Resume
           \/ Restart \/ Healthy \/ Era \/ Quiet
           \/ (\E self \in Ids("finish"): Finish(self))
           \/ (\E self \in Ids("finishHung"): FinishHung(self))
           \/ (\E self \in Ids("checked"): Checked(self))
           \/ (\E self \in Ids("undiagnosed"): Undiagnosed(self))
           \/ (\E self \in Ids("failing"): Failing(self))
           \/ (\E self \in Ids("portTaken"): PortTaken(self))
           \/ (\E self \in Ids("notStarted"): NotStarted(self))
           \/ (\E self \in Ids("lateError"): LateError(self))
           \/ (\E self \in Ids("lateNotice"): LateNotice(self))
           \/ (\E self \in Ids("mark"): Mark(self))
           \/ (\E self \in Ids("ready"): Ready(self))
           \/ (\E self \in Ids("lost"): Lost(self))
           \/ (\E self \in Ids("left"): Left(self))
           \/ (\E self \in Ids("preempted"): Preempted(self))
           \/ (\E self \in Ids("notice"): Notice(self))
           \/ (\E self \in Ids("running"): Running(self))
           \/ (\E self \in Ids("suspect"): Suspect(self))
           \/ (\E self \in Ids("plain"): Plain(self))
           \/ (\E self \in Ids("plainOver"): PlainOver(self))
           \/ (\E self \in Ids("plainExit"): PlainExit(self))

Spec == /\ Init /\ [][Next]_vars
        /\ WF_vars(B1_Create)
        /\ \A self \in Ids("finish") : SF_vars(Finish(self))
        /\ WF_vars(PlacingDeadline)
        /\ WF_vars(RoundDeadline)
        /\ WF_vars(HangDeadline)
        /\ WF_vars(PendingDeadline)
        /\ \A self \in Ids("plainExit") : WF_vars(PlainExit(self))
        /\ WF_vars(Quiet)

\* END TRANSLATION
Top == CHOOSE n \in 0..(MaxRetry + 2) : (\E w \in Workers : retries[w] = n) /\ \A w \in Workers : retries[w] <= n
\* ==== INVARIANTS ======================================================================
\* the five of the seed
ValidPhase        == phase \in Phases
ValidInnerPhase   == \A w \in Workers : innerPhase[w] \in Phases
RecoverCountBound == recoverCount <= MaxRetry + 1
RetriesBound      == \A w \in Workers : retries[w] <= MaxRetry + 1
PhaseConsistency  == \A w \in Workers : ~finished[w] => innerPhase[w] = phase \/ phase = "Restarting"
\* every incarnation that really failed is counted, once, and nothing else is
CountExact        == Top = failures /\ failures = ended
RecoverIsMax      == phase # "Failed" => recoverCount = Min(Top, MaxRetry)
\* the job fails for its budget exactly at failure number MaxRetry + 1
FailedIsSpent     == (failedReason = "budget" <=> recoverCount = MaxRetry + 1) /\ (failedReason = "budget" => failures = MaxRetry + 1)
SpentNeverRuns    == mode = "managed" /\ Spent => failedReason = "budget"
BootedBeforeRun   == phase = "RunCommand" => started /\ (booted \/ mode = "plain")
QuitOnlyIfFailed  == (shouldQuit <=> phase = "Failed") /\ (phase = "Failed" <=> failedReason # "none")
\* no round of checks while a place is empty; in RunCommand only a place whose Finish is in may be
RoundsAreFull     == mode = "managed" => (phase \in Checks => \A w \in Workers : present[w])
                                      /\ (phase = "RunCommand" => \A w \in Workers : present[w] \/ finished[w])
NobodyLeavesInRun == phase = "RunCommand" => toQuit = None
UncountedBound    == \A w \in Workers : uncounted[w] <= MaxUncounted /\ (uncounted[w] = MaxUncounted => failedReason = "boot")
SuspendedWaits    == suspended => phase = "Pending"
PlainIsPlain      == mode = "plain" => phase \in {"RunCommand"} \cup Terminal /\ \A w \in Workers : mark[w] = "" /\ toQuit[w] = "no"
MarksOnlyInRun    == phase # "RunCommand" => Marked = {}
ExactlyOneHolds   == counted /\ holder # "nobody" => Cardinality({w \in Workers : retries[w] = Top}) = 1
CountHasAHolder   == On("move") /\ counted => holder = "nobody" \/ (holder \in Workers /\ retries[holder] = Top)
\* ==== ACTIONS =========================================================================
\* somebody finished the round he was asked in, not an earlier one; the end of a plain worker makes the job plain and is its Finish
NoStaleDone       == [][(phase' # phase /\ phase' \in Rounds /\ mode' = mode) => (\A w \in Workers : ~finished'[w] /\ ~errored'[w])]_vars
\* once a worker's Finish is in, neither its end nor its mark ends the run
DoneWins          == [][\A w \in Workers : (phase = "RunCommand" /\ mode = "managed" /\ finished[w] /\ phase' # phase
                                              /\ ((present[w] /\ ~present'[w]) \/ Lost(<<"lost", w>>)))
                          => phase' = "Restarting" /\ adopting']_vars
SucceedIsTrue     == [][(phase' = "Succeed" /\ phase # "Succeed") => \A w \in Workers : finished'[w]]_vars
TerminalStays     == [][(phase \in Terminal) => (phase' = phase /\ recoverCount' = recoverCount)]_vars
\* a mark, or its withdrawal, changes nothing but the mark
MarkOnlyMarks     == [][\A w \in Workers : (mark'[w] # mark[w] /\ phase = "RunCommand" /\ phase' = "RunCommand")
                          => (retries' = retries /\ toQuit' = toQuit /\ innerPhase' = innerPhase)]_vars
\* a slow pod leaves at a checkpoint, or because the run stands anyway; neither its mark nor time alone takes it
SafePoint         == [][/\ (phase = "RunCommand" /\ ~Hung /\ HangDeadline) => FALSE
                        /\ (\E w \in Workers : Mark(<<"mark", w>>)) => (phase' = phase /\ toQuit' = toQuit)]_vars
\* at most one count per incarnation
CountOncePerIncarnation == [][failures' > failures => (failures' = failures + 1 /\ ~counted)]_vars
\* the job fails exactly at its (maxRetry+1)-th counted failure: in that step, in no other, whatever else happens
FailsExactly      == [][mode' = "managed" => /\ (failures' > failures => (failures' = MaxRetry + 1 <=> phase' = "Failed" /\ failedReason' = "budget"))
                                             /\ (failedReason' = "budget" /\ failedReason # "budget" => failures = MaxRetry /\ failures' = MaxRetry + 1)]_vars
\* a count rises only with the end of a run
CountOnlyInRun    == [][failures' > failures => phase = "RunCommand" \/ mode' = "plain"]_vars
\* a lost pod keeps its retries and the reason it was counted for
KeepRetries       == [][(phase # "RunCommand" /\ phase' # "RunCommand" /\ mode' = mode /\ ~moved' /\ ~moved) => retries' = retries]_vars
\* a run that is adopted was not touched: nothing was counted, nobody left
AdoptedUntouched  == [][(adopting /\ phase' = "RunCommand" /\ mode' = "managed")
                          => (failures' = failures /\ recoverCount' = recoverCount /\ runs \in {"cur","next"} /\ (counted => runs = "next"))]_vars
\* BootChecking is passed before the first run; only an adopted run had passed it elsewhere
BootedFirst       == [][(phase # "RunCommand" /\ phase' = "RunCommand" /\ mode' = "managed") => (booted \/ phase = "BootChecking" \/ adopting)]_vars
\* once managed, never plain
PlainOnlyAtFirst  == [][mode' # mode => ~started]_vars
\* a suspended job waits for ever
SuspendedIsPatient == [][(suspended /\ phase' = "Failed") => failedReason' = "stopped"]_vars
\* the platform takes pods away for nothing, and who said that it is taken leaves for nothing, however its end is heard
PreemptionIsFree  == [][/\ (\E w \in Workers : Preempted(<<"preempted", w>>) \/ Notice(<<"notice", w>>)) => (uncounted' = uncounted /\ failures' = failures)
                        /\ \A w \in Workers : toQuit[w] = "preempted" => uncounted'[w] <= uncounted[w]]_vars
\* a count moves once
MovesOnce         == [][(moved /\ counted /\ counted') => holder' \in {holder, "nobody"}]_vars
\* only a notice of preemption takes a count back, once, and does nothing else
TakenBackOnce     == [][(failures' < failures /\ phase # "RunCommand")
                          => (counted' /\ holder # "nobody" /\ holder' = "nobody" /\ failures' = failures - 1 /\ phase' = phase /\ uncounted' = uncounted)]_vars
\* whoever could not diagnose, or failed a check of its own, is ordered to leave
FailedChecksLeave == [][(phase \in Checks /\ phase' = "Restarting" /\ present' = present /\ uncounted' = uncounted /\ retries' = retries)
                          => (\E w \in Workers : toQuit'[w] # "no")]_vars
\* silence alone stops nothing
SuspectOnlyMarks  == [][(\E w \in Workers : suspect'[w] /\ ~suspect[w]) => phase' = phase /\ retries' = retries /\ present' = present]_vars
\* where nothing is done to nodes, nobody is ordered to leave for a mark, or for a failed check of its node
AdviceOnly        == [][On("advise") => \A w \in Workers : (toQuit'[w] = "ordered" /\ toQuit[w] # "ordered") => (phase # "RunCommand" /\ failed[w] # "node")]_vars
\* ==== LIVENESS ========================================================================
\* a job ends whatever pods and platform do; only who suspends it may keep it waiting
Ends              == <>(phase \in Terminal) \/ <>[]suspended
=============================================================================
