------------------------------ MODULE AegisTrace ------------------------------
(* What masters really did, held to AegisPhase.  AegisTraceData, made by traces.py  *)
(* from their traces, holds States and Chains; this module walks every chain, and   *)
(* every step of it must be a step of the process of AegisPhase that its event is.  *)
(* A chain is a sequence of lines <<state, processes that it may be, place, order,  *)
(* deadline>>; line 1 is where it starts: the model's own first state, or a state   *)
(* that a step of another chain has reached.                                        *)
EXTENDS AegisTraceData
VARIABLES chain, at
Line(i)     == Chains[chain][i]
TraceInit   == chain \in DOMAIN Chains /\ at = 1 /\ Is(States[Chains[chain][1][1]])
TraceNext   == at < Len(Chains[chain]) /\ at' = at + 1 /\ chain' = chain /\ Becomes(States[Chains[chain][at + 1][1]])
TraceSpec   == TraceInit /\ [][TraceNext]_<<vars, chain, at>>
Does(p, w)  ==
  CASE p = "B1_Create"       -> B1_Create
    [] p = "Finish"          -> Finish(<<"finish", w>>)
    [] p = "FinishHung"      -> FinishHung(<<"finishHung", w>>)
    [] p = "Checked"         -> Checked(<<"checked", w>>)
    [] p = "Undiagnosed"     -> Undiagnosed(<<"undiagnosed", w>>)
    [] p = "Failing"         -> Failing(<<"failing", w>>)
    [] p = "PortTaken"       -> PortTaken(<<"portTaken", w>>)
    [] p = "NotStarted"      -> NotStarted(<<"notStarted", w>>)
    [] p = "LateError"       -> LateError(<<"lateError", w>>)
    [] p = "LateNotice"      -> LateNotice(<<"lateNotice", w>>)
    [] p = "Mark"            -> Mark(<<"mark", w>>)
    [] p = "Checkpoint"      -> Checkpoint
    [] p = "Ready"           -> Ready(<<"ready", w>>)
    [] p = "Lost"            -> Lost(<<"lost", w>>)
    [] p = "Left"            -> Left(<<"left", w>>)
    [] p = "Preempted"       -> Preempted(<<"preempted", w>>)
    [] p = "Notice"          -> Notice(<<"notice", w>>)
    [] p = "Running"         -> Running(<<"running", w>>)
    [] p = "Suspect"         -> Suspect(<<"suspect", w>>)
    [] p = "PlacingDeadline" -> PlacingDeadline
    [] p = "RoundDeadline"   -> RoundDeadline
    [] p = "HangDeadline"    -> HangDeadline
    [] p = "PendingDeadline" -> PendingDeadline
    [] p = "Plain"           -> Plain(<<"plain", w>>)
    [] p = "PlainOver"       -> PlainOver(<<"plainOver", w>>)
    [] p = "PlainExit"       -> PlainExit(<<"plainExit", w>>)
    [] p = "Stop"            -> Stop
    [] p = "Suspend"         -> Suspend
    [] p = "Resume"          -> Resume
    [] p = "Restart"         -> Restart
    [] p = "Healthy"         -> Healthy
    [] p = "Era"             -> Era
\* ==== INVARIANTS ======================================================================
\* a trace begins where the model does
BeginsAtInit     == phase = "Init" => at = 1 /\ Init
OrderStands      == phase # "Init" => Order = Line(at)[4]
DeadlineStands   == phase # "Init" => Deadline = Line(at)[5]
\* ==== ACTIONS =========================================================================
StepOfTheModel   == [][UNCHANGED vars \/ \E p \in Line(at')[2] : Does(p, Line(at')[3])]_<<vars, chain, at>>
=============================================================================
