#!/usr/bin/env bash
# Writes, for each program, the list of what is in it: as CycloneDX (name.cdx.json), and with licences for people (name.licences.txt).
# Usage: images/sbom.sh DIRECTORY (needs jq)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?"usage: images/sbom.sh DIRECTORY"}
mkdir -p "$out"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)

for program in capt-cluster-controller capt-controlplane-controller capt-endpoint capt-install capt-secrets capt-tenant-controller capt-workspace-controller; do
  # What is linked, and the procedural macros that wrote some of it; not what only tests or build scripts use.
  ${CARGO:-cargo} tree --locked --package "$program" --edges normal --no-dedupe --prefix none --format '{p}|{l}' |
    sed -E 's/ \((proc-macro|\*)\)//g; s/ \([^)]*\)\|/|/; s/ v([^|]*)\|/|\1|/' | sort -u >"$out/$program.tree"
  awk -F'|' '{printf "%s %s\t%s\n", $1, $2, $3}' "$out/$program.tree" >"$out/$program.licences.txt"
  jq --null-input --raw-input --arg program "$program" --arg version "$version" '{
    bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
    metadata: {component: {type: "application", name: $program, version: $version, "bom-ref": $program}},
    components: [inputs | split("|") | select(.[0] != $program) | {
      type: "library", name: .[0], version: .[1], purl: "pkg:cargo/\(.[0])@\(.[1])", "bom-ref": "\(.[0])@\(.[1])",
      licenses: [{expression: (.[2] | gsub("/"; " OR "))}]
    }]
  }' <"$out/$program.tree" >"$out/$program.cdx.json"
  rm "$out/$program.tree"
  printf '%-32s %4d crates\n' "$program" "$(jq '.components | length' "$out/$program.cdx.json")"
done
