#!/usr/bin/env bash
# Builds an image per program with buildah, and writes each as an archive that container runtimes can import. The images are of
# this machine's architecture; images/publish.sh joins those of several.
#
#   REGISTRY  the beginning of the images' names
#   TAG       their tag; the version of the workspace if not set
#   BASE      the image below; if not set, one is put together from packages of this machine's distribution
#   PROFILE   release, or dev for a quick look
#   BINARIES  a directory with the programs, compiled already; they are compiled here if not set
#   OUT       where the archives go
#   PUSH      push the images to REGISTRY when set
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
registry=${REGISTRY:-ghcr.io/capt-dev}
tag=${TAG:-$version}
profile=${PROFILE:-release}
out=${OUT:-dist/images}
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
programs=(capt-cluster-controller capt-controlplane-controller capt-endpoint capt-install capt-secrets capt-tenant-controller capt-workspace-controller)

if ! command -v buildah >/dev/null; then
  echo "buildah is not installed: on Debian and Ubuntu, apt-get install --no-install-recommends buildah" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Storage of its own, by copying: works without privileges and without a daemon, also inside of containers.
export STORAGE_DRIVER=vfs
buildah() { command buildah --root "$work/storage" --runroot "$work/run" "$@"; }

built=${BINARIES:-}
if [ -z "$built" ]; then
  # Package by package: in a build of the whole workspace, features that only tests need would be in the binaries.
  ${CARGO:-cargo} build --locked --profile "$profile" "${programs[@]/#/--package=}"
  built=${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")
fi

# glibc, libgcc_s and the usual authorities, from the packages of the machine that compiled: never older than the binary needs.
local_base() {
  mkdir -p "$work/packages" "$work/base/etc/ssl/certs"
  download() { (cd "$work/packages" && apt-get -o APT::Sandbox::User=root download -qq libc6 libgcc-s1 ca-certificates); }
  # A machine that was never asked for packages does not know where they are.
  download 2>/dev/null || { apt-get update -qq && download; }
  for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/unpacked"
  done
  # Only what the dynamic linker looks at; the rest of the packages is translations, documentation and converters.
  (cd "$work/unpacked" && find . -name 'ld-linux*.so.*' -o -name 'libc.so.*' -o -name 'libm.so.*' -o -name 'libgcc_s.so.*' -o -name 'libnss_*.so.*' -o -name 'libresolv.so.*' |
    tar --create --files-from - | tar --extract --directory "$work/base")
  cat "$work"/unpacked/usr/share/ca-certificates/mozilla/*.crt >"$work/base/etc/ssl/certs/ca-certificates.crt"
  printf 'nonroot:x:65532:65532::/:\n' >"$work/base/etc/passwd"
  printf 'FROM scratch\nCOPY . /\n' >"$work/Dockerfile.base"
  buildah bud --isolation chroot --quiet --file "$work/Dockerfile.base" --tag localhost/capt-base "$work/base" >/dev/null
}

base=${BASE:-localhost/capt-base}
if [ -z "${BASE:-}" ]; then
  local_base
fi

mkdir -p "$out" "$work/context"
cp LICENSE "$work/context"
for program in "${programs[@]}"; do
  # A release has no symbols already; those of other builds would make up most of the image.
  strip -o "$work/context/$program" "$built/$program"
  image=$registry/$program:$tag
  buildah bud --isolation chroot --quiet --file images/Dockerfile --build-arg "BASE=$base" \
    --build-arg "PROGRAM=$program" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
    --tag "$image" "$work/context" >/dev/null
  # It starts on its base, as the user that it will have.
  container=$(buildah from "$image")
  said=$(buildah run --isolation chroot "$container" -- /capt --version)
  [ "$said" = "$program $version" ] || { echo "$image says '$said'" >&2; exit 1; }
  buildah rm "$container" >/dev/null
  rm -f "$out/$program.tar"
  buildah push --quiet "$image" "oci-archive:$out/$program.tar:$image"
  printf '%-60s %6.1f MB\n' "$image" "$(stat -c %s "$out/$program.tar" | awk '{print $1 / 1e6}')"
  if [ -n "${PUSH:-}" ]; then
    buildah push --quiet "$image"
  fi
  rm "$work/context/$program"
done
