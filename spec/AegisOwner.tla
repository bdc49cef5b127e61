----------------------------- MODULE AegisOwner -----------------------------
(* Who may change a job (aegis_bus.jobstore): several replicas, one head.           *)
(*                                                                                  *)
(* The head carries owner, term and the cursor into REPORTS, and every commit is a  *)
(* compare-and-set on the sequence of the head: that is the whole fence.  Leases    *)
(* and clocks only say who should try; AegisOwnerNoLease.cfg takes over at random.  *)
(* A commit travels: it may be applied, refused, lost, or applied long after its    *)
(* sender gave up or died (`wire`).  A master may crash, stall, or lose its lease   *)
(* between any two steps.  A report may be in the stream twice, and the stream may  *)
(* throw old reports away (a gap).  Each report is one decision with one effect     *)
(* outside (a call to the platform), keyed, so that repeating it is harmless.       *)
EXTENDS Naturals, FiniteSets, Sequences, TLC
CONSTANTS Masters, Reports, Nobody,
  MaxExpiry, MaxCrash, MaxTimeout, MaxDup, MaxGap, MaxLeave,
  UseLease        \* FALSE: anybody may try to take over at any time (bounded by MaxExpiry)
None  == [kind |-> "none"]
Empty == [seq |-> 0, owner |-> Nobody, term |-> 0, cursor |-> 0, round |-> 1, count |-> 0, done |-> {}]
Symmetric == Permutations(Masters) \cup Permutations(Reports)

