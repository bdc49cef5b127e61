"""Fields of a job's state that no variable of `AegisPhase` is a rule of, and why the model needs none of them. A test holds: these and no others.

Some do decide something: then what they decide is an event that the model lets come at any time, or a choice that it leaves open.
"""

from __future__ import annotations

IDENTITY = "which job it is and whose; the machine copies it"
PEOPLE = "told to people and to accounts; no step of the machine reads it"
CONSTANT = "a constant of the model, chosen by the configuration"
NUMBERS = "AegisMessages; what bears another number than the present one is tried in every state (`stale`)"
OWNERSHIP = "AegisOwner; the machine neither reads nor writes it"
PLACES = "AegisSpares; where a pod is, and when it may be placed: in the model it may come at any time"
SUMS = "sums over the pods, for speed: held equal to them by `aegis_master.invariants`"
MEETING = "where workers meet; they may meet or not in the model"

HEAD: dict[str, str] = {
    **dict.fromkeys(("job", "name", "namespace", "uid", "v", "gpuType", "user", "createdAt"), IDENTITY),
    **dict.fromkeys(("workerNum", "maxRetry"), CONSTANT),
    **dict.fromkeys(("seqNum", "roundSeqNum", "runSeqNum", "stopSeqNum"), NUMBERS),
    **dict.fromkeys(("owner", "cursor"), OWNERSHIP),
    **dict.fromkeys(("masterAddr", "masterPort", "checkAddr", "checkPort"), MEETING),
    **dict.fromkeys(("counts", "tally"), SUMS),
    **dict.fromkeys(("errorNodes", "errorNodesTotal"), PLACES),
    "era": "only that another came: the process Era, and `adopting`",
    "order": "no variable; its phase is compared with the operator `Order` in every state that is reached",
    "deadline": "no variable; its kind is compared with the operator `Deadline` in every state that is reached; its length is no step",
    "stopOrderAt": "what is dated no later than it, and what is dated later, are tried as two events",
    "recent": "decides: `levels.escalated` reads in it who failed again, and adds a failed check; in the model any worker may fail one (`levels`)",
    "fruitless": "decides: `asked.fruitless` asks for a stop when so many runs came to nothing; in the model Stop may come at any time",
    "checkpointStep": "decides with `fruitless`, and what it decides is Stop; Checkpoint may come at any time",
    "ledger": "decides what the workers are told to test with each other (`rounds._meets`); in the model an answer may tell of such tests or not",
    "step": "for the ledger; Checkpoint and Finish may come at any time",
    "tellsSteps": "for the ledger, and what that decides",
    "runStartedAt": "decides when Healthy may come, and with the ledger who meets; in the model both are open",
    **dict.fromkeys(("checkpointAt", "saveStall"), PEOPLE),
    "inject": "told to one worker; what comes of it is what every worker may do of itself",
    "exitCode": "what agents leave with, when the job has ended",
}
POD: dict[str, str] = {
    **dict.fromkeys(("ip", "node", "uid", "ts", "gone"), PLACES),
    "pin": "decides whether a container that fails again on its node excludes that node; the pod leaves either way, and in the model as well",
    **dict.fromkeys(("attempt", "oldBoot"), NUMBERS),
    "acked": "decides when the order is given again under another number (`watch`): a repeat, which begins no round",
    "stopped": PEOPLE + "; only a repeat is known by it",
    "exitCode": "what agents leave with, when the job has ended",
}
