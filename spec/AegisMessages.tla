---------------------------- MODULE AegisMessages ----------------------------
(* P1: what travels may be lost, doubled, late and out of order.                    *)
(* net is a set: receiving does not remove (duplication), any order (reordering),   *)
(* Env removes (loss).  An order names the attempts it is for; a report carries     *)
(* attempt, boot and the round it answers.  The head holds the dedup data: finished *)
(* and errored of the round, attempt and boot of each place, countedIncarnation.    *)
(* The phases are those of AegisPhase, without marks, plain, suspend.               *)
EXTENDS Naturals, FiniteSets, TLC
CONSTANTS Workers, MaxRetry, InitSeqNum,
  MaxDist,        \* kills, reboots, errors and losses of messages that may happen
  MaxAttempt,
  MaxPend,        \* reports that a worker may send before it knows the round
  MaxGap          \* orders repeated because reports were lost (a gap in the stream)
Min(a, b) == IF a < b THEN a ELSE b
All(v)    == [w \in Workers |-> v]
Msg(kind, w, a, b, s) == [kind |-> kind, w |-> w, att |-> a, boot |-> b, seq |-> s]
Terminal  == {"Succeed","Failed"}
Rounds    == {"BootChecking","RunCommand","Troubleshooting"}
(* --algorithm Messages
variables
  \* the head and its pods
  phase = "Pending", seq = InitSeqNum, roundSeq = 0, recoverCount = 0, failures = 0, counted = FALSE, booted = FALSE,
  retries = All(0), present = All(FALSE), attempt = All(1), boot = All(0), oldBoot = All(0), finished = All(FALSE), errored = All(FALSE),
  orders = (InitSeqNum :> [ph |-> "Pending", att |-> All(1), round |-> 0]),    \* every order ever published
  \* the world: which attempt and boot of a pod lives, the order it works on, what it answered
  att = All(1), bt = All(2), alive = All(FALSE), born = All(0), wseq = All(0), wround = All(0), result = All("none"),
  net = {}, dist = 0, pend = 0, gap = 0,
  \* ghosts: runs in which something really failed; runs that were counted; answers taken of worker and round
  bad = {}, countedRuns = {}, taken = {}, countedTwice = FALSE, takenTwice = FALSE, staleTaken = FALSE;
define
  Live       == phase \notin Terminal
  AllDone    == \A w \in Workers : finished[w] \/ errored[w]
  AllHere    == \A w \in Workers : present[w]
  Mine(m)    == m.att = attempt[m.w] /\ m.boot = boot[m.w] /\ present[m.w]
  Answers(m) == Mine(m) /\ phase \in Rounds /\ roundSeq <= m.seq /\ m.seq <= seq /\ ~finished[m.w] /\ ~errored[m.w]
end define;

macro order(p, na) begin          \* the next order; entering a round voids what was reported
  phase := p; finished := All(FALSE); errored := All(FALSE);
  roundSeq := IF p \in Rounds THEN seq + 1 ELSE 0;
  orders := orders @@ (seq + 1 :> [ph |-> p, att |-> na, round |-> seq + 1]);
  seq := seq + 1;
end macro;

macro run() begin
  if \E w \in Workers : ~alive[w] \/ att[w] # attempt[w] \/ bt[w] # boot[w] then bad := bad \cup {seq + 1}; end if;
  retries := All(recoverCount); counted := FALSE; booted := TRUE;
  order("RunCommand", attempt);
end macro;

macro count(w, target, na) begin  \* at most one count per incarnation; a spent budget waits for nobody
  with s = roundSeq, spent = ~counted /\ failures >= MaxRetry do
    if ~counted then
      retries[w] := retries[w] + 1; failures := failures + 1; counted := TRUE; 
      countedTwice := countedTwice \/ s \in countedRuns; countedRuns := countedRuns \cup {s};
      recoverCount := IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry);
    end if;
    order(IF spent THEN "Failed" ELSE target, na);
  end with;
end macro;

macro lose(w, a, b, here) begin   \* a place loses its pod; (a, b, here) is what holds it from now on
  attempt[w] := a; oldBoot[w] := boot[w]; boot[w] := b; present[w] := here;
  if phase = "RunCommand" /\ ~finished[w] then count(w, "Restarting", [attempt EXCEPT ![w] = a]);
  elsif phase \in {"BootChecking","Troubleshooting"} then order("Restarting", [attempt EXCEPT ![w] = a]); end if;
end macro;

