#!/usr/bin/env bash
# HealthCheckProgram= of slurm.conf: cheap checks that touch no running job; a node that fails is drained, and stays so until a person resumes it.
. "$(dirname "$(readlink -f "$0")")/hooks.sh"
# shellcheck disable=SC2086
found=$(look ${AEGIS_HEALTH:-check run gpu rdma memory})
[ -n "$found" ] && drain health "$found"
exit 0
