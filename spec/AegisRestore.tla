----------------------------- MODULE AegisRestore -----------------------------
(* The store is replaced by an older copy of itself (aegis_bus.jobstore).  The fence *)
(* of AegisOwner is a sequence, and a copy gives its numbers out again: a commit     *)
(* made for the store before may meet the number that it expects, under another      *)
(* head.  Servers are down while their store is replaced, so no connection and       *)
(* nothing on the way lives through it (`life`).  A commit goes only over the        *)
(* connection over which its head was read or written; on a new one the head is      *)
(* compared first, and the era that says that the store is another one, which may    *)
(* be written any time later.                                                        *)
EXTENDS Naturals, FiniteSets, TLC
CONSTANTS Masters, Nobody, MaxRestores, MaxDecisions, MaxTakeovers
Empty == [seq |-> 0, owner |-> Nobody, term |-> 0, era |-> 1, by |-> {}]
None  == [kind |-> "none"]
Symmetric == Permutations(Masters)

(* --algorithm Restore
variables
  \* the store, and the copy that was once made of it
  head = Empty, era = 1, copy = [head |-> Empty, era |-> 1],
  life = 1, eras = 1,                    \* which servers these are; eras ever given
  wire = {},                             \* commits under way
  decisions = 0, takeovers = 0,
  \* the masters: connection, place in the program, what they read and over which connection, the life of the store that their news is of
  link = [m \in Masters |-> 1], at = [m \in Masters |-> "idle"], hd = [m \in Masters |-> Empty], over = [m \in Masters |-> 0],
  news = [m \in Masters |-> 1], waits = [m \in Masters |-> None], answer = [m \in Masters |-> "none"],
  told = [m \in Masters |-> 1],          \* the era that stood in the store when the connection was last compared
  astray = FALSE, old = FALSE;           \* a commit that was made for another head, or of news of another store, was stored
define
  Up(m)        == link[m] = life
  Like(h, g)   == [h EXCEPT !.seq = 0] = [g EXCEPT !.seq = 0]          \* the same bytes
  Commit(m, h) == [kind |-> "commit", from |-> m, base |-> hd[m], head |-> h, news |-> news[m], told |-> told[m]]
end define;

macro send(m, h) begin
  wire := wire \cup {Commit(m, h)}; waits[m] := Commit(m, h); answer[m] := "none"; at[m] := "sent";
end macro;

fair process Master \in Masters
begin
M: while TRUE do
     either
       await ~Up(self); link[self] := life;
     or     \* somebody else's job: read it, claim it
       await at[self] = "idle" /\ Up(self) /\ takeovers < MaxTakeovers /\ head.owner # self;
       takeovers := takeovers + 1;
       hd[self] := head; over[self] := life; told[self] := era; news[self] := life; at[self] := "claim";
     or     \* over a new connection: is it the head that we know, of the store that we know?
       await at[self] \in {"own", "claim", "decided"} /\ Up(self) /\ over[self] # link[self];
       told[self] := era;
       if head = hd[self] /\ era = hd[self].era then over[self] := link[self]; else at[self] := "reload"; end if;
     or
       await at[self] = "claim" /\ Up(self) /\ over[self] = link[self];
       send(self, [hd[self] EXCEPT !.owner = self, !.term = @ + 1]);
     or     \* a report is read and stepped
       await at[self] = "own" /\ Up(self) /\ decisions < MaxDecisions;
       decisions := decisions + 1; at[self] := "decided";
       either news[self] := life; or skip; end either;   \* it may have lain here since before the connection
     or     \* and stored: any decision differs from any other
       await at[self] = "decided" /\ Up(self) /\ over[self] = link[self];
       send(self, [hd[self] EXCEPT !.by = @ \cup {<<self, Cardinality(@), life>>}]);
     or     \* the store says that it is another one: the head says so too
       await at[self] = "own" /\ Up(self) /\ over[self] = link[self] /\ era # hd[self].era;
       news[self] := life; told[self] := era;
       send(self, [hd[self] EXCEPT !.era = era]);
     or
       await at[self] = "sent" /\ answer[self] = "ok";
       hd[self] := [waits[self].head EXCEPT !.seq = hd[self].seq + 1];
       at[self] := IF waits[self].head.owner = self THEN "own" ELSE "idle"; waits[self] := None; answer[self] := "none";
     or
       await at[self] = "sent" /\ answer[self] = "refused"; at[self] := "reload"; waits[self] := None; answer[self] := "none";
     or     \* the connection ended before the answer: the head says what became of it
       await at[self] = "sent" /\ answer[self] = "none" /\ over[self] # life /\ Up(self);
       if head.seq > hd[self].seq /\ Like(head, waits[self].head) then hd[self] := head; at[self] := "own";   \* not compared with the era yet
       elsif head.seq = hd[self].seq then at[self] := IF waits[self].head.owner = hd[self].owner THEN "decided" ELSE "claim";
       else at[self] := "reload"; end if;
       waits[self] := None;
     or     \* read again: ours only if nobody has taken it since
       await at[self] = "reload" /\ Up(self);
       at[self] := IF head.owner = self /\ head.term = hd[self].term THEN "own" ELSE "idle";
       hd[self] := head; over[self] := life; told[self] := era; news[self] := life;
     end either;
   end while;
end process;

fair process Store = "store"
begin
S: while TRUE do
     with c \in wire do
       wire := wire \ {c};
       if c.base.seq = head.seq then
         astray := astray \/ c.base # head;
         old := old \/ (c.news # life /\ c.told # c.base.era);
         head := [c.head EXCEPT !.seq = head.seq + 1];
         if waits[c.from] = c then answer[c.from] := "ok"; end if;
       elsif waits[c.from] = c then answer[c.from] := "refused"; end if;
     end with;
   end while;
end process;

process Env = "env"
begin
E: while TRUE do
     either copy := [head |-> head, era |-> era];
     or     \* the servers are stopped, the copy is put in place, they start again: what was on the way is gone, and so is every connection
       await life <= MaxRestores;
       life := life + 1; wire := {}; head := copy.head; era := copy.era;
       with lost \in SUBSET Masters do answer := [m \in Masters |-> IF m \in lost THEN "none" ELSE answer[m]]; end with;
     or     \* somebody says so: an era that there never was
       await eras < life; eras := life; era := life;
     end either;
   end while;
end process;
end algorithm; *)
\* BEGIN TRANSLATION
VARIABLES head, era, copy, life, eras, wire, decisions, takeovers, link, at, 
          hd, over, news, waits, answer, told, astray, old

(* define statement *)
Up(m)        == link[m] = life
Like(h, g)   == [h EXCEPT !.seq = 0] = [g EXCEPT !.seq = 0]
Commit(m, h) == [kind |-> "commit", from |-> m, base |-> hd[m], head |-> h, news |-> news[m], told |-> told[m]]


vars == << head, era, copy, life, eras, wire, decisions, takeovers, link, at, 
           hd, over, news, waits, answer, told, astray, old >>

ProcSet == (Masters) \cup {"store"} \cup {"env"}

Init == (* Global variables *)
        /\ head = Empty
        /\ era = 1
        /\ copy = [head |-> Empty, era |-> 1]
        /\ life = 1
        /\ eras = 1
        /\ wire = {}
        /\ decisions = 0
        /\ takeovers = 0
        /\ link = [m \in Masters |-> 1]
        /\ at = [m \in Masters |-> "idle"]
        /\ hd = [m \in Masters |-> Empty]
        /\ over = [m \in Masters |-> 0]
        /\ news = [m \in Masters |-> 1]
        /\ waits = [m \in Masters |-> None]
        /\ answer = [m \in Masters |-> "none"]
        /\ told = [m \in Masters |-> 1]
        /\ astray = FALSE
        /\ old = FALSE

Master(self) == /\ \/ /\ ~Up(self)
                      /\ link' = [link EXCEPT ![self] = life]
                      /\ UNCHANGED <<wire, decisions, takeovers, at, hd, over, news, waits, answer, told>>
                   \/ /\ at[self] = "idle" /\ Up(self) /\ takeovers < MaxTakeovers /\ head.owner # self
                      /\ takeovers' = takeovers + 1
                      /\ hd' = [hd EXCEPT ![self] = head]
                      /\ over' = [over EXCEPT ![self] = life]
                      /\ told' = [told EXCEPT ![self] = era]
                      /\ news' = [news EXCEPT ![self] = life]
                      /\ at' = [at EXCEPT ![self] = "claim"]
                      /\ UNCHANGED <<wire, decisions, link, waits, answer>>
                   \/ /\ at[self] \in {"own", "claim", "decided"} /\ Up(self) /\ over[self] # link[self]
                      /\ told' = [told EXCEPT ![self] = era]
                      /\ IF head = hd[self] /\ era = hd[self].era
                            THEN /\ over' = [over EXCEPT ![self] = link[self]]
                                 /\ at' = at
                            ELSE /\ at' = [at EXCEPT ![self] = "reload"]
                                 /\ over' = over
                      /\ UNCHANGED <<wire, decisions, takeovers, link, hd, news, waits, answer>>
                   \/ /\ at[self] = "claim" /\ Up(self) /\ over[self] = link[self]
                      /\ wire' = (wire \cup {Commit(self, ([hd[self] EXCEPT !.owner = self, !.term = @ + 1]))})
                      /\ waits' = [waits EXCEPT ![self] = Commit(self, ([hd[self] EXCEPT !.owner = self, !.term = @ + 1]))]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ at' = [at EXCEPT ![self] = "sent"]
                      /\ UNCHANGED <<decisions, takeovers, link, hd, over, news, told>>
                   \/ /\ at[self] = "own" /\ Up(self) /\ decisions < MaxDecisions
                      /\ decisions' = decisions + 1
                      /\ at' = [at EXCEPT ![self] = "decided"]
                      /\ \/ /\ news' = [news EXCEPT ![self] = life]
                         \/ /\ TRUE
                            /\ news' = news
                      /\ UNCHANGED <<wire, takeovers, link, hd, over, waits, answer, told>>
                   \/ /\ at[self] = "decided" /\ Up(self) /\ over[self] = link[self]
                      /\ wire' = (wire \cup {Commit(self, ([hd[self] EXCEPT !.by = @ \cup {<<self, Cardinality(@), life>>}]))})
                      /\ waits' = [waits EXCEPT ![self] = Commit(self, ([hd[self] EXCEPT !.by = @ \cup {<<self, Cardinality(@), life>>}]))]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ at' = [at EXCEPT ![self] = "sent"]
                      /\ UNCHANGED <<decisions, takeovers, link, hd, over, news, told>>
                   \/ /\ at[self] = "own" /\ Up(self) /\ over[self] = link[self] /\ era # hd[self].era
                      /\ news' = [news EXCEPT ![self] = life]
                      /\ told' = [told EXCEPT ![self] = era]
                      /\ wire' = (wire \cup {Commit(self, ([hd[self] EXCEPT !.era = era]))})
                      /\ waits' = [waits EXCEPT ![self] = Commit(self, ([hd[self] EXCEPT !.era = era]))]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ at' = [at EXCEPT ![self] = "sent"]
                      /\ UNCHANGED <<decisions, takeovers, link, hd, over>>
                   \/ /\ at[self] = "sent" /\ answer[self] = "ok"
                      /\ hd' = [hd EXCEPT ![self] = [waits[self].head EXCEPT !.seq = hd[self].seq + 1]]
                      /\ at' = [at EXCEPT ![self] = IF waits[self].head.owner = self THEN "own" ELSE "idle"]
                      /\ waits' = [waits EXCEPT ![self] = None]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ UNCHANGED <<wire, decisions, takeovers, link, over, news, told>>
                   \/ /\ at[self] = "sent" /\ answer[self] = "refused"
                      /\ at' = [at EXCEPT ![self] = "reload"]
                      /\ waits' = [waits EXCEPT ![self] = None]
                      /\ answer' = [answer EXCEPT ![self] = "none"]
                      /\ UNCHANGED <<wire, decisions, takeovers, link, hd, over, news, told>>
                   \/ /\ at[self] = "sent" /\ answer[self] = "none" /\ over[self] # life /\ Up(self)
                      /\ IF head.seq > hd[self].seq /\ Like(head, waits[self].head)
                            THEN /\ hd' = [hd EXCEPT ![self] = head]
                                 /\ at' = [at EXCEPT ![self] = "own"]
                            ELSE /\ IF head.seq = hd[self].seq
                                       THEN /\ at' = [at EXCEPT ![self] = IF waits[self].head.owner = hd[self].owner THEN "decided" ELSE "claim"]
                                       ELSE /\ at' = [at EXCEPT ![self] = "reload"]
                                 /\ hd' = hd
                      /\ waits' = [waits EXCEPT ![self] = None]
                      /\ UNCHANGED <<wire, decisions, takeovers, link, over, news, answer, told>>
                   \/ /\ at[self] = "reload" /\ Up(self)
                      /\ at' = [at EXCEPT ![self] = IF head.owner = self /\ head.term = hd[self].term THEN "own" ELSE "idle"]
                      /\ hd' = [hd EXCEPT ![self] = head]
                      /\ over' = [over EXCEPT ![self] = life]
                      /\ told' = [told EXCEPT ![self] = era]
                      /\ news' = [news EXCEPT ![self] = life]
                      /\ UNCHANGED <<wire, decisions, takeovers, link, waits, answer>>
                /\ UNCHANGED << head, era, copy, life, eras, astray, old >>

Store == /\ \E c \in wire:
              /\ wire' = wire \ {c}
              /\ IF c.base.seq = head.seq
                    THEN /\ astray' = (astray \/ c.base # head)
                         /\ old' = (old \/ (c.news # life /\ c.told # c.base.era))
                         /\ head' = [c.head EXCEPT !.seq = head.seq + 1]
                         /\ IF waits[c.from] = c
                               THEN /\ answer' = [answer EXCEPT ![c.from] = "ok"]
                               ELSE /\ TRUE
                                    /\ UNCHANGED answer
                    ELSE /\ IF waits[c.from] = c
                               THEN /\ answer' = [answer EXCEPT ![c.from] = "refused"]
                               ELSE /\ TRUE
                                    /\ UNCHANGED answer
                         /\ UNCHANGED << head, astray, old >>
         /\ UNCHANGED << era, copy, life, eras, decisions, takeovers, link, at, 
                         hd, over, news, waits, told >>

Env == /\ \/ /\ copy' = [head |-> head, era |-> era]
             /\ UNCHANGED <<head, era, life, eras, wire, answer>>
          \/ /\ life <= MaxRestores
             /\ life' = life + 1
             /\ wire' = {}
             /\ head' = copy.head
             /\ era' = copy.era
             /\ \E lost \in SUBSET Masters:
                  answer' = [m \in Masters |-> IF m \in lost THEN "none" ELSE answer[m]]
             /\ UNCHANGED <<copy, eras>>
          \/ /\ eras < life
             /\ eras' = life
             /\ era' = life
             /\ UNCHANGED <<head, copy, life, wire, answer>>
       /\ UNCHANGED << decisions, takeovers, link, at, hd, over, news, waits, 
                       told, astray, old >>

Next == Store \/ Env
           \/ (\E self \in Masters: Master(self))

Spec == /\ Init /\ [][Next]_vars
        /\ \A self \in Masters : WF_vars(Master(self))
        /\ WF_vars(Store)

\* END TRANSLATION
\* ==== INVARIANTS ====================================================================
\* what is stored was made for the very head on which it is stored
BuildsOnWhatIs   == ~astray
\* nothing that was read of the store before is stored where somebody has said that it is another one
NoOldNews        == ~old
\* ==== ACTIONS =======================================================================
\* between two restores a write is of the present owner and term, or takes over by the next term
StaleNeverWrites == [][(head' # head /\ life' = life) => \/ (head'.owner = head.owner /\ head'.term = head.term)
                                                         \/ (head'.term = head.term + 1 /\ head'.by = head.by)]_vars
OneWriteOneSeq   == [][(head' # head /\ life' = life) => head'.seq = head.seq + 1]_vars
DecidedStays     == [][life' = life => head.by \subseteq head'.by]_vars
=============================================================================