fair process Master = "master"
begin
M: while TRUE do
     either await phase = "Pending" /\ AllHere; order("BootChecking", attempt);
     or     await phase = "Restarting" /\ AllHere; order(IF booted THEN "Troubleshooting" ELSE "BootChecking", attempt);
     or     await phase = "RunCommand" /\ (\A w \in Workers : finished[w]); order("Succeed", attempt);
     or     await phase \in {"BootChecking","Troubleshooting"} /\ AllDone /\ errored = All(FALSE); run();
     or     \* who could not diagnose leaves
       await phase \in {"BootChecking","Troubleshooting"} /\ AllDone /\ errored # All(FALSE);
       with out = errored, na = [w \in Workers |-> IF out[w] THEN attempt[w] + 1 ELSE attempt[w]] do
         alive := [w \in Workers |-> alive[w] /\ ~(out[w] /\ att[w] = attempt[w])];
         present := [w \in Workers |-> present[w] /\ ~out[w]];
         oldBoot := [w \in Workers |-> IF out[w] THEN boot[w] ELSE oldBoot[w]]; boot := [w \in Workers |-> IF out[w] THEN 0 ELSE boot[w]];
         attempt := na;
         order("Restarting", na);
       end with;
     or     \* "I am here": news only if the boot is new and the attempt not an old one
       with m \in {x \in net : x.kind = "ready" /\ Live /\ x.att >= attempt[x.w]} do
         if m.att > attempt[m.w] then
           if present[m.w] then lose(m.w, m.att, m.boot, TRUE);
           else present[m.w] := TRUE; attempt[m.w] := m.att; boot[m.w] := m.boot; end if;
         else
           await m.boot # boot[m.w] /\ m.boot # oldBoot[m.w];
           if present[m.w] then lose(m.w, m.att, m.boot, TRUE);
           else present[m.w] := TRUE; boot[m.w] := m.boot; end if;
         end if;
       end with;
     or     \* the platform: this attempt is gone; may be late
       with m \in {x \in net : x.kind = "lost" /\ Live /\ x.att = attempt[x.w]} do
         lose(m.w, m.att + 1, 0, FALSE);
       end with;
     or
       with m \in {x \in net : x.kind = "finish" /\ Answers(x)} do
         finished[m.w] := TRUE; takenTwice := takenTwice \/ <<m.w, roundSeq>> \in taken; taken := taken \cup {<<m.w, roundSeq>>};
         if m.seq < roundSeq then staleTaken := TRUE; end if;
       end with;
     or
       with m \in {x \in net : x.kind = "error" /\ Answers(x)} do
         takenTwice := takenTwice \/ <<m.w, roundSeq>> \in taken; taken := taken \cup {<<m.w, roundSeq>>};
         if m.seq < roundSeq then staleTaken := TRUE; end if;
         if phase = "RunCommand" then count(m.w, IF AllHere THEN "Troubleshooting" ELSE "Restarting", attempt);
         else errored[m.w] := TRUE; end if;
       end with;
     end either;
   end while;
end process;

fair process Agent \in Workers
begin
A: while TRUE do
     either \* the first pod of this place
       await ~alive[self] /\ Live /\ att[self] = 1 /\ bt[self] = 2 /\ wseq[self] = 0 /\ Msg("lost", self, 1, 0, 0) \notin net;
       alive[self] := TRUE; born[self] := seq; wseq[self] := seq; net := net \cup {Msg("ready", self, 1, 2, 0)};
     or     \* placed anew; what stands when it starts is not for it
       await ~alive[self] /\ Live /\ wseq[self] > 0 /\ att[self] < MaxAttempt;
       net := net \cup {Msg("ready", self, att[self] + 1, 2 * (att[self] + 1), 0), Msg("lost", self, att[self], 0, 0)};
       bt[self] := 2 * (att[self] + 1); att[self] := att[self] + 1; alive[self] := TRUE; born[self] := seq; wseq[self] := seq; wround[self] := 0; result[self] := "none";
     or     \* says again that it is here (level, not edge)
       await alive[self] /\ Msg("ready", self, att[self], bt[self], 0) \notin net /\ ~(present[self] /\ boot[self] = bt[self]);
       net := net \cup {Msg("ready", self, att[self], bt[self], 0)};
     or     \* takes an order, maybe an old one; the same round again keeps its result
       with s \in DOMAIN orders do
         await alive[self] /\ s > wseq[self] /\ orders[s].ph \in Rounds /\ orders[s].att[self] = att[self]
               /\ orders[s].round > born[self];       \* also when it is repeated under a higher number
         wseq[self] := s;
         if orders[s].round # wround[self] then wround[self] := orders[s].round; result[self] := "none"; end if;
       end with;
     or     \* answers it, and answers again while the answer is not in
       await alive[self] /\ wround[self] > 0 /\ result[self] # "error" /\ Msg("finish", self, att[self], bt[self], wseq[self]) \notin net
             /\ (result[self] = "none" \/ wseq[self] = seq);
       net := net \cup {Msg("finish", self, att[self], bt[self], wseq[self])}; result[self] := "finish";
     or
       await alive[self] /\ wround[self] > 0 /\ result[self] = "error" /\ Msg("error", self, att[self], bt[self], wseq[self]) \notin net
             /\ wseq[self] = seq;
       net := net \cup {Msg("error", self, att[self], bt[self], wseq[self])};
     end either;
   end while;
end process;

