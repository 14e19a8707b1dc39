# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Sourced by the set-up scripts: progress, failure, Debian packages, one set-up at a time.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=$PWD/.cache
mkdir -p "$cache/log"

say() { printf '   %s\n' "$*" >&2; }
die() { printf '\nset-up failed: %s\n' "$*" >&2; exit 1; }

# quiet LOG COMMAND...: runs the command with its output in .cache/log/LOG, and shows the end of it if it fails.
quiet() {
  local log=$cache/log/$1; shift
  "$@" >"$log" 2>&1 || { tail -n 15 "$log" >&2; printf '   (all of it: %s)\n' "$log" >&2; return 1; }
}

# alone NAME: waits until no other make sets up the same thing.
alone() {
  exec 9>"$cache/$1.lock"
  flock -n 9 || { say "waiting for another make that sets up $1"; flock 9; }
}

# packages NAME...: installs Debian packages as root, otherwise says how.
packages() {
  command -v apt-get >/dev/null || die "needed, but not here: $*. Install them (these are their Debian names) and run make again."
  [ "$(id -u)" = 0 ] || die "needed, but not installed: $*
Run this, then make again:  sudo apt-get install $*"
  # Set-ups run beside each other, and apt has one lock for all of them.
  exec 8>"$cache/apt.lock"
  flock 8
  say "installing Debian packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  quiet apt-update.log apt-get -q update || say "apt-get update failed; trying with the lists that are there"
  quiet apt-install.log apt-get -q install -y --no-install-recommends "$@" || die "apt-get could not install: $*"
  exec 8>&-
}

# python: the interpreter for virtual environments, with one that the pinned wheels exist for.
python() {
  local p
  for p in ${PYTHON:-} python3 python3.11 python3.12 python3.10 /usr/bin/python3; do
    if command -v "$p" >/dev/null && "$p" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
      "$p" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  die "no Python 3.10, 3.11 or 3.12 found (the pinned tritonserver and its numpy have no builds for others). Install one, or say PYTHON=/path/to/python3."
}

# venv DIRECTORY REQUIREMENTS: makes a virtual environment that holds exactly what the requirements list.
venv() {
  local py; py=$(python)
  "$py" -c 'import ensurepip, venv' 2>/dev/null || packages python3-venv
  rm -rf "$1"
  quiet venv.log "$py" -m venv "$1" || die "python -m venv failed"
  quiet pip.log "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps -r "$2"
}
