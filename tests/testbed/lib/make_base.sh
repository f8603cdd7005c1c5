#!/bin/bash
# Makes $WORK/layer: Debian with Slurm, munge and MariaDB, and a database that slurmdbd has already
# laid its tables in. Runs in mount and pid namespaces of its own; stdout and stderr go to the log,
# descriptor 3 is the terminal.
set -euo pipefail

LAYER=$WORK/layer

progress() {
    printf 'testbed:   %s\n' "$*" >&3
    printf '== %s\n' "$*"
}

in_root() {
    chroot "$LAYER" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} "$@"
}

bootstrap() {
    progress "debootstrap of $SUITE from the mirror of this machine's apt"
    # Older debootstraps have no script of the suite's name; "sid" is the one all of them have.
    debootstrap --variant=minbase "$SUITE" "$LAYER" "$MIRROR" sid
    cp "$WORK/apt.conf" "$LAYER/etc/apt/apt.conf.d/80testbed"
    printf 'deb %s %s main\n' "$MIRROR" "$SUITE" >"$LAYER/etc/apt/sources.list"
    cp -rL /etc/apt/auth.conf.d/. "$LAYER/etc/apt/auth.conf.d/" 2>/dev/null || true
    printf '#!/bin/sh\nexit 101\n' >"$LAYER/usr/sbin/policy-rc.d"
    chmod +x "$LAYER/usr/sbin/policy-rc.d"
    # No manual pages, no translations: nobody reads them here.
    printf 'path-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\npath-exclude=/usr/share/doc/*\n' \
        >"$LAYER/etc/dpkg/dpkg.cfg.d/testbed"
    printf 'force-unsafe-io\n' >>"$LAYER/etc/dpkg/dpkg.cfg.d/testbed"
}

mount_kernel_filesystems() {
    mount -t proc proc "$LAYER/proc"
    mount --rbind /sys "$LAYER/sys"
    mount --rbind /dev "$LAYER/dev"
    cp -L /etc/resolv.conf "$LAYER/etc/resolv.conf" 2>/dev/null || true
    printf '127.0.0.1 localhost %s\n' "$(uname -n)" >"$LAYER/etc/hosts"
}

# For a mirror behind https, until the root has certificates of its own.
lend_certificates() {
    local bundle
    bundle=$(cat "$WORK/ca-bundle")
    if [ -n "$bundle" ]; then install -D -m 644 "$bundle" "$LAYER/etc/ssl/certs/ca-certificates.crt"; fi
}

install_packages() {
    local packages
    packages=$(grep -v '^#' "$TESTBED_DIR/packages.list")
    progress "installing Slurm, munge, MariaDB and the compilers"
    in_root apt-get update
    # shellcheck disable=SC2086
    in_root apt-get install -y --no-install-recommends $packages
    in_root dpkg-query -W -f '${Version}\n' slurmctld >"$LAYER/etc/hetsched-testbed-slurm"
    in_root apt-get clean
    rm -rf "$LAYER"/var/lib/apt/lists/* "$LAYER"/etc/apt/auth.conf.d/*
}

# slurmdbd needs seconds to make its tables; done once here, a boot needs none of them.
prepare_database() {
    progress "preparing the accounting database"
    cat >"$LAYER/etc/mysql/mariadb.conf.d/99-testbed.cnf" <<'CONF'
[mariadbd]
datadir=/var/lib/testbed-db
# slurmdbd's transactions fail under MariaDB's snapshot isolation.
innodb_snapshot_isolation=OFF
innodb_buffer_pool_size=64M
innodb_log_file_size=8M
innodb_flush_log_at_trx_commit=0
innodb_flush_method=nosync
innodb_lock_wait_timeout=900
performance_schema=OFF
skip-networking
skip-log-bin
CONF
    rm -rf "$LAYER"/var/lib/{mysql,mariadb}/*
    in_root install -d -o mysql -g mysql -m 700 /var/lib/testbed-db
    in_root mariadb-install-db --user=mysql --datadir=/var/lib/testbed-db --skip-test-db
    install -d -o "$(in_root id -u slurm)" -g "$(in_root id -g slurm)" "$LAYER/etc/slurm" "$LAYER/var/log/slurm" "$LAYER/run/slurm"
    cat >"$LAYER/etc/slurm/slurmdbd.conf" <<'CONF'
AuthType=auth/munge
DbdHost=localhost
DebugLevel=info
SlurmUser=slurm
PidFile=/run/slurm/slurmdbd.pid
LogFile=/var/log/slurm/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
CONF
    # The clients will not start without one; a boot writes the real file over it.
    printf 'ClusterName=none\nSlurmctldHost=localhost\nAuthType=auth/munge\nSlurmUser=slurm\nAccountingStorageType=accounting_storage/slurmdbd\nNodeName=none\nPartitionName=none Nodes=none\n' >"$LAYER/etc/slurm/slurm.conf"
    chown "$(in_root id -u slurm)" "$LAYER/etc/slurm/slurmdbd.conf"
    chmod 600 "$LAYER/etc/slurm/slurmdbd.conf"
    cp "$TESTBED_DIR/lib/lay_tables.sh" "$LAYER/root/lay_tables.sh"
    in_root unshare --net sh /root/lay_tables.sh
    rm -f "$LAYER/root/lay_tables.sh" "$LAYER"/var/log/slurm/* "$LAYER"/run/slurm/*
}

bootstrap
mount_kernel_filesystems
lend_certificates
install_packages
prepare_database
rm -f "$LAYER/etc/resolv.conf"
umount -R "$LAYER/proc" "$LAYER/sys" "$LAYER/dev"