process Env = "env"
begin
E: while TRUE do
     await Live;
     either with w \in Workers do      \* killed
              await dist < MaxDist /\ alive[w] /\ att[w] < MaxAttempt;
              dist := dist + 1; alive[w] := FALSE; net := net \cup {Msg("lost", w, att[w], 0, 0)};
              if phase = "RunCommand" then bad := bad \cup {roundSeq}; end if;
            end with;
     or     with w \in Workers do      \* the agent restarts under its attempt: a new boot
              await dist < MaxDist /\ alive[w] /\ bt[w] = 2 * att[w];
              dist := dist + 1; born[w] := seq; wseq[w] := seq; wround[w] := 0; result[w] := "none";
              net := {m \in net : m.w = w /\ m.boot = bt[w] => boot[w] = bt[w]} \cup {Msg("ready", w, att[w], bt[w] + 1, 0)};
              bt[w] := bt[w] + 1;
              if phase = "RunCommand" then bad := bad \cup {roundSeq}; end if;
            end with;
     or     with w \in Workers do      \* an Error
              await dist < MaxDist /\ alive[w] /\ wround[w] > 0 /\ result[w] = "none";
              dist := dist + 1; net := net \cup {Msg("error", w, att[w], bt[w], wseq[w])}; result[w] := "error";
              if orders[wseq[w]].ph = "RunCommand" then bad := bad \cup {wround[w]}; end if;
            end with;
     or     with w \in Workers do      \* a report before the round is known
              await pend < MaxPend /\ alive[w] /\ wround[w] = 0;
              pend := pend + 1; net := net \cup {Msg("finish", w, att[w], bt[w], 0)};
            end with;
     or     with m \in net do          \* lost on the way; word of the platform comes again until it is heard
              await dist < MaxDist /\ m.kind # "lost";
              dist := dist + 1; net := net \ {m};
            end with;
     or     await gap < MaxGap /\ phase \in Rounds;   \* reports were lost: the same order under a new number
            gap := gap + 1; orders := orders @@ (seq + 1 :> [orders[seq] EXCEPT !.att = attempt]); seq := seq + 1;
     end either;
   end while;
end process;
end algorithm; *)
\* BEGIN TRANSLATION
VARIABLES phase, seq, roundSeq, recoverCount, failures, counted, booted, 
          retries, present, attempt, boot, oldBoot, finished, errored, orders, 
          att, bt, alive, born, wseq, wround, result, net, dist, pend, gap, 
          bad, countedRuns, taken, countedTwice, takenTwice, staleTaken

(* define statement *)
Live       == phase \notin Terminal
AllDone    == \A w \in Workers : finished[w] \/ errored[w]
AllHere    == \A w \in Workers : present[w]
Mine(m)    == m.att = attempt[m.w] /\ m.boot = boot[m.w] /\ present[m.w]
Answers(m) == Mine(m) /\ phase \in Rounds /\ roundSeq <= m.seq /\ m.seq <= seq /\ ~finished[m.w] /\ ~errored[m.w]


vars == << phase, seq, roundSeq, recoverCount, failures, counted, booted, 
           retries, present, attempt, boot, oldBoot, finished, errored, 
           orders, att, bt, alive, born, wseq, wround, result, net, dist, 
           pend, gap, bad, countedRuns, taken, countedTwice, takenTwice, 
           staleTaken >>

ProcSet == {"master"} \cup (Workers) \cup {"env"}

Init == (* Global variables *)
        /\ phase = "Pending"
        /\ seq = InitSeqNum
        /\ roundSeq = 0
        /\ recoverCount = 0
        /\ failures = 0
        /\ counted = FALSE
        /\ booted = FALSE
        /\ retries = All(0)
        /\ present = All(FALSE)
        /\ attempt = All(1)
        /\ boot = All(0)
        /\ oldBoot = All(0)
        /\ finished = All(FALSE)
        /\ errored = All(FALSE)
        /\ orders = (InitSeqNum :> [ph |-> "Pending", att |-> All(1), round |-> 0])
        /\ att = All(1)
        /\ bt = All(2)
        /\ alive = All(FALSE)
        /\ born = All(0)
        /\ wseq = All(0)
        /\ wround = All(0)
        /\ result = All("none")
        /\ net = {}
        /\ dist = 0
        /\ pend = 0
        /\ gap = 0
        /\ bad = {}
        /\ countedRuns = {}
        /\ taken = {}
        /\ countedTwice = FALSE
        /\ takenTwice = FALSE
        /\ staleTaken = FALSE

