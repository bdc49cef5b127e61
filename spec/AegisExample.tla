----------------------------- MODULE AegisExample -----------------------------
(* The worked example of the design on AegisPhase: 3 workers, maxRetry 2.           *)
(* The environment is scripted - who dies, who reports an error, and when - and all *)
(* else is left free: the order of every report and readiness, deadlines, pods that *)
(* come back at once or late.  The counts must come out exactly, in every           *)
(* interleaving (Exact), in the order of the story (Told), and the story must reach *)
(* its end (AegisExampleReached violates NotTheEnd).                                *)
EXTENDS AegisPhase
CONSTANTS w1, w2, w3
VARIABLE chapter
\* worker 0 killed; pods die while troubleshooting; all restart; worker 1 reports an error; all restart; one more failure; Failed
Story == <<[retries |-> <<0, 0, 0>>, recoverCount |-> 0], [retries |-> <<1, 0, 0>>, recoverCount |-> 1], [retries |-> <<1, 1, 1>>, recoverCount |-> 1],
           [retries |-> <<1, 2, 1>>, recoverCount |-> 2], [retries |-> <<2, 2, 2>>, recoverCount |-> 2], [retries |-> <<2, 2, 3>>, recoverCount |-> 3]>>
Counts(n) == retries = (w1 :> Story[n].retries[1] @@ w2 :> Story[n].retries[2] @@ w3 :> Story[n].retries[3]) /\ recoverCount = Story[n].recoverCount
Runs      == phase = "RunCommand"
\* what may go wrong, and where; everything that goes right may happen anywhere
Script == \/ Runs /\ chapter = 1 /\ Lost(<<"lost", w1>>)
          \/ ~Runs /\ chapter = 2 /\ \E w \in {w2, w3} : Lost(<<"lost", w>>)
          \/ Runs /\ chapter = 3 /\ Failing(<<"failing", w2>>)
          \/ Runs /\ chapter = 5 /\ (Failing(<<"failing", w3>>) \/ Lost(<<"lost", w3>>))
          \/ B1_Create \/ \E w \in Workers : Ready(<<"ready", w>>) \/ Checked(<<"checked", w>>)
          \/ (\E w \in Workers : Finish(<<"finish", w>>)) /\ phase' # "Succeed"
ExVars == <<vars, chapter>>
ExInit == Init /\ chapter = 1
ExNext == Script /\ chapter' = IF retries' = retries /\ recoverCount' = recoverCount THEN chapter ELSE chapter + 1
ExSpec == ExInit /\ [][ExNext]_ExVars
\* ==== INVARIANTS ======================================================================
\* the counts are those of the chapter, and no other counts ever show
Exact     == Counts(chapter)
\* Failed with the last chapter, closing what runs; and with no other
FailsLast == failedReason = "boot" \/ ((phase = "Failed" <=> chapter = 6) /\ (phase = "Failed" => failedReason = "budget" /\ shouldQuit))
\* ==== ACTIONS =========================================================================
\* the kill leads to Restarting (and on, in the same step, when the pod's successor is there at once), the error to Troubleshooting;
\* alignment is on the way into RunCommand only
Told      == [][chapter' # chapter => CASE chapter = 1 -> phase' = "Restarting" \/ (present'[w1] /\ phase' = "Troubleshooting")
                                        [] chapter \in {2, 4} -> phase = "Troubleshooting" /\ phase' = "RunCommand"
                                        [] chapter = 3 -> phase' = "Troubleshooting"
                                        [] OTHER -> phase' = "Failed"]_ExVars
\* ==== NOT CHECKED =====================================================================
NotTheEnd == chapter # 6      \* AegisExampleReached: must be violated
=============================================================================
