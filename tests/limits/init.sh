#!/bin/sh
# The first process of the kernel that `python -m limits` boots: a machine with control groups of
# version 2, one network interface and empty temporary folders; all else is this machine's.
mount -t proc proc /proc
mount -t sysfs sys /sys
told() { sed "s/.* $1=\([^ ]*\).*/\1/" /proc/cmdline | base64 -d; }
for folder in /tmp /var/tmp /run; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
root=$(told GANGLINE_ROOT)
mkdir -p /dev/shm /dev/pts "$root"
mount -t hostfs -o "$root" none "$root"  # it may lie in one of these folders
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t cgroup2 none /sys/fs/cgroup
echo "+memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
ip link set lo up
ip route add default dev lo  # a way out, for the test of what must not be reached
sh -c "$(told GANGLINE_RUN)"
echo "GANGLINE_ENDED=$?"
halt -f
