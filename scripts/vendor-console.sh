#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Renews what the console has from npm: sidecar/console/assets/vendor, axe-core of its tests, and sidecar/console/vendored.json, which says of each
# file its package, version, licence and sha256. It needs npm; building, testing and running Conch do not.
set -euo pipefail
cd "$(dirname "$0")/.."

preact=11.2.0 htm=3.1.1 uplot=1.6.32 axe=4.14.1
into=sidecar/console/assets/vendor tests=e2e/console/testdata list=sidecar/console/vendored.json

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in "preact@$preact" "htm@$htm" "uplot@$uplot" "axe-core@$axe"; do
  mkdir -p "$work/${package%@*}"
  (cd "$work" && npm pack --silent "$package" | xargs -I{} tar -xzf {} -C "${package%@*}" --strip-components=1)
done
mkdir -p "$into" "$tests"

# A browser resolves no bare import, and fetches source maps that are not here.
without_map() { sed '/^\/\/# sourceMappingURL=/d' "$1"; }
without_map "$work/preact/dist/preact.mjs" >"$into/preact.js"
without_map "$work/preact/hooks/dist/hooks.mjs" | sed 's/from"preact"/from".\/preact.js"/' >"$into/hooks.js"
without_map "$work/htm/dist/htm.mjs" >"$into/htm.js"
# The minified build is a script; the last line makes it a module.
{ without_map "$work/uplot/dist/uPlot.iife.min.js"; echo 'export default uPlot;'; } >"$into/uplot.js"
cp "$work/uplot/dist/uPlot.min.css" "$into/uplot.css"
cp "$work/axe-core/axe.min.js" "$tests/axe.min.js"
for package in preact htm uplot; do printf '%s\n\n' "== $package =="; cat "$work/$package/LICENSE"; printf '\n'; done >"$into/licences.txt"

row() { # FILE PACKAGE VERSION LICENCE
  printf '  {"file": "%s", "package": "%s", "version": "%s", "licence": "%s", "sha256": "%s"}' "$1" "$2" "$3" "$4" "$(sha256sum "$1" | cut -d' ' -f1)"
}
{
  echo '['
  row "$into/preact.js" preact "$preact" MIT; echo ,
  row "$into/hooks.js" preact "$preact" MIT; echo ,
  row "$into/htm.js" htm "$htm" Apache-2.0; echo ,
  row "$into/uplot.js" uplot "$uplot" MIT; echo ,
  row "$into/uplot.css" uplot "$uplot" MIT; echo ,
  row "$into/licences.txt" "preact, htm, uplot" "$preact, $htm, $uplot" "MIT, Apache-2.0, MIT"; echo ,
  row "$tests/axe.min.js" axe-core "$axe" MPL-2.0; echo
  echo ']'
} >"$list"
