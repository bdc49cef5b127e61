#!/usr/bin/env bash
# Epilog= of slurm.conf: what got worse during the job (speed, error counts, checks) drains the node. Never fails by itself: Slurm would drain the node
# with a reason that says nothing.
. "$(dirname "$(readlink -f "$0")")/hooks.sh"
# shellcheck disable=SC2086
found=$(look ${AEGIS_EPILOG:-check epilog --job "$SLURM_JOB_ID" --seconds 2})
[ -n "$found" ] && drain epilog "$found"
exit 0