Master == /\ \/ /\ phase = "Pending" /\ AllHere
                /\ phase' = "BootChecking"
                /\ finished' = All(FALSE)
                /\ errored' = All(FALSE)
                /\ roundSeq' = (IF "BootChecking" \in Rounds THEN seq + 1 ELSE 0)
                /\ orders' = orders @@ (seq + 1 :> [ph |-> "BootChecking", att |-> attempt, round |-> seq + 1])
                /\ seq' = seq + 1
                /\ UNCHANGED <<recoverCount, failures, counted, booted, retries, present, attempt, boot, oldBoot, alive, bad, countedRuns, taken, countedTwice, takenTwice, staleTaken>>
             \/ /\ phase = "Restarting" /\ AllHere
                /\ phase' = IF booted THEN "Troubleshooting" ELSE "BootChecking"
                /\ finished' = All(FALSE)
                /\ errored' = All(FALSE)
                /\ roundSeq' = (IF (IF booted THEN "Troubleshooting" ELSE "BootChecking") \in Rounds THEN seq + 1 ELSE 0)
                /\ orders' = orders @@ (seq + 1 :> [ph |-> (IF booted THEN "Troubleshooting" ELSE "BootChecking"), att |-> attempt, round |-> seq + 1])
                /\ seq' = seq + 1
                /\ UNCHANGED <<recoverCount, failures, counted, booted, retries, present, attempt, boot, oldBoot, alive, bad, countedRuns, taken, countedTwice, takenTwice, staleTaken>>
             \/ /\ phase = "RunCommand" /\ (\A w \in Workers : finished[w])
                /\ phase' = "Succeed"
                /\ finished' = All(FALSE)
                /\ errored' = All(FALSE)
                /\ roundSeq' = (IF "Succeed" \in Rounds THEN seq + 1 ELSE 0)
                /\ orders' = orders @@ (seq + 1 :> [ph |-> "Succeed", att |-> attempt, round |-> seq + 1])
                /\ seq' = seq + 1
                /\ UNCHANGED <<recoverCount, failures, counted, booted, retries, present, attempt, boot, oldBoot, alive, bad, countedRuns, taken, countedTwice, takenTwice, staleTaken>>
             \/ /\ phase \in {"BootChecking","Troubleshooting"} /\ AllDone /\ errored = All(FALSE)
                /\ IF \E w \in Workers : ~alive[w] \/ att[w] # attempt[w] \/ bt[w] # boot[w]
                      THEN /\ bad' = (bad \cup {seq + 1})
                      ELSE /\ TRUE
                           /\ bad' = bad
                /\ retries' = All(recoverCount)
                /\ counted' = FALSE
                /\ booted' = TRUE
                /\ phase' = "RunCommand"
                /\ finished' = All(FALSE)
                /\ errored' = All(FALSE)
                /\ roundSeq' = (IF "RunCommand" \in Rounds THEN seq + 1 ELSE 0)
                /\ orders' = orders @@ (seq + 1 :> [ph |-> "RunCommand", att |-> attempt, round |-> seq + 1])
                /\ seq' = seq + 1
                /\ UNCHANGED <<recoverCount, failures, present, attempt, boot, oldBoot, alive, countedRuns, taken, countedTwice, takenTwice, staleTaken>>
             \/ /\ phase \in {"BootChecking","Troubleshooting"} /\ AllDone /\ errored # All(FALSE)
                /\ LET out == errored IN
                     LET na == [w \in Workers |-> IF out[w] THEN attempt[w] + 1 ELSE attempt[w]] IN
                       /\ alive' = [w \in Workers |-> alive[w] /\ ~(out[w] /\ att[w] = attempt[w])]
                       /\ present' = [w \in Workers |-> present[w] /\ ~out[w]]
                       /\ oldBoot' = [w \in Workers |-> IF out[w] THEN boot[w] ELSE oldBoot[w]]
                       /\ boot' = [w \in Workers |-> IF out[w] THEN 0 ELSE boot[w]]
                       /\ attempt' = na
                       /\ phase' = "Restarting"
                       /\ finished' = All(FALSE)
                       /\ errored' = All(FALSE)
                       /\ roundSeq' = (IF "Restarting" \in Rounds THEN seq + 1 ELSE 0)
                       /\ orders' = orders @@ (seq + 1 :> [ph |-> "Restarting", att |-> na, round |-> seq + 1])
                       /\ seq' = seq + 1
                /\ UNCHANGED <<recoverCount, failures, counted, booted, retries, bad, countedRuns, taken, countedTwice, takenTwice, staleTaken>>
             \/ /\ \E m \in {x \in net : x.kind = "ready" /\ Live /\ x.att >= attempt[x.w]}:
                     IF m.att > attempt[m.w]
                        THEN /\ IF present[m.w]
                                   THEN /\ attempt' = [attempt EXCEPT ![(m.w)] = m.att]
                                        /\ oldBoot' = [oldBoot EXCEPT ![(m.w)] = boot[(m.w)]]
                                        /\ boot' = [boot EXCEPT ![(m.w)] = m.boot]
                                        /\ present' = [present EXCEPT ![(m.w)] = TRUE]
                                        /\ IF phase = "RunCommand" /\ ~finished[(m.w)]
                                              THEN /\ LET s == roundSeq IN
                                                        LET spent == ~counted /\ failures >= MaxRetry IN
                                                          /\ IF ~counted
                                                                THEN /\ retries' = [retries EXCEPT ![(m.w)] = retries[(m.w)] + 1]
                                                                     /\ failures' = failures + 1
                                                                     /\ counted' = TRUE
                                                                     /\ countedTwice' = (countedTwice \/ s \in countedRuns)
                                                                     /\ countedRuns' = (countedRuns \cup {s})
                                                                     /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                                                ELSE /\ TRUE
                                                                     /\ UNCHANGED << recoverCount, 
                                                                                     failures, 
                                                                                     counted, 
                                                                                     retries, 
                                                                                     countedRuns, 
                                                                                     countedTwice >>
                                                          /\ phase' = IF spent THEN "Failed" ELSE "Restarting"
                                                          /\ finished' = All(FALSE)
                                                          /\ errored' = All(FALSE)
                                                          /\ roundSeq' = (IF (IF spent THEN "Failed" ELSE "Restarting") \in Rounds THEN seq + 1 ELSE 0)
                                                          /\ orders' = orders @@ (seq + 1 :> [ph |-> (IF spent THEN "Failed" ELSE "Restarting"), att |-> ([attempt' EXCEPT ![(m.w)] = (m.att)]), round |-> seq + 1])
                                                          /\ seq' = seq + 1
                                              ELSE /\ IF phase \in {"BootChecking","Troubleshooting"}
                                                         THEN /\ phase' = "Restarting"
                                                              /\ finished' = All(FALSE)
                                                              /\ errored' = All(FALSE)
                                                              /\ roundSeq' = (IF "Restarting" \in Rounds THEN seq + 1 ELSE 0)
                                                              /\ orders' = orders @@ (seq + 1 :> [ph |-> "Restarting", att |-> ([attempt' EXCEPT ![(m.w)] = (m.att)]), round |-> seq + 1])
                                                              /\ seq' = seq + 1
                                                         ELSE /\ TRUE
                                                              /\ UNCHANGED << phase, 
                                                                              seq, 
                                                                              roundSeq, 
                                                                              finished, 
                                                                              errored, 
                                                                              orders >>
                                                   /\ UNCHANGED << recoverCount, 
                                                                   failures, 
                                                                   counted, 
                                                                   retries, 
                                                                   countedRuns, 
                                                                   countedTwice >>
                                   ELSE /\ present' = [present EXCEPT ![m.w] = TRUE]
                                        /\ attempt' = [attempt EXCEPT ![m.w] = m.att]
                                        /\ boot' = [boot EXCEPT ![m.w] = m.boot]
                                        /\ UNCHANGED << phase, seq, roundSeq, 
                                                        recoverCount, failures, 
                                                        counted, retries, 
                                                        oldBoot, finished, 
                                                        errored, orders, 
                                                        countedRuns, 
                                                        countedTwice >>
                        ELSE /\ m.boot # boot[m.w] /\ m.boot # oldBoot[m.w]
                             /\ IF present[m.w]
                                   THEN /\ attempt' = [attempt EXCEPT ![(m.w)] = m.att]
                                        /\ oldBoot' = [oldBoot EXCEPT ![(m.w)] = boot[(m.w)]]
                                        /\ boot' = [boot EXCEPT ![(m.w)] = m.boot]
                                        /\ present' = [present EXCEPT ![(m.w)] = TRUE]
                                        /\ IF phase = "RunCommand" /\ ~finished[(m.w)]
                                              THEN /\ LET s == roundSeq IN
                                                        LET spent == ~counted /\ failures >= MaxRetry IN
                                                          /\ IF ~counted
                                                                THEN /\ retries' = [retries EXCEPT ![(m.w)] = retries[(m.w)] + 1]
                                                                     /\ failures' = failures + 1
                                                                     /\ counted' = TRUE
                                                                     /\ countedTwice' = (countedTwice \/ s \in countedRuns)
                                                                     /\ countedRuns' = (countedRuns \cup {s})
                                                                     /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                                                ELSE /\ TRUE
                                                                     /\ UNCHANGED << recoverCount, 
                                                                                     failures, 
                                                                                     counted, 
                                                                                     retries, 
                                                                                     countedRuns, 
                                                                                     countedTwice >>
                                                          /\ phase' = IF spent THEN "Failed" ELSE "Restarting"
                                                          /\ finished' = All(FALSE)
                                                          /\ errored' = All(FALSE)
                                                          /\ roundSeq' = (IF (IF spent THEN "Failed" ELSE "Restarting") \in Rounds THEN seq + 1 ELSE 0)
                                                          /\ orders' = orders @@ (seq + 1 :> [ph |-> (IF spent THEN "Failed" ELSE "Restarting"), att |-> ([attempt' EXCEPT ![(m.w)] = (m.att)]), round |-> seq + 1])
                                                          /\ seq' = seq + 1
                                              ELSE /\ IF phase \in {"BootChecking","Troubleshooting"}
                                                         THEN /\ phase' = "Restarting"
                                                              /\ finished' = All(FALSE)
                                                              /\ errored' = All(FALSE)
                                                              /\ roundSeq' = (IF "Restarting" \in Rounds THEN seq + 1 ELSE 0)
                                                              /\ orders' = orders @@ (seq + 1 :> [ph |-> "Restarting", att |-> ([attempt' EXCEPT ![(m.w)] = (m.att)]), round |-> seq + 1])
                                                              /\ seq' = seq + 1
                                                         ELSE /\ TRUE
                                                              /\ UNCHANGED << phase, 
                                                                              seq, 
                                                                              roundSeq, 
                                                                              finished, 
                                                                              errored, 
                                                                              orders >>
                                                   /\ UNCHANGED << recoverCount, 
                                                                   failures, 
                                                                   counted, 
                                                                   retries, 
                                                                   countedRuns, 
                                                                   countedTwice >>
                                   ELSE /\ present' = [present EXCEPT ![m.w] = TRUE]
                                        /\ boot' = [boot EXCEPT ![m.w] = m.boot]
                                        /\ UNCHANGED << phase, seq, roundSeq, 
                                                        recoverCount, failures, 
                                                        counted, retries, 
                                                        attempt, oldBoot, 
                                                        finished, errored, 
                                                        orders, countedRuns, 
                                                        countedTwice >>
                /\ UNCHANGED <<booted, alive, bad, taken, takenTwice, staleTaken>>
             \/ /\ \E m \in {x \in net : x.kind = "lost" /\ Live /\ x.att = attempt[x.w]}:
                     /\ attempt' = [attempt EXCEPT ![(m.w)] = m.att + 1]
                     /\ oldBoot' = [oldBoot EXCEPT ![(m.w)] = boot[(m.w)]]
                     /\ boot' = [boot EXCEPT ![(m.w)] = 0]
                     /\ present' = [present EXCEPT ![(m.w)] = FALSE]
                     /\ IF phase = "RunCommand" /\ ~finished[(m.w)]
                           THEN /\ LET s == roundSeq IN
                                     LET spent == ~counted /\ failures >= MaxRetry IN
                                       /\ IF ~counted
                                             THEN /\ retries' = [retries EXCEPT ![(m.w)] = retries[(m.w)] + 1]
                                                  /\ failures' = failures + 1
                                                  /\ counted' = TRUE
                                                  /\ countedTwice' = (countedTwice \/ s \in countedRuns)
                                                  /\ countedRuns' = (countedRuns \cup {s})
                                                  /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                             ELSE /\ TRUE
                                                  /\ UNCHANGED << recoverCount, 
                                                                  failures, 
                                                                  counted, 
                                                                  retries, 
                                                                  countedRuns, 
                                                                  countedTwice >>
                                       /\ phase' = IF spent THEN "Failed" ELSE "Restarting"
                                       /\ finished' = All(FALSE)
                                       /\ errored' = All(FALSE)
                                       /\ roundSeq' = (IF (IF spent THEN "Failed" ELSE "Restarting") \in Rounds THEN seq + 1 ELSE 0)
                                       /\ orders' = orders @@ (seq + 1 :> [ph |-> (IF spent THEN "Failed" ELSE "Restarting"), att |-> ([attempt' EXCEPT ![(m.w)] = (m.att + 1)]), round |-> seq + 1])
                                       /\ seq' = seq + 1
                           ELSE /\ IF phase \in {"BootChecking","Troubleshooting"}
                                      THEN /\ phase' = "Restarting"
                                           /\ finished' = All(FALSE)
                                           /\ errored' = All(FALSE)
                                           /\ roundSeq' = (IF "Restarting" \in Rounds THEN seq + 1 ELSE 0)
                                           /\ orders' = orders @@ (seq + 1 :> [ph |-> "Restarting", att |-> ([attempt' EXCEPT ![(m.w)] = (m.att + 1)]), round |-> seq + 1])
                                           /\ seq' = seq + 1
                                      ELSE /\ TRUE
                                           /\ UNCHANGED << phase, seq, 
                                                           roundSeq, finished, 
                                                           errored, orders >>
                                /\ UNCHANGED << recoverCount, failures, 
                                                counted, retries, countedRuns, 
                                                countedTwice >>
                /\ UNCHANGED <<booted, alive, bad, taken, takenTwice, staleTaken>>
             \/ /\ \E m \in {x \in net : x.kind = "finish" /\ Answers(x)}:
                     /\ finished' = [finished EXCEPT ![m.w] = TRUE]
                     /\ takenTwice' = (takenTwice \/ <<m.w, roundSeq>> \in taken)
                     /\ taken' = (taken \cup {<<m.w, roundSeq>>})
                     /\ IF m.seq < roundSeq
                           THEN /\ staleTaken' = TRUE
                           ELSE /\ TRUE
                                /\ UNCHANGED staleTaken
                /\ UNCHANGED <<phase, seq, roundSeq, recoverCount, failures, counted, booted, retries, present, attempt, boot, oldBoot, errored, orders, alive, bad, countedRuns, countedTwice>>
             \/ /\ \E m \in {x \in net : x.kind = "error" /\ Answers(x)}:
                     /\ takenTwice' = (takenTwice \/ <<m.w, roundSeq>> \in taken)
                     /\ taken' = (taken \cup {<<m.w, roundSeq>>})
                     /\ IF m.seq < roundSeq
                           THEN /\ staleTaken' = TRUE
                           ELSE /\ TRUE
                                /\ UNCHANGED staleTaken
                     /\ IF phase = "RunCommand"
                           THEN /\ LET s == roundSeq IN
                                     LET spent == ~counted /\ failures >= MaxRetry IN
                                       /\ IF ~counted
                                             THEN /\ retries' = [retries EXCEPT ![(m.w)] = retries[(m.w)] + 1]
                                                  /\ failures' = failures + 1
                                                  /\ counted' = TRUE
                                                  /\ countedTwice' = (countedTwice \/ s \in countedRuns)
                                                  /\ countedRuns' = (countedRuns \cup {s})
                                                  /\ recoverCount' = IF spent THEN MaxRetry + 1 ELSE Min(recoverCount + 1, MaxRetry)
                                             ELSE /\ TRUE
                                                  /\ UNCHANGED << recoverCount, 
                                                                  failures, 
                                                                  counted, 
                                                                  retries, 
                                                                  countedRuns, 
                                                                  countedTwice >>
                                       /\ phase' = IF spent THEN "Failed" ELSE (IF AllHere THEN "Troubleshooting" ELSE "Restarting")
                                       /\ finished' = All(FALSE)
                                       /\ errored' = All(FALSE)
                                       /\ roundSeq' = (IF (IF spent THEN "Failed" ELSE (IF AllHere THEN "Troubleshooting" ELSE "Restarting")) \in Rounds THEN seq + 1 ELSE 0)
                                       /\ orders' = orders @@ (seq + 1 :> [ph |-> (IF spent THEN "Failed" ELSE (IF AllHere THEN "Troubleshooting" ELSE "Restarting")), att |-> attempt, round |-> seq + 1])
                                       /\ seq' = seq + 1
                           ELSE /\ errored' = [errored EXCEPT ![m.w] = TRUE]
                                /\ UNCHANGED << phase, seq, roundSeq, 
                                                recoverCount, failures, 
                                                counted, retries, finished, 
                                                orders, countedRuns, 
                                                countedTwice >>
                /\ UNCHANGED <<booted, present, attempt, boot, oldBoot, alive, bad>>
          /\ UNCHANGED << att, bt, born, wseq, wround, result, net, dist, pend, 
                          gap >>

