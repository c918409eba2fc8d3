#!/bin/sh
# install.sh MEMBER...: installs members of the workspace and what they need, in locked versions,
# into /opt/gangline.
set -eu
export VIRTUAL_ENV=/opt/gangline
paths=""
for member in "$@"; do paths="$paths ./$member"; done
# The lock bounds the versions; only what these members need is installed.
grep -E '^[A-Za-z0-9_.-]+(\[[^]]*\])?==' requirements.lock | sed 's/ *\\$//' > /tmp/locked.txt
# shellcheck disable=SC2086 -- several paths
uv pip install --no-cache --constraint /tmp/locked.txt $paths
