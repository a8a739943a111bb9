#!/usr/bin/env bash
# Regenerates longturn/v1 and docs/wire-reference.md from proto/. The generator is pinned to the lowest supported runtime (grpcio-tools 1.81.1).
# An argument names another folder to write to.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
out=${1:-.}
PATH="$(dirname "$(command -v "$python")"):$PATH"
"$python" -m grpc_tools.protoc -Iproto "--python_out=$out" "--grpc_python_out=$out" \
  "--mypy_out=$out" "--mypy_grpc_out=$out" proto/longturn/v1/*.proto
descriptors=$(mktemp)
trap 'rm -f "$descriptors"' EXIT
"$python" -m grpc_tools.protoc -Iproto --include_source_info "--descriptor_set_out=$descriptors" proto/longturn/v1/*.proto
mkdir -p "$out/docs"
"$python" proto/reference.py "$descriptors" "$out/docs/wire-reference.md"