Agent(self) == /\ \/ /\ ~alive[self] /\ Live /\ att[self] = 1 /\ bt[self] = 2 /\ wseq[self] = 0 /\ Msg("lost", self, 1, 0, 0) \notin net
                     /\ alive' = [alive EXCEPT ![self] = TRUE]
                     /\ born' = [born EXCEPT ![self] = seq]
                     /\ wseq' = [wseq EXCEPT ![self] = seq]
                     /\ net' = (net \cup {Msg("ready", self, 1, 2, 0)})
                     /\ UNCHANGED <<att, bt, wround, result>>
                  \/ /\ ~alive[self] /\ Live /\ wseq[self] > 0 /\ att[self] < MaxAttempt
                     /\ net' = (net \cup {Msg("ready", self, att[self] + 1, 2 * (att[self] + 1), 0), Msg("lost", self, att[self], 0, 0)})
                     /\ bt' = [bt EXCEPT ![self] = 2 * (att[self] + 1)]
                     /\ att' = [att EXCEPT ![self] = att[self] + 1]
                     /\ alive' = [alive EXCEPT ![self] = TRUE]
                     /\ born' = [born EXCEPT ![self] = seq]
                     /\ wseq' = [wseq EXCEPT ![self] = seq]
                     /\ wround' = [wround EXCEPT ![self] = 0]
                     /\ result' = [result EXCEPT ![self] = "none"]
                  \/ /\ alive[self] /\ Msg("ready", self, att[self], bt[self], 0) \notin net /\ ~(present[self] /\ boot[self] = bt[self])
                     /\ net' = (net \cup {Msg("ready", self, att[self], bt[self], 0)})
                     /\ UNCHANGED <<att, bt, alive, born, wseq, wround, result>>
                  \/ /\ \E s \in DOMAIN orders:
                          /\ alive[self] /\ s > wseq[self] /\ orders[s].ph \in Rounds /\ orders[s].att[self] = att[self]
                             /\ orders[s].round > born[self]
                          /\ wseq' = [wseq EXCEPT ![self] = s]
                          /\ IF orders[s].round # wround[self]
                                THEN /\ wround' = [wround EXCEPT ![self] = orders[s].round]
                                     /\ result' = [result EXCEPT ![self] = "none"]
                                ELSE /\ TRUE
                                     /\ UNCHANGED << wround, result >>
                     /\ UNCHANGED <<att, bt, alive, born, net>>
                  \/ /\ alive[self] /\ wround[self] > 0 /\ result[self] # "error" /\ Msg("finish", self, att[self], bt[self], wseq[self]) \notin net
                        /\ (result[self] = "none" \/ wseq[self] = seq)
                     /\ net' = (net \cup {Msg("finish", self, att[self], bt[self], wseq[self])})
                     /\ result' = [result EXCEPT ![self] = "finish"]
                     /\ UNCHANGED <<att, bt, alive, born, wseq, wround>>
                  \/ /\ alive[self] /\ wround[self] > 0 /\ result[self] = "error" /\ Msg("error", self, att[self], bt[self], wseq[self]) \notin net
                        /\ wseq[self] = seq
                     /\ net' = (net \cup {Msg("error", self, att[self], bt[self], wseq[self])})
                     /\ UNCHANGED <<att, bt, alive, born, wseq, wround, result>>
               /\ UNCHANGED << phase, seq, roundSeq, recoverCount, failures, 
                               counted, booted, retries, present, attempt, 
                               boot, oldBoot, finished, errored, orders, dist, 
                               pend, gap, bad, countedRuns, taken, 
                               countedTwice, takenTwice, staleTaken >>

