----------------------------- MODULE AegisSpares -----------------------------
(* Places, slots of nodes, spares.  Job controllers (several, none of them the      *)
(* owner of anything) read what is there and write place and slot in one atomic     *)
(* batch that expects both as they were read.  A spare is a node that no place      *)
(* needs yet: nothing else tells it apart, so a lost place takes whichever node is  *)
(* free, and goes on waiting when none is.  A node with evidence against it is not  *)
(* used (errorNodes) until its exclusion ends, which may be at any time.  A fault   *)
(* that only points at its node excludes nothing beyond the cap of such exclusions: *)
(* here, only a process that dies.  What matters of the master is                   *)
(* attempt + 1 at each loss, "gone" told when it is so, and a deadline for placing. *)
EXTENDS Naturals, FiniteSets, TLC
CONSTANTS Places, Nodes, Controllers, MaxFaults, Nobody, None
Free == [of |-> None, att |-> 0]
Idle == [p |-> None, n |-> Nobody, att |-> 0, was |-> 0, seq |-> 0]
(* --algorithm Spares
variables
  attempt = [p \in Places |-> 1], gone = [p \in Places |-> TRUE],     \* of the head: which attempt is wanted, its predecessor is gone
  bad = {}, ended = FALSE,                                            \* errorNodes; Failed(placing)
  place = [p \in Places |-> [node |-> Nobody, att |-> 0]],             \* the store; a place is written once an attempt,
  slot = [n \in Nodes |-> Free], seq = [n \in Nodes |-> 0],            \* a slot has the sequence of its last write
  runs = [n \in Nodes |-> Free],                                      \* the world: who runs where
  faults = 0,
  plan = [c \in Controllers |-> Idle];
define
  Placed(p)    == place[p].att = attempt[p]
  Usable(n)    == n \notin bad /\ slot[n] = Free
  Wanting      == {p \in Places : ~Placed(p) /\ gone[p]}
  Running(p)   == {n \in Nodes : runs[n].of = p}
end define;

fair process Controller \in Controllers
begin
C: while TRUE do
     either \* read: a place without a pod, a node that is free; what is read may be old when it is used
       await ~ended /\ plan[self] = Idle;
       with p \in Wanting, n \in {m \in Nodes : Usable(m)} do
         plan[self] := [p |-> p, n |-> n, att |-> attempt[p], was |-> place[p].att, seq |-> seq[n]];
       end with;
     or     \* write: both or none
       await plan[self] # Idle;
       with d = plan[self] do
         if place[d.p].att = d.was /\ seq[d.n] = d.seq then
           place[d.p] := [node |-> d.n, att |-> d.att];
           slot[d.n] := [of |-> d.p, att |-> d.att]; seq[d.n] := d.seq + 1;
         end if;
         plan[self] := Idle;
       end with;
     or     \* a slot whose place has moved on, and whose process is gone, is free again
       with n \in {m \in Nodes : slot[m] # Free /\ slot[m].att < attempt[slot[m].of] /\ runs[m] = Free} do
         slot[n] := Free; seq[n] := seq[n] + 1;
       end with;
     end either;
   end while;
end process;

fair process Daemon \in Nodes    \* makes its node equal to its slot: starts what is written, ends what is not wanted any more
begin
D: while TRUE do
     either
       await ~ended /\ runs[self] = Free /\ slot[self] # Free /\ slot[self].att = attempt[slot[self].of];
       runs[self] := [of |-> slot[self].of, att |-> slot[self].att];
     or
       await runs[self] # Free /\ runs[self].att < attempt[runs[self].of];
       gone[runs[self].of] := TRUE || runs[self] := Free;
     end either;
   end while;
end process;

fair process Deadline = "placing" \* awaited pods did not come: no node is left for somebody
begin
P: while TRUE do
     await ~ended /\ Wanting # {} /\ (\A n \in Nodes : ~Usable(n)) /\ (\A c \in Controllers : plan[c] = Idle)
           /\ (\A n \in Nodes : slot[n] # Free => slot[n].att = attempt[slot[n].of]);
     ended := TRUE;
   end while;
end process;

process Env = "env"
begin
E: while TRUE do
     either with n \in {m \in Nodes : runs[m] # Free} do       \* the node has a fault of its own: the pod leaves, the node is not used again
              await faults < MaxFaults /\ ~ended /\ runs[n].att = attempt[runs[n].of];
              faults := faults + 1; bad := bad \cup {n}; attempt[runs[n].of] := attempt[runs[n].of] + 1; gone[runs[n].of] := FALSE;
            end with;
     or     with n \in {m \in Nodes : runs[m] # Free} do       \* only the process dies: its node may have the next one
              await faults < MaxFaults /\ ~ended /\ runs[n].att = attempt[runs[n].of];
              faults := faults + 1; attempt[runs[n].of] := attempt[runs[n].of] + 1; gone[runs[n].of] := FALSE;
            end with;
     or     await ~ended; with n \in bad do                   \* the exclusion ends: after a day the node may be tried again
              bad := bad \ {n};
            end with;
     end either;
   end while;
end process;
end algorithm; *)
\* BEGIN TRANSLATION
VARIABLES attempt, gone, bad, ended, place, slot, seq, runs, faults, plan

(* define statement *)
Placed(p)    == place[p].att = attempt[p]
Usable(n)    == n \notin bad /\ slot[n] = Free
Wanting      == {p \in Places : ~Placed(p) /\ gone[p]}
Running(p)   == {n \in Nodes : runs[n].of = p}


vars == << attempt, gone, bad, ended, place, slot, seq, runs, faults, plan >>

ProcSet == (Controllers) \cup (Nodes) \cup {"placing"} \cup {"env"}

Init == (* Global variables *)
        /\ attempt = [p \in Places |-> 1]
        /\ gone = [p \in Places |-> TRUE]
        /\ bad = {}
        /\ ended = FALSE
        /\ place = [p \in Places |-> [node |-> Nobody, att |-> 0]]
        /\ slot = [n \in Nodes |-> Free]
        /\ seq = [n \in Nodes |-> 0]
        /\ runs = [n \in Nodes |-> Free]
        /\ faults = 0
        /\ plan = [c \in Controllers |-> Idle]

Controller(self) == /\ \/ /\ ~ended /\ plan[self] = Idle
                          /\ \E p \in Wanting:
                               \E n \in {m \in Nodes : Usable(m)}:
                                 plan' = [plan EXCEPT ![self] = [p |-> p, n |-> n, att |-> attempt[p], was |-> place[p].att, seq |-> seq[n]]]
                          /\ UNCHANGED <<place, slot, seq>>
                       \/ /\ plan[self] # Idle
                          /\ LET d == plan[self] IN
                               /\ IF place[d.p].att = d.was /\ seq[d.n] = d.seq
                                     THEN /\ place' = [place EXCEPT ![d.p] = [node |-> d.n, att |-> d.att]]
                                          /\ slot' = [slot EXCEPT ![d.n] = [of |-> d.p, att |-> d.att]]
                                          /\ seq' = [seq EXCEPT ![d.n] = d.seq + 1]
                                     ELSE /\ TRUE
                                          /\ UNCHANGED << place, slot, seq >>
                               /\ plan' = [plan EXCEPT ![self] = Idle]
                       \/ /\ \E n \in {m \in Nodes : slot[m] # Free /\ slot[m].att < attempt[slot[m].of] /\ runs[m] = Free}:
                               /\ slot' = [slot EXCEPT ![n] = Free]
                               /\ seq' = [seq EXCEPT ![n] = seq[n] + 1]
                          /\ UNCHANGED <<place, plan>>
                    /\ UNCHANGED << attempt, gone, bad, ended, runs, faults >>

Daemon(self) == /\ \/ /\ ~ended /\ runs[self] = Free /\ slot[self] # Free /\ slot[self].att = attempt[slot[self].of]
                      /\ runs' = [runs EXCEPT ![self] = [of |-> slot[self].of, att |-> slot[self].att]]
                      /\ gone' = gone
                   \/ /\ runs[self] # Free /\ runs[self].att < attempt[runs[self].of]
                      /\ /\ gone' = [gone EXCEPT ![runs[self].of] = TRUE]
                         /\ runs' = [runs EXCEPT ![self] = Free]
                /\ UNCHANGED << attempt, bad, ended, place, slot, seq, faults, 
                                plan >>

Deadline == /\ ~ended /\ Wanting # {} /\ (\A n \in Nodes : ~Usable(n)) /\ (\A c \in Controllers : plan[c] = Idle)
               /\ (\A n \in Nodes : slot[n] # Free => slot[n].att = attempt[slot[n].of])
            /\ ended' = TRUE
            /\ UNCHANGED << attempt, gone, bad, place, slot, seq, runs, faults, 
                            plan >>

Env == /\ \/ /\ \E n \in {m \in Nodes : runs[m] # Free}:
                  /\ faults < MaxFaults /\ ~ended /\ runs[n].att = attempt[runs[n].of]
                  /\ faults' = faults + 1
                  /\ bad' = (bad \cup {n})
                  /\ attempt' = [attempt EXCEPT ![runs[n].of] = attempt[runs[n].of] + 1]
                  /\ gone' = [gone EXCEPT ![runs[n].of] = FALSE]
          \/ /\ \E n \in {m \in Nodes : runs[m] # Free}:
                  /\ faults < MaxFaults /\ ~ended /\ runs[n].att = attempt[runs[n].of]
                  /\ faults' = faults + 1
                  /\ attempt' = [attempt EXCEPT ![runs[n].of] = attempt[runs[n].of] + 1]
                  /\ gone' = [gone EXCEPT ![runs[n].of] = FALSE]
             /\ bad' = bad
          \/ /\ ~ended
             /\ \E n \in bad:
                  bad' = bad \ {n}
             /\ UNCHANGED <<attempt, gone, faults>>
       /\ UNCHANGED << ended, place, slot, seq, runs, plan >>

Next == Deadline \/ Env
           \/ (\E self \in Controllers: Controller(self))
           \/ (\E self \in Nodes: Daemon(self))

Spec == /\ Init /\ [][Next]_vars
        /\ \A self \in Controllers : WF_vars(Controller(self))
        /\ \A self \in Nodes : WF_vars(Daemon(self))
        /\ WF_vars(Deadline)

\* END TRANSLATION
\* ==== INVARIANTS ======================================================================
\* a place has one pod at a time: the next one starts when the one before is verified gone
OnePodPerPlace   == \A p \in Places : Cardinality(Running(p)) <= 1
\* a slot is of one place, and no place has two slots of the same attempt
OneSlotPerPlace  == \A m, n \in Nodes : (m # n /\ slot[m] # Free) => ~(slot[m].of = slot[n].of /\ slot[m].att = slot[n].att)
\* place and slot say the same
PlaceIsSlot      == \A p \in Places : Placed(p) => slot[place[p].node].of = p /\ slot[place[p].node].att = place[p].att
\* the job waits no longer than it must, and never gives up while a node is free for it: with S spares it takes S faulty nodes, not one less
EndsOnlyWithoutNodes == ended => Cardinality(Nodes \ bad) < Cardinality(Places)
\* ==== ACTIONS =========================================================================
\* a node with evidence against it gets nothing new
BadStaysEmpty    == [][\A n \in bad : runs[n] = Free => runs'[n] = Free]_vars
\* ==== LIVENESS ========================================================================
\* every place runs in the end, or no node is left for it
AllRunOrNoNode   == <>[](ended \/ \A p \in Places : \E n \in Running(p) : runs[n].att = attempt[p])
=============================================================================
