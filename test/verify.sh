#!/usr/bin/env bash
# Rebuilds what is generated into a scratch copy and compares: nothing in the checkout is changed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/tree"
git ls-files -z | xargs -0 cp --parents -t "$scratch/tree" 2>/dev/null || true
cd "$scratch/tree"
go tool -modfile=tools/go.mod buf lint
go tool -modfile=tools/go.mod buf generate
go mod tidy
stale=0
for f in $(cd "$root" && git ls-files api go.mod go.sum); do
  if ! cmp -s "$root/$f" "$f"; then
    echo "stale: $f (make generate, or go mod tidy)"
    stale=1
  fi
done
cd "$root"
go test ./test/reference || stale=1
exit $stale
