#!/usr/bin/env bash
# Debian packages of the real parts that integration tests start; what is there already is left alone. Without root or apt-get it says so, and the
# tests that need a part are skipped, loudly. One line per part.
set -euo pipefail
PACKAGES=(
  iproute2 util-linux gcc libc6-dev openssl
  ibsim-utils opensm infiniband-diags
  slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
  prometheus
)
missing=()
for p in "${PACKAGES[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "not installed, needs root and apt-get: ${missing[*]}" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null