Env == /\ Live
       /\ \/ /\ \E w \in Workers:
                  /\ dist < MaxDist /\ alive[w] /\ att[w] < MaxAttempt
                  /\ dist' = dist + 1
                  /\ alive' = [alive EXCEPT ![w] = FALSE]
                  /\ net' = (net \cup {Msg("lost", w, att[w], 0, 0)})
                  /\ IF phase = "RunCommand"
                        THEN /\ bad' = (bad \cup {roundSeq})
                        ELSE /\ TRUE
                             /\ bad' = bad
             /\ UNCHANGED <<seq, orders, bt, born, wseq, wround, result, pend, gap>>
          \/ /\ \E w \in Workers:
                  /\ dist < MaxDist /\ alive[w] /\ bt[w] = 2 * att[w]
                  /\ dist' = dist + 1
                  /\ born' = [born EXCEPT ![w] = seq]
                  /\ wseq' = [wseq EXCEPT ![w] = seq]
                  /\ wround' = [wround EXCEPT ![w] = 0]
                  /\ result' = [result EXCEPT ![w] = "none"]
                  /\ net' = ({m \in net : m.w = w /\ m.boot = bt[w] => boot[w] = bt[w]} \cup {Msg("ready", w, att[w], bt[w] + 1, 0)})
                  /\ bt' = [bt EXCEPT ![w] = bt[w] + 1]
                  /\ IF phase = "RunCommand"
                        THEN /\ bad' = (bad \cup {roundSeq})
                        ELSE /\ TRUE
                             /\ bad' = bad
             /\ UNCHANGED <<seq, orders, alive, pend, gap>>
          \/ /\ \E w \in Workers:
                  /\ dist < MaxDist /\ alive[w] /\ wround[w] > 0 /\ result[w] = "none"
                  /\ dist' = dist + 1
                  /\ net' = (net \cup {Msg("error", w, att[w], bt[w], wseq[w])})
                  /\ result' = [result EXCEPT ![w] = "error"]
                  /\ IF orders[wseq[w]].ph = "RunCommand"
                        THEN /\ bad' = (bad \cup {wround[w]})
                        ELSE /\ TRUE
                             /\ bad' = bad
             /\ UNCHANGED <<seq, orders, bt, alive, born, wseq, wround, pend, gap>>
          \/ /\ \E w \in Workers:
                  /\ pend < MaxPend /\ alive[w] /\ wround[w] = 0
                  /\ pend' = pend + 1
                  /\ net' = (net \cup {Msg("finish", w, att[w], bt[w], 0)})
             /\ UNCHANGED <<seq, orders, bt, alive, born, wseq, wround, result, dist, gap, bad>>
          \/ /\ \E m \in net:
                  /\ dist < MaxDist /\ m.kind # "lost"
                  /\ dist' = dist + 1
                  /\ net' = net \ {m}
             /\ UNCHANGED <<seq, orders, bt, alive, born, wseq, wround, result, pend, gap, bad>>
          \/ /\ gap < MaxGap /\ phase \in Rounds
             /\ gap' = gap + 1
             /\ orders' = orders @@ (seq + 1 :> [orders[seq] EXCEPT !.att = attempt])
             /\ seq' = seq + 1
             /\ UNCHANGED <<bt, alive, born, wseq, wround, result, net, dist, pend, bad>>
       /\ UNCHANGED << phase, roundSeq, recoverCount, failures, counted, 
                       booted, retries, present, attempt, boot, oldBoot, 
                       finished, errored, att, countedRuns, taken, 
                       countedTwice, takenTwice, staleTaken >>

