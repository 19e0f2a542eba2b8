#!/usr/bin/env bash
# Packs the chart, and renders it for those who install without Helm: capt.yaml for kubectl, and a release for clusterctl.
# Usage: charts/manifests.sh DIRECTORY (with helm on PATH, or in HELM)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?"usage: charts/manifests.sh DIRECTORY"}
helm=${HELM:-helm}
mkdir -p "$out"
"$helm" package charts/capt --destination "$out" >/dev/null

namespace() {
  printf -- '---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n  labels:\n' "$1"
  printf '    pod-security.kubernetes.io/enforce: restricted\n'
}

# The Jobs are Helm's: here the CRDs stand beside the rest, and whoever deletes by hand is on guard himself.
chart() {
  local namespace=$1
  shift
  "$helm" template capt charts/capt --namespace "$namespace" --no-hooks \
    --set crds.install=false,uninstallGuard.enabled=false "$@"
}

{
  namespace capt-system
  cat crds/*.yaml
  chart capt-system
} >"$out/capt.yaml"

# clusterctl replaces ${variables} in components. What the CRDs' descriptions say about placeholders is no variable.
components() {
  local provider=$1 namespace=$2
  shift 2
  namespace "$namespace"
  grep -lZ "cluster.x-k8s.io/provider: $provider\$" crds/*.yaml | xargs -0 sed 's/\$/$$/g'
  chart "$namespace" --set "commonLabels.cluster\\.x-k8s\\.io/provider=$provider" "$@"
}

components infrastructure-capt capt-system \
  --set controllers.controlplane.enabled=false,controllers.endpoint.enabled=false,controllers.secrets.enabled=false \
  >"$out/infrastructure-components.yaml"
components control-plane-capt capt-control-plane-system \
  --set controllers.cluster.enabled=false,controllers.workspace.enabled=false \
  >"$out/control-plane-components.yaml"
cp charts/clusterctl/metadata.yaml charts/clusterctl/cluster-template.yaml "$out"
