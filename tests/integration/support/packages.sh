#!/usr/bin/env bash
# Debian packages of the real parts that integration tests (and bench/port_reading.py) start; what is there already is left alone. One line per part.
#   packages.sh            says what is missing: the tests that need it are skipped, loudly
#   packages.sh install    installs it (root, apt-get); no service of it is started on this machine. Without root or a mirror it says so.
set -euo pipefail
PACKAGES=(
  iproute2 util-linux gcc libc6-dev openssl
  ibsim-utils opensm infiniband-diags
  slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
  prometheus prometheus-node-exporter
  podman runc conmon
)
missing=()
for p in "${PACKAGES[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "${1:-}" != install ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "not installed: ${missing[*]} (packages.sh install, as root)" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
POLICY=/usr/sbin/policy-rc.d
if [ ! -e "$POLICY" ]; then # an opensm or slurmd that is installed for tests must not begin to serve
  printf '#!/bin/sh\nexit 101\n' >"$POLICY"
  chmod +x "$POLICY"
  trap 'rm -f "$POLICY"' EXIT
fi
install() { apt-get install -y --no-install-recommends "$@" >/dev/null; }
apt-get update -qq || true
install "${missing[@]}" || for p in "${missing[@]}"; do # one that cannot be had must not cost the others
  install "$p" || echo "not installed: $p (apt-get failed)" >&2
done