Next == Master \/ Env
           \/ (\E self \in Workers: Agent(self))

Spec == /\ Init /\ [][Next]_vars
        /\ WF_vars(Master)
        /\ \A self \in Workers : WF_vars(Agent(self))

\* END TRANSLATION
SeqNumBound             == seq <= InitSeqNum + 8       \* CONSTRAINT
Symmetric               == Permutations(Workers)       \* SYMMETRY, where no liveness is checked: nothing here tells one worker from another
\* ==== INVARIANTS ====================================================================
\* three of the seed's four; MasterSeqNumMonotonic is below
NoFinishDoubleProcessed == ~takenTwice
WorkerSeqNumBound       == \A w \in Workers : wseq[w] <= seq
StaleFinishRejected     == ~staleTaken
CountOncePerRound       == ~countedTwice
CountOnlyRealFailures   == countedRuns \subseteq bad
\* Succeed means: every worker really finished the command of this round
SucceedIsTrue           == phase = "Succeed" => \A w \in Workers : <<w, orders[seq - 1].round>> \in taken /\ orders[seq - 1].ph = "RunCommand"
RetriesBound            == recoverCount <= MaxRetry + 1 /\ \A w \in Workers : retries[w] <= MaxRetry + 1
RecoverIsMax            == phase # "Failed" => \A w \in Workers : Min(retries[w], MaxRetry) <= recoverCount
\* no round of checks while a place is empty: its pod would have no order to answer
RoundsAreFull           == phase \in {"BootChecking","Troubleshooting"} => \A w \in Workers : present[w]
\* nobody acts but in a round that names its attempt and was ordered after it started
NobodyRunsAlone         == \A w \in Workers : (alive[w] /\ wround[w] > 0) => (orders[wseq[w]].att[w] = att[w] /\ wround[w] > born[w])
\* ==== ACTIONS =======================================================================
MasterSeqNumMonotonic   == [][seq' >= seq]_vars
\* an agent never goes back to an earlier order
WorkerNeverBack         == [][\A w \in Workers : (att'[w] = att[w] /\ bt'[w] = bt[w]) => (wseq'[w] >= wseq[w])]_vars
\* the job fails exactly at its (maxRetry+1)-th counted failure, whatever is lost, doubled or late
FailsExactly            == [][/\ (failures' > failures => (failures' = MaxRetry + 1 <=> phase' = "Failed"))
                              /\ (phase' = "Failed" /\ phase # "Failed" => failures = MaxRetry /\ failures' = MaxRetry + 1)]_vars
\* ==== LIVENESS ======================================================================
Ends                    == <>(phase \in Terminal)
=============================================================================
