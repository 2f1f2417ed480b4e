#!/usr/bin/env bash
# Loads ROWS rows (int64 key, int32, a string of 32 characters) through the command line into 8 tablets with three replicas on a
# fresh local cluster, takes a CPU profile of one tablet server meanwhile, and prints what it cost.
#   [NODES=60] bench/load.sh [ROWS]     binaries from bin/ (make build)
set -euo pipefail
cd "$(dirname "$0")/.."
rows=${1:-1000000}
dir=$(mktemp -d)
nyala=bin/nyala
cleanup() { "$nyala" local down --dir "$dir/cluster" --delete 2>/dev/null || true; rm -rf "$dir"; }
trap cleanup EXIT
"$nyala" local up --dir "$dir/cluster" 2>/dev/null
status() { "$nyala" local status --dir "$dir/cluster" --format json | tr -d ' \n' | grep -o "\"name\":\"$1\"[^}]*" | grep -o "\"$2\":[^,]*" | cut -d: -f2- | tr -d '"'; }
export NYALA_MASTERS
NYALA_MASTERS=$(status master-1 rpc)
"$nyala" table create load --columns "key int64, int_val int32, string_val string" --primary_key key --hash key:8 --replicas 3 2>/dev/null
cpu() { # of all servers, in seconds
  for s in master-1 tserver-1 tserver-2 tserver-3; do cut -d' ' -f14,15 "/proc/$(status "$s" pid)/stat"; done |
    awk -v hz="$(getconf CLK_TCK)" '{ s += $1 + $2 } END { printf "%.2f", s / hz }'
}
before=$(cpu)
(sleep 1; curl -s "http://$(status tserver-1 web)/debug/pprof/profile?seconds=5" >"$dir/cpu.pb.gz") &
profile=$!
start=$(date +%s.%N)
seq 1 "$rows" | awk 'BEGIN { print "key,int_val,string_val" } { printf "%d,%d,%032d\n", $1, $1, $1 }' |
  "$nyala" table load load - --input_format csv 2>"$dir/log"
end=$(date +%s.%N)
after=$(cpu)
wait "$profile" || true
tail -n 2 "$dir/log" | head -n 1
awk -v r="$rows" -v s="$start" -v e="$end" -v b="$before" -v a="$after" \
  'BEGIN { printf "{\"rows\":%d,\"seconds\":%.2f,\"rows_per_s\":%.0f,\"server_cpu_s\":%.2f,\"rows_per_server_cpu_s\":%.0f}\n", r, e-s, r/(e-s), a-b, r/(a-b) }'
echo
go tool pprof -top -cum -nodecount="${NODES:-60}" bin/nyala-tserver "$dir/cpu.pb.gz" 2>/dev/null
