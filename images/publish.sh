#!/usr/bin/env bash
# Joins the archives that images/build.sh wrote on machines of several architectures into one image per program, and pushes it.
# Usage: images/publish.sh DIRECTORY... (one per architecture; needs buildah, logged in to the registry, and jq)
#
#   REGISTRY  the beginning of the images' names
#   TAG       their tag; the version of the workspace if not set
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: images/publish.sh DIRECTORY..." >&2; exit 2; }

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")
registry=${REGISTRY:-ghcr.io/capt-dev}
tag=${TAG:-$version}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Storage of its own, as in images/build.sh.
export STORAGE_DRIVER=vfs
buildah() { command buildah --root "$work/storage" --runroot "$work/run" "$@"; }

# All of them are joined before one is pushed: a release that lacks an architecture should fail as a whole.
images=()
for archive in "$1"/*.tar; do
  image=$registry/$(basename "$archive" .tar):$tag
  buildah manifest create "$image" >/dev/null
  for directory in "$@"; do
    # The architecture is the one that the image itself names.
    buildah manifest add "$image" "oci-archive:$directory/$(basename "$archive")" >/dev/null
  done
  architectures=$(buildah manifest inspect "$image" | jq -r '[.manifests[].platform.architecture] | unique | join(" ")')
  [ "$(wc -w <<<"$architectures")" = $# ] || { echo "$image: $# directories, but only for $architectures" >&2; exit 1; }
  printf '%-60s %s\n' "$image" "$architectures"
  images+=("$image")
done
for image in "${images[@]}"; do
  # Without --all only the list would go, and none of the images that it names.
  buildah manifest push --all --quiet "$image" "docker://$image"
done
