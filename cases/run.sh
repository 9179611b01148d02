#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# How is the whole case study run? Five minutes, or `--full` two hours and more; as root.
#
#   cases/run.sh [--full] [--out DIR] [--only CASE ...]
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory -s case-programs
exec /usr/bin/python3 cases/run.py "$@"
