#!/usr/bin/env bash
# Regenerates longturn/v1 from proto/. The generator is pinned to the lowest supported runtime (grpcio-tools 1.81.1).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
"$python" -m grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=. \
  --mypy_out=. --mypy_grpc_out=. proto/longturn/v1/*.proto
