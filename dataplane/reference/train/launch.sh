#!/bin/sh
# Starts training in the background with the memory settings it needs: freed memory is kept (a page
# fault costs more than the operation that caused it) and large pages are asked for.
# Usage: [MODULE=reference.train.draft] launch.sh [arguments of the module, reference.train.run unless it is set]
# Paths among the arguments start at the repository's root; output in build/train/<time>.out
set -eu
cd "$(dirname "$0")/../../.."
mkdir -p build/train
keep=glibc.malloc.trim_threshold=100000000000:glibc.malloc.mmap_max=0:glibc.malloc.top_pad=268435456
export GLIBC_TUNABLES="glibc.malloc.hugetlb=1:$keep:glibc.malloc.arena_max=1"
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 ONEDNN_PRIMITIVE_CACHE_CAPACITY=8192
export PYTHONPATH=dataplane
out="build/train/$(date -u +%Y%m%d-%H%M%S).out"
setsid nohup nice -n 3 "${PYTHON:-/usr/bin/python3}" -m "${MODULE:-reference.train.run}" "$@" >"$out" 2>&1 </dev/null &
echo "process $! writes $out"
