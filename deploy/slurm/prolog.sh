#!/usr/bin/env bash
# Prolog= of slurm.conf: no job begins on a node that fails its checks. The node is drained with the finding, and the job goes back into the queue
# (SchedulerParameters=nohold_on_prolog_fail, else it is held).
. "$(dirname "$(readlink -f "$0")")/hooks.sh"
# shellcheck disable=SC2086
found=$(look ${AEGIS_PROLOG:-check prolog --job "$SLURM_JOB_ID" --seconds 2})
[ -z "$found" ] && exit 0
drain prolog "$found"
[ "${AEGIS_HOOKS_DRAIN:-yes}" = yes ] && exit 1
exit 0
