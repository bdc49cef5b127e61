# What the hooks of Slurm share; read by prolog.sh, epilog.sh and health.sh beside it. Settings: /etc/aegis/slurm-hooks.env (hooks run with a bare
# environment), or the file that AEGIS_HOOKS_ENV names:
#   AEGIS_AGENT          the agent (aegis-agent)
#   AEGIS_PROLOG         what is run before a job ("check prolog --seconds 2"; quick: "check run gpu rdma io")
#   AEGIS_EPILOG         what is run after a job ("check epilog --seconds 2")
#   AEGIS_HEALTH         what HealthCheckProgram runs ("check run gpu rdma memory")
#   AEGIS_HOOKS_DRAIN    yes: a node that fails is drained; no: it is only said in the log
#   AEGIS_REQUEUE_EXIT, AEGIS_REQUEUE_DELAY   of epilogslurmctld.sh: the exit code that asks for another start (75), seconds until then (5)
#   SLURM_CONF, PATH, AEGIS_CHECKS_...   as elsewhere; everything is exported
set -uo pipefail
export PATH="/opt/aegis/bin:${PATH:-}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
settings=${AEGIS_HOOKS_ENV:-/etc/aegis/slurm-hooks.env}
if [ -r "$settings" ]; then
  set -a
  # shellcheck disable=SC1090
  . "$settings"
  set +a
fi
AEGIS_AGENT=${AEGIS_AGENT:-aegis-agent}
node=${SLURMD_NODENAME:-$(hostname -s)}

# look WORDS...: run the agent; the first finding on stdout when something is wrong. Only a failed check (exit 1) speaks about the node: an agent that
# cannot be run at all says nothing about it.
look() {
  local said code
  said=$($AEGIS_AGENT "$@" 2>&1)
  code=$?
  logger -t aegis "$* on $node: exit $code" 2>/dev/null || true
  [ $code = 1 ] || return 0
  printf '%s\n' "$said" | awk '/^fail/ { sub(/^fail +/, ""); print substr($0, 1, 160); exit }'
}

# drain WHEN FINDING
drain() {
  logger -t aegis "$node fails $1: $2" 2>/dev/null || true
  [ "${AEGIS_HOOKS_DRAIN:-yes}" = yes ] || return 0
  case $(scontrol -o show node "$node" 2>/dev/null) in
    *State=*DRAIN*) ;;  # the first reason stays
    *) scontrol update NodeName="$node" State=DRAIN Reason="aegis $1: $2" ;;
  esac
}
