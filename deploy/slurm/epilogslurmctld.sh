#!/usr/bin/env bash
# EpilogSlurmctld= of slurm.conf, for sites that have RequeueExit=75: a job that Slurm requeues for its exit code starts after AEGIS_REQUEUE_DELAY
# seconds (5), not after the two minutes that a credential lives. Less than two is never enough: a node refuses ("Job credential revoked") what was
# signed in the second in which it ended the job, and its clock may differ. Jobs that Aegis has requeued itself have a time of their own already.
settings=${AEGIS_HOOKS_ENV:-/etc/aegis/slurm-hooks.env}
if [ -r "$settings" ]; then
  set -a
  # shellcheck disable=SC1090
  . "$settings"
  set +a
fi
[ $((${SLURM_JOB_EXIT_CODE:-0} >> 8)) = "${AEGIS_REQUEUE_EXIT:-75}" ] || exit 0
# The job is put back into the queue only after this script: a session of its own waits for that, since Slurm ends what a hook leaves in its own.
delay=${AEGIS_REQUEUE_DELAY:-5}
setsid bash -c '
  for _ in $(seq 120); do
    [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T 2>/dev/null)" = PENDING ] && scontrol update JobId="$SLURM_JOB_ID" StartTime="now+$0" && exit 0
    sleep 0.5
  done' "$delay" </dev/null >/dev/null 2>&1 &
exit 0
