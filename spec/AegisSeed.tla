------------------------------ MODULE AegisSeed ------------------------------
(* The seed's P0 model taken literally: section 8.1, eight Controller branches  *)
(* and three Environment branches, one atomic step each.  It exists to show     *)
(* what the text as written does; AegisPhase is the machine we propose.         *)
EXTENDS Naturals, FiniteSets, TLC
CONSTANTS Workers, MaxRetry,
          SpentFirst,   \* TRUE: branch 6 (spent -> Failed) goes before branch 2
          AlignAnyTime, \* TRUE: branch 8 as written (align in BootChecking/RunCommand)
          KillResets    \* TRUE: a killed pod loses its finished flag at once
Min(a, b) == IF a < b THEN a ELSE b
Phases    == {"Init","Pending","BootChecking","RunCommand","Restarting","Troubleshooting","Succeed","Failed"}
Terminal  == {"Succeed","Failed"}
NextPhase(p) == CASE p = "Pending"         -> "BootChecking"
                  [] p = "BootChecking"    -> "RunCommand"
                  [] p = "RunCommand"      -> "Succeed"
                  [] p = "Troubleshooting" -> "RunCommand"
                  [] OTHER                 -> p
All(v) == [w \in Workers |-> v]

(* --algorithm Seed
variables phase = "Init", shouldQuit = FALSE, recoverCount = 0,
          innerPhase = All("Init"), finished = All(FALSE),
          retries = All(0), podRestarted = All(FALSE);
define
  Restarted   == {w \in Workers : podRestarted[w]}
  AllFinished == \A w \in Workers : finished[w]
  Spent       == \E w \in Workers : retries[w] > MaxRetry
end define;

process Controller = "controller"
begin
C: while TRUE do
     either \* 1 initialise
       await phase = "Init" /\ ~shouldQuit;
       phase := "Pending"; innerPhase := All("Pending");
     or     \* 2 normal progress
       await AllFinished /\ Restarted = {} /\ ~shouldQuit
             /\ phase \in {"Pending","BootChecking","RunCommand","Troubleshooting"}
             /\ ~(SpentFirst /\ phase = "Troubleshooting" /\ Spent);
       retries := All(recoverCount);
       innerPhase := All(NextPhase(phase)); finished := All(FALSE);
       phase := NextPhase(phase);
     or     \* 3 pod restart in RunCommand: counted
       await phase = "RunCommand" /\ Restarted # {} /\ ~shouldQuit;
       retries := [w \in Workers |-> IF podRestarted[w] THEN retries[w] + 1 ELSE retries[w]];
       recoverCount := Min(recoverCount + 1, MaxRetry);
       phase := "Restarting";
       innerPhase := [w \in Workers |-> IF podRestarted[w] THEN "Restarting" ELSE innerPhase[w]];
       finished := [w \in Workers |-> IF podRestarted[w] THEN FALSE ELSE finished[w]];
       podRestarted := All(FALSE);
     or     \* 4 pod restart elsewhere: only the restarted ones are reset
       await phase \notin {"Init","RunCommand","Succeed","Failed"} /\ Restarted # {} /\ ~shouldQuit;
       phase := "Restarting";
       innerPhase := [w \in Workers |-> IF podRestarted[w] THEN "Restarting" ELSE innerPhase[w]];
       finished := [w \in Workers |-> IF podRestarted[w] THEN FALSE ELSE finished[w]];
       podRestarted := All(FALSE);
     or     \* 5 the awaited ones are ready
       await phase = "Restarting" /\ Restarted = {} /\ ~shouldQuit
             /\ \A w \in Workers : innerPhase[w] = "Restarting" => finished[w];
       phase := "Troubleshooting"; innerPhase := All("Troubleshooting"); finished := All(FALSE);
     or     \* 6 budget spent
       await phase = "Troubleshooting" /\ AllFinished /\ Spent /\ ~shouldQuit;
       phase := "Failed"; innerPhase := All("Failed");
     or     \* 7 closing a failed job; also where an outside shouldQuit lands
       await (phase = "Failed" \/ shouldQuit) /\ phase # "Succeed"
             /\ ~(phase = "Failed" /\ shouldQuit /\ recoverCount = MaxRetry + 1);
       phase := "Failed"; innerPhase := All("Failed");
       recoverCount := MaxRetry + 1; shouldQuit := TRUE;
     or     \* 8 alignment, as its own step
       await AlignAnyTime /\ phase \in {"BootChecking","RunCommand"} /\ retries # All(recoverCount);
       retries := All(recoverCount);
     end either;
   end while;
end process;

process Environment = "environment"
begin
E: while TRUE do
     with w \in Workers do
       either await ~finished[w] /\ phase \notin Terminal; finished[w] := TRUE;
       or     await ~podRestarted[w] /\ phase \notin Terminal;
              podRestarted[w] := TRUE;
              if KillResets then finished[w] := FALSE; end if;
       or     await ~shouldQuit /\ phase \notin Terminal; shouldQuit := TRUE;
       end either;
     end with;
   end while;
end process;
end algorithm; *)
\* BEGIN TRANSLATION
VARIABLES phase, shouldQuit, recoverCount, innerPhase, finished, retries, 
          podRestarted

(* define statement *)
Restarted   == {w \in Workers : podRestarted[w]}
AllFinished == \A w \in Workers : finished[w]
Spent       == \E w \in Workers : retries[w] > MaxRetry


vars == << phase, shouldQuit, recoverCount, innerPhase, finished, retries, 
           podRestarted >>

ProcSet == {"controller"} \cup {"environment"}

Init == (* Global variables *)
        /\ phase = "Init"
        /\ shouldQuit = FALSE
        /\ recoverCount = 0
        /\ innerPhase = All("Init")
        /\ finished = All(FALSE)
        /\ retries = All(0)
        /\ podRestarted = All(FALSE)

Controller == \/ /\ phase = "Init" /\ ~shouldQuit
                 /\ phase' = "Pending"
                 /\ innerPhase' = All("Pending")
                 /\ UNCHANGED <<shouldQuit, recoverCount, finished, retries, podRestarted>>
              \/ /\ AllFinished /\ Restarted = {} /\ ~shouldQuit
                    /\ phase \in {"Pending","BootChecking","RunCommand","Troubleshooting"}
                    /\ ~(SpentFirst /\ phase = "Troubleshooting" /\ Spent)
                 /\ retries' = All(recoverCount)
                 /\ innerPhase' = All(NextPhase(phase))
                 /\ finished' = All(FALSE)
                 /\ phase' = NextPhase(phase)
                 /\ UNCHANGED <<shouldQuit, recoverCount, podRestarted>>
              \/ /\ phase = "RunCommand" /\ Restarted # {} /\ ~shouldQuit
                 /\ retries' = [w \in Workers |-> IF podRestarted[w] THEN retries[w] + 1 ELSE retries[w]]
                 /\ recoverCount' = Min(recoverCount + 1, MaxRetry)
                 /\ phase' = "Restarting"
                 /\ innerPhase' = [w \in Workers |-> IF podRestarted[w] THEN "Restarting" ELSE innerPhase[w]]
                 /\ finished' = [w \in Workers |-> IF podRestarted[w] THEN FALSE ELSE finished[w]]
                 /\ podRestarted' = All(FALSE)
                 /\ UNCHANGED shouldQuit
              \/ /\ phase \notin {"Init","RunCommand","Succeed","Failed"} /\ Restarted # {} /\ ~shouldQuit
                 /\ phase' = "Restarting"
                 /\ innerPhase' = [w \in Workers |-> IF podRestarted[w] THEN "Restarting" ELSE innerPhase[w]]
                 /\ finished' = [w \in Workers |-> IF podRestarted[w] THEN FALSE ELSE finished[w]]
                 /\ podRestarted' = All(FALSE)
                 /\ UNCHANGED <<shouldQuit, recoverCount, retries>>
              \/ /\ phase = "Restarting" /\ Restarted = {} /\ ~shouldQuit
                    /\ \A w \in Workers : innerPhase[w] = "Restarting" => finished[w]
                 /\ phase' = "Troubleshooting"
                 /\ innerPhase' = All("Troubleshooting")
                 /\ finished' = All(FALSE)
                 /\ UNCHANGED <<shouldQuit, recoverCount, retries, podRestarted>>
              \/ /\ phase = "Troubleshooting" /\ AllFinished /\ Spent /\ ~shouldQuit
                 /\ phase' = "Failed"
                 /\ innerPhase' = All("Failed")
                 /\ UNCHANGED <<shouldQuit, recoverCount, finished, retries, podRestarted>>
              \/ /\ (phase = "Failed" \/ shouldQuit) /\ phase # "Succeed"
                    /\ ~(phase = "Failed" /\ shouldQuit /\ recoverCount = MaxRetry + 1)
                 /\ phase' = "Failed"
                 /\ innerPhase' = All("Failed")
                 /\ recoverCount' = MaxRetry + 1
                 /\ shouldQuit' = TRUE
                 /\ UNCHANGED <<finished, retries, podRestarted>>
              \/ /\ AlignAnyTime /\ phase \in {"BootChecking","RunCommand"} /\ retries # All(recoverCount)
                 /\ retries' = All(recoverCount)
                 /\ UNCHANGED <<phase, shouldQuit, recoverCount, innerPhase, finished, podRestarted>>

Environment == /\ \E w \in Workers:
                    \/ /\ ~finished[w] /\ phase \notin Terminal
                       /\ finished' = [finished EXCEPT ![w] = TRUE]
                       /\ UNCHANGED <<shouldQuit, podRestarted>>
                    \/ /\ ~podRestarted[w] /\ phase \notin Terminal
                       /\ podRestarted' = [podRestarted EXCEPT ![w] = TRUE]
                       /\ IF KillResets
                             THEN /\ finished' = [finished EXCEPT ![w] = FALSE]
                             ELSE /\ TRUE
                                  /\ UNCHANGED finished
                       /\ UNCHANGED shouldQuit
                    \/ /\ ~shouldQuit /\ phase \notin Terminal
                       /\ shouldQuit' = TRUE
                       /\ UNCHANGED <<finished, podRestarted>>
               /\ UNCHANGED << phase, recoverCount, innerPhase, retries >>

Next == Controller \/ Environment

Spec == Init /\ [][Next]_vars

\* END TRANSLATION
\* ==== INVARIANTS ======================================================================
ValidPhase        == phase \in Phases
ValidInnerPhase   == \A w \in Workers : innerPhase[w] \in Phases
RecoverCountBound == recoverCount <= MaxRetry + 1
RetriesBound      == \A w \in Workers : retries[w] <= MaxRetry + 1
PhaseConsistency  == \A w \in Workers :
    ~finished[w] => innerPhase[w] = phase \/ phase = "Restarting"
\* ==== NOT CHECKED =====================================================================
\* not in the seed's list, and violated: a job whose budget is spent never trains again
SpentNeverRuns    == [][ (\E w \in Workers : retries[w] > MaxRetry) => phase' # "RunCommand" ]_vars
\* a job all of whose workers finished the command is not counted as failed
\* (violated: a pod that ends after its Finish trips branch 3)
=============================================================================
