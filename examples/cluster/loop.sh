#!/bin/bash
# The shares of one run in processes of this machine, side by side: `./loop.sh 4 corpus.txt -o features --layers -1`.
# The same command resumes it. To use several machines, start share I of N on each by hand or over ssh.
set -euo pipefail

n=$1
shift
processes=()
for i in $(seq "$n"); do
    bertfeat extract "$@" --shards "$i/$n" &
    processes+=($!)
done
failed=0
for process in "${processes[@]}"; do
    wait "$process" || failed=$?
done
exit "$failed"