(* --algorithm Owner
variables
  \* the store
  head = Empty, shard = 0,               \* shard: the count as the pods' shards hold it
  log = <<>>, first = 1,                 \* REPORTS, and its first retained sequence
  wire = {},                             \* commits under way
  \* the world
  lease = [m \in Masters |-> TRUE],
  sentRound = [r \in Reports |-> 0],     \* round in which the agent last sent this report
  made = {},                             \* effects done outside
  expiry = 0, crash = 0, timeout = 0, dup = 0, gap = 0, leave = 0,
  \* the masters: place in the program, what they read, the commit they wait for and its answer, effects owed (mutants only)
  at = [m \in Masters |-> "idle"], hd = [m \in Masters |-> Empty], sh = [m \in Masters |-> 0],
  waits = [m \in Masters |-> None], answer = [m \in Masters |-> "none"], mine = [m \in Masters |-> 0];
define
  Free(m)   == /\ (UseLease => lease[m])                           \* who is not alive by its own lease takes nothing over
               /\ \/ head.owner = Nobody
                  \/ head.owner = m                                \* itself before a crash, or a takeover it gave up waiting for
                  \/ (UseLease /\ head.owner # Nobody /\ ~lease[head.owner])
                  \/ (~UseLease /\ expiry < MaxExpiry)
  Open(m)   == hd[m].cursor < Len(log)
  Gap(m)    == first > hd[m].cursor + 1
  Commit(m, h, s) == [kind |-> "commit", from |-> m, expect |-> hd[m].seq, head |-> h, shard |-> s]
  Decide(h, r)    == [h EXCEPT !.cursor = h.cursor + 1, !.count = h.count + 1, !.done = h.done \cup {r}]
end define;

macro send(m, c) begin
  wire := wire \cup {c}; waits[m] := c; answer[m] := "none"; at[m] := "sent";
end macro;

fair process Master \in Masters
begin
M: while TRUE do
     either \* read the head, then the shards: a commit in between moves the head, and the claim is refused
       await at[self] = "idle" /\ Free(self);
       if ~UseLease /\ head.owner \notin {Nobody, self} then expiry := expiry + 1; end if;
       hd[self] := head; at[self] := "shards";
     or
       await at[self] = "shards"; sh[self] := shard; at[self] := "claim";
     or     \* take over: the head with owner := me, term + 1
       await at[self] = "claim"; mine[self] := hd[self].term + 1;
       send(self, Commit(self, [hd[self] EXCEPT !.owner = self, !.term = @ + 1], sh[self]));
     or     \* a report that is decided already changes nothing and needs no commit
       await at[self] = "own" /\ ~Gap(self) /\ Open(self) /\ log[hd[self].cursor + 1] \in hd[self].done;
       hd[self].cursor := hd[self].cursor + 1;
     or     \* decide the next report: state, order and cursor in one commit
       await at[self] = "own" /\ ~Gap(self) /\ Open(self) /\ log[hd[self].cursor + 1] \notin hd[self].done;
       send(self, Commit(self, Decide(hd[self], log[hd[self].cursor + 1]), sh[self] + 1));
     or     \* reports were thrown away unread: a new round, all report again
       await at[self] = "own" /\ Gap(self);
       send(self, Commit(self, [hd[self] EXCEPT !.cursor = first - 1, !.round = @ + 1], sh[self]));
     or     \* the answer of the store
       await at[self] = "sent" /\ answer[self] = "ok";
       hd[self] := [waits[self].head EXCEPT !.seq = waits[self].expect + 1]; sh[self] := waits[self].shard;
       at[self] := IF waits[self].head.owner = self THEN "own" ELSE "idle"; waits[self] := None; answer[self] := "none";
     or     \* told to end: the head as it last stored it, without an owner, term + 1; it may be started again
       await at[self] = "own" /\ leave < MaxLeave;
       leave := leave + 1;
       send(self, Commit(self, [hd[self] EXCEPT !.owner = Nobody, !.term = @ + 1, !.cursor = IF hd[self].seq = head.seq THEN head.cursor ELSE @], sh[self]));
     or
       await at[self] = "sent" /\ answer[self] = "refused";
       at[self] := "reload"; waits[self] := None; answer[self] := "none";
     or     \* no answer: resolved by reading, never by repeating
       await at[self] = "sent" /\ answer[self] = "none" /\ timeout < MaxTimeout;
       timeout := timeout + 1; at[self] := "reload"; waits[self] := None;
     or
       await at[self] = "reload"; hd[self] := head;
       at[self] := IF head.owner = self /\ head.term = mine[self] THEN "reshards" ELSE "idle";
     or
       await at[self] = "reshards"; sh[self] := shard; at[self] := "own";
     or     \* effects: only of what is committed, and from the state, so that a new owner finds what is owed
       await at[self] = "own" /\ hd[self].done \ made # {};
       with r \in hd[self].done \ made do made := made \cup {r}; end with;
     end either;
   end while;
end process;

fair process Store = "store"    \* applies what travels, in any order: the head and its shards are one atomic batch
begin
S: while TRUE do
     with c \in wire do
       wire := wire \ {c};
       if c.expect = head.seq then
         head := [c.head EXCEPT !.seq = head.seq + 1]; shard := c.shard;
         if waits[c.from] = c then answer[c.from] := "ok"; end if;
       elsif waits[c.from] = c then answer[c.from] := "refused"; end if;
     end with;
   end while;
end process;

fair process Agent \in Reports  \* sends its report once a round, until it is decided
begin
A: while TRUE do
     await sentRound[self] < head.round /\ self \notin head.done;
     sentRound[self] := head.round; log := Append(log, self);
   end while;
end process;

fair process Lease \in {<<"lease", m>> : m \in Masters}     \* a master that runs renews
begin
L: while TRUE do await ~lease[self[2]]; lease[self[2]] := TRUE; end while;
end process;

process Env = "env"
begin
E: while TRUE do
     either with m \in Masters do                             \* the lease runs out; its holder is not told
              await UseLease /\ expiry < MaxExpiry /\ lease[m]; expiry := expiry + 1; lease[m] := FALSE;
            end with;
     or     with m \in Masters do                             \* crash: memory gone, what it sent is still under way
              await crash < MaxCrash /\ at[m] # "idle";
              crash := crash + 1; at[m] := "idle"; hd[m] := Empty; sh[m] := 0; waits[m] := None; answer[m] := "none"; mine[m] := 0;
              lease[m] := FALSE;
            end with;
     or     with c \in wire do await waits[c.from] # c; wire := wire \ {c}; end with;      \* lost
     or     with r \in Reports do                             \* sent twice
              await dup < MaxDup /\ sentRound[r] > 0; dup := dup + 1; log := Append(log, r);
            end with;
     or     await gap < MaxGap /\ first <= Len(log); gap := gap + 1; first := Len(log) + 1; \* the stream drops what it holds
     end either;
   end while;
end process;
end algorithm; *)
\* BEGIN TRANSLATION
VARIABLES head, shard, log, first, wire, lease, sentRound, made, expiry, 
          crash, timeout, dup, gap, leave, at, hd, sh, waits, answer, mine

(* define statement *)
Free(m)   == /\ (UseLease => lease[m])
             /\ \/ head.owner = Nobody
                \/ head.owner = m
                \/ (UseLease /\ head.owner # Nobody /\ ~lease[head.owner])
                \/ (~UseLease /\ expiry < MaxExpiry)
Open(m)   == hd[m].cursor < Len(log)
Gap(m)    == first > hd[m].cursor + 1
Commit(m, h, s) == [kind |-> "commit", from |-> m, expect |-> hd[m].seq, head |-> h, shard |-> s]
Decide(h, r)    == [h EXCEPT !.cursor = h.cursor + 1, !.count = h.count + 1, !.done = h.done \cup {r}]


vars == << head, shard, log, first, wire, lease, sentRound, made, expiry, 
           crash, timeout, dup, gap, leave, at, hd, sh, waits, answer, mine
        >>

ProcSet == (Masters) \cup {"store"} \cup (Reports) \cup ({<<"lease", m>> : m \in Masters}) \cup {"env"}

Init == (* Global variables *)
        /\ head = Empty
        /\ shard = 0
        /\ log = <<>>
        /\ first = 1
        /\ wire = {}
        /\ lease = [m \in Masters |-> TRUE]
        /\ sentRound = [r \in Reports |-> 0]
        /\ made = {}
        /\ expiry = 0
        /\ crash = 0
        /\ timeout = 0
        /\ dup = 0
        /\ gap = 0
        /\ leave = 0
        /\ at = [m \in Masters |-> "idle"]
        /\ hd = [m \in Masters |-> Empty]
        /\ sh = [m \in Masters |-> 0]
        /\ waits = [m \in Masters |-> None]
        /\ answer = [m \in Masters |-> "none"]
        /\ mine = [m \in Masters |-> 0]

Master(self) == /\ \/ /\ at[self] = "idle" /\ Free(self)
                      /\ IF ~UseLease /\ head.owner \notin {Nobody, self}
                            THEN /\ expiry' = expiry + 1
                            ELSE /\ TRUE
                                 /\ UNCHANGED expiry
                      /\ hd' = [hd EXCEPT ![self] = head]
                      /\ at' = [at EXCEPT ![self] = "shards"]
                      /\ UNCHANGED <<wire, made, timeout, leave, sh, waits, answer, mine>>
                   \/ /\ at[self] = "shards"
                      /\ sh' = [sh EXCEPT ![self] = shard]
                      /\ at' = [at EXCEPT ![self] = "claim"]
                      /\ UNCHANGED <<wire, made, expiry, timeout, leave, hd, waits, answer, mine>>
                   \/ /\ at[self] = "claim"
                      /\ mine' = [mine EXCEPT ![self] = hd[self].term + 1]
                      /\ wire' = (wire \cup {(Commit(self, [hd[self] EXCEPT !.owner = self, !.term = @ + 1], sh[self]))})
                      /\ waits' = [waits EXCEPT ![self] = Commit(self, [hd[self] EXCEPT !.owner = self, !.term = @ + 1], sh[self])]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ at' = [at EXCEPT ![self] = "sent"]
                      /\ UNCHANGED <<made, expiry, timeout, leave, hd, sh>>
                   \/ /\ at[self] = "own" /\ ~Gap(self) /\ Open(self) /\ log[hd[self].cursor + 1] \in hd[self].done
                      /\ hd' = [hd EXCEPT ![self].cursor = hd[self].cursor + 1]
                      /\ UNCHANGED <<wire, made, expiry, timeout, leave, at, sh, waits, answer, mine>>
                   \/ /\ at[self] = "own" /\ ~Gap(self) /\ Open(self) /\ log[hd[self].cursor + 1] \notin hd[self].done
                      /\ wire' = (wire \cup {(Commit(self, Decide(hd[self], log[hd[self].cursor + 1]), sh[self] + 1))})
                      /\ waits' = [waits EXCEPT ![self] = Commit(self, Decide(hd[self], log[hd[self].cursor + 1]), sh[self] + 1)]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ at' = [at EXCEPT ![self] = "sent"]
                      /\ UNCHANGED <<made, expiry, timeout, leave, hd, sh, mine>>
                   \/ /\ at[self] = "own" /\ Gap(self)
                      /\ wire' = (wire \cup {(Commit(self, [hd[self] EXCEPT !.cursor = first - 1, !.round = @ + 1], sh[self]))})
                      /\ waits' = [waits EXCEPT ![self] = Commit(self, [hd[self] EXCEPT !.cursor = first - 1, !.round = @ + 1], sh[self])]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ at' = [at EXCEPT ![self] = "sent"]
                      /\ UNCHANGED <<made, expiry, timeout, leave, hd, sh, mine>>
                   \/ /\ at[self] = "sent" /\ answer[self] = "ok"
                      /\ hd' = [hd EXCEPT ![self] = [waits[self].head EXCEPT !.seq = waits[self].expect + 1]]
                      /\ sh' = [sh EXCEPT ![self] = waits[self].shard]
                      /\ at' = [at EXCEPT ![self] = IF waits[self].head.owner = self THEN "own" ELSE "idle"]
                      /\ waits' = [waits EXCEPT ![self] = None]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ UNCHANGED <<wire, made, expiry, timeout, leave, mine>>
                   \/ /\ at[self] = "own" /\ leave < MaxLeave
                      /\ leave' = leave + 1
                      /\ wire' = (wire \cup {(Commit(self, [hd[self] EXCEPT !.owner = Nobody, !.term = @ + 1, !.cursor = IF hd[self].seq = head.seq THEN head.cursor ELSE @], sh[self]))})
                      /\ waits' = [waits EXCEPT ![self] = Commit(self, [hd[self] EXCEPT !.owner = Nobody, !.term = @ + 1, !.cursor = IF hd[self].seq = head.seq THEN head.cursor ELSE @], sh[self])]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ at' = [at EXCEPT ![self] = "sent"]
                      /\ UNCHANGED <<made, expiry, timeout, hd, sh, mine>>
                   \/ /\ at[self] = "sent" /\ answer[self] = "refused"
                      /\ at' = [at EXCEPT ![self] = "reload"]
                      /\ waits' = [waits EXCEPT ![self] = None]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ UNCHANGED <<wire, made, expiry, timeout, leave, hd, sh, mine>>
                   \/ /\ at[self] = "sent" /\ answer[self] = "none" /\ timeout < MaxTimeout
                      /\ timeout' = timeout + 1
                      /\ at' = [at EXCEPT ![self] = "reload"]
                      /\ waits' = [waits EXCEPT ![self] = None]
                      /\ UNCHANGED <<wire, made, expiry, leave, hd, sh, answer, mine>>
                   \/ /\ at[self] = "reload"
                      /\ hd' = [hd EXCEPT ![self] = head]
                      /\ at' = [at EXCEPT ![self] = IF head.owner = self /\ head.term = mine[self] THEN "reshards" ELSE "idle"]
                      /\ UNCHANGED <<wire, made, expiry, timeout, leave, sh, waits, answer, mine>>
                   \/ /\ at[self] = "reshards"
                      /\ sh' = [sh EXCEPT ![self] = shard]
                      /\ at' = [at EXCEPT ![self] = "own"]
                      /\ UNCHANGED <<wire, made, expiry, timeout, leave, hd, waits, answer, mine>>
                   \/ /\ at[self] = "own" /\ hd[self].done \ made # {}
                      /\ \E r \in hd[self].done \ made:
                           made' = (made \cup {r})
                      /\ UNCHANGED <<wire, expiry, timeout, leave, at, hd, sh, waits, answer, mine>>
                /\ UNCHANGED << head, shard, log, first, lease, sentRound, 
                                crash, dup, gap >>

Store == /\ \E c \in wire:
              /\ wire' = wire \ {c}
              /\ IF c.expect = head.seq
                    THEN /\ head' = [c.head EXCEPT !.seq = head.seq + 1]
                         /\ shard' = c.shard
                         /\ IF waits[c.from] = c
                               THEN /\ answer' = [answer EXCEPT ![c.from] = "ok"]
                               ELSE /\ TRUE
                                    /\ UNCHANGED answer
                    ELSE /\ IF waits[c.from] = c
                               THEN /\ answer' = [answer EXCEPT ![c.from] = "refused"]
                               ELSE /\ TRUE
                                    /\ UNCHANGED answer
                         /\ UNCHANGED << head, shard >>
         /\ UNCHANGED << log, first, lease, sentRound, made, expiry, crash, 
                         timeout, dup, gap, leave, at, hd, sh, waits, mine >>

Agent(self) == /\ sentRound[self] < head.round /\ self \notin head.done
               /\ sentRound' = [sentRound EXCEPT ![self] = head.round]
               /\ log' = Append(log, self)
               /\ UNCHANGED << head, shard, first, wire, lease, made, expiry, 
                               crash, timeout, dup, gap, leave, at, hd, sh, 
                               waits, answer, mine >>

Lease(self) == /\ ~lease[self[2]]
               /\ lease' = [lease EXCEPT ![self[2]] = TRUE]
               /\ UNCHANGED << head, shard, log, first, wire, sentRound, made, 
                               expiry, crash, timeout, dup, gap, leave, at, hd, 
                               sh, waits, answer, mine >>

Env == /\ \/ /\ \E m \in Masters:
                  /\ UseLease /\ expiry < MaxExpiry /\ lease[m]
                  /\ expiry' = expiry + 1
                  /\ lease' = [lease EXCEPT ![m] = FALSE]
             /\ UNCHANGED <<log, first, wire, crash, dup, gap, at, hd, sh, waits, answer, mine>>
          \/ /\ \E m \in Masters:
                  /\ crash < MaxCrash /\ at[m] # "idle"
                  /\ crash' = crash + 1
                  /\ at' = [at EXCEPT ![m] = "idle"]
                  /\ hd' = [hd EXCEPT ![m] = Empty]
                  /\ sh' = [sh EXCEPT ![m] = 0]
                  /\ waits' = [waits EXCEPT ![m] = None]
                  /\ answer' = [answer EXCEPT ![m] = "none"]
                  /\ mine' = [mine EXCEPT ![m] = 0]
                  /\ lease' = [lease EXCEPT ![m] = FALSE]
             /\ UNCHANGED <<log, first, wire, expiry, dup, gap>>
          \/ /\ \E c \in wire:
                  /\ waits[c.from] # c
                  /\ wire' = wire \ {c}
             /\ UNCHANGED <<log, first, lease, expiry, crash, dup, gap, at, hd, sh, waits, answer, mine>>
          \/ /\ \E r \in Reports:
                  /\ dup < MaxDup /\ sentRound[r] > 0
                  /\ dup' = dup + 1
                  /\ log' = Append(log, r)
             /\ UNCHANGED <<first, wire, lease, expiry, crash, gap, at, hd, sh, waits, answer, mine>>
          \/ /\ gap < MaxGap /\ first <= Len(log)
             /\ gap' = gap + 1
             /\ first' = Len(log) + 1
             /\ UNCHANGED <<log, wire, lease, expiry, crash, dup, at, hd, sh, waits, answer, mine>>
       /\ UNCHANGED << head, shard, sentRound, made, timeout, leave >>

Next == Store \/ Env
           \/ (\E self \in Masters: Master(self))
           \/ (\E self \in Reports: Agent(self))
           \/ (\E self \in {<<"lease", m>> : m \in Masters}: Lease(self))

Spec == /\ Init /\ [][Next]_vars
        /\ \A self \in Masters : WF_vars(Master(self))
        /\ WF_vars(Store)
        /\ \A self \in Reports : WF_vars(Agent(self))
        /\ \A self \in {<<"lease", m>> : m \in Masters} : WF_vars(Lease(self))

\* END TRANSLATION
\* ==== INVARIANTS ====================================================================
\* one decision for one report, whatever is repeated, late, or crosses a takeover
CountOnce        == head.count = Cardinality(head.done)
\* the shards are those of the head: no torn commit, no state made of two
HeadAndShards    == shard = head.count
\* what lies before the cursor is decided, or was thrown away by the stream and asked for again
NothingSkipped   == head.cursor <= Len(log) /\ \A i \in 1..head.cursor : log[i] \in head.done \/ (i < first /\ head.round > 1)
\* a takeover has a cause, a lease or a master or an answer that is gone, or a master that left: no two masters take a job from each other for ever
TakeoversHaveCauses == head.term <= 1 + expiry + 2 * crash + timeout + 2 * leave
\* nothing happens outside that is not durable
EffectsCommitted == made \subseteq head.done
\* ==== ACTIONS =======================================================================
\* a stale owner never changes the state: a write is of the present owner and term, or takes over, or gives away, by the next term
StaleNeverWrites == [][head' # head => \/ (head'.owner = head.owner /\ head'.term = head.term)
                                       \/ (head'.term = head.term + 1 /\ head'.done = head.done /\ head'.cursor = head.cursor)]_vars
OneWriteOneSeq   == [][head' # head => head'.seq = head.seq + 1]_vars
DecidedStays     == [][head.done \subseteq head'.done /\ head.cursor <= head'.cursor /\ head.round <= head'.round]_vars
\* ==== LIVENESS ======================================================================
AllDecided       == <>(head.done = Reports /\ made = Reports)
=============================================================================
