#!/bin/sh
# Run once inside the new root: starts MariaDB and slurmdbd so that the tables of the accounting
# database are in the layer, then stops both in good order.
set -eu

# Waits up to 60 s for a command to succeed, quietly.
await() {
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    echo "gave up waiting for: $*"
    tail -n 20 /var/log/slurm/slurmdbd.log /var/log/mariadb-testbed.log
    exit 1
}

ended() {
    ! kill -0 "$1" 2>/dev/null
}

ip link set lo up
# Slurm's resolver ignores IPv4 on a host whose only address is 127.0.0.1.
ip address add 192.0.2.1/32 dev lo
install -d -o mysql -g mysql /run/mysqld
install -d -o munge -g munge -m 755 /run/munge /var/log/munge
[ -s /etc/munge/munge.key ] || mungekey --create --keyfile /etc/munge/munge.key
chown munge:munge /etc/munge/munge.key
setpriv --reuid munge --regid munge --init-groups munged

mariadbd --user=mysql >/var/log/mariadb-testbed.log 2>&1 &
server=$!
await mariadb -e 'select 1'
mariadb -e "create database slurm_acct_db; create user slurm@localhost; grant all on slurm_acct_db.* to slurm@localhost"

slurmdbd -D &
accounting=$!
await sacctmgr -n show cluster
sacctmgr -n show qos format=name
kill $accounting
wait $accounting || true
kill $server
wait $server || true
kill "$(cat /run/munge/munged.pid)"
await ended "$(cat /run/munge/munged.pid 2>/dev/null || echo 999999)"
rm -f /var/log/mariadb-testbed.log
