#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The guest's first process. In: /command. Out: its standard output and error on ports 1 and 2, what it left under
# /out on port 3 as a line with its size and a tar archive, with its exit code and the kernel's log. When the host has
# said there that it has all, since QEMU forgets what nobody has read yet, the guest is off.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 GIVEWAY_LAB_INSIDE=1

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts /run/netns
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
ip link set lo up

modprobe -q virtio_pci
modprobe -q virtio_console
modprobe tun
until [ -c /dev/vport0p1 ] && [ -c /dev/vport0p2 ] && [ -c /dev/vport0p3 ]; do usleep 1000; done

cd /root
/usr/bin/sh /command </dev/null >/dev/vport0p1 2>/dev/vport0p2
echo $? >/out/exit
dmesg >/out/kernel.log
tar -C /out -c . >/tmp/out.tar
exec 3<>/dev/vport0p3
wc -c </tmp/out.tar >&3
cat /tmp/out.tar >&3
read -r has_all <&3
poweroff -f
