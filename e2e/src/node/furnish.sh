# Furnishes the namespaces of a node; runs inside of them. Nothing here is seen outside.
#
#   $1 the environment's directory   $2 the node's address   $3 its gateway for pods, with the prefix
set -eu

ip link set lo up
ip link set uplink up
ip address add "$2/30" dev uplink
ip link add pods type bridge
ip address add "$3" dev pods
ip link set pods up
# What is no service goes nowhere: packets to a service without a rule must not wander about.
ip route add blackhole 198.18.0.0/16
echo 1 >/proc/sys/net/ipv4/ip_forward
# Fails where the kernel has no nftables, before kube-proxy would fail again and again.
nft add table ip trial
nft delete table ip trial

private=$1/node/private
mount -t tmpfs -o mode=0755 capt-node "$private"
# The environment may itself be below one of the directories that get a private copy.
exec 3<"$1"

# Links to the logs of containers, and whatever else keeps a log.
mount -t tmpfs -o mode=0755 capt-node /var/log
# Sockets of the shims, names of the pods' network namespaces.
mount -t tmpfs -o mode=0755 capt-node /run
# The results that libcni keeps; the rest must stay readable.
mkdir "$private/lib" "$private/work"
mount -t overlay capt-node -o "lowerdir=/var/lib,upperdir=$private/lib,workdir=$private/work" /var/lib
mkdir -p "$1"
mount --no-canonicalize --bind /proc/self/fd/3 "$1"

# The kubelet insists on these and would change them for the whole machine; it is given copies to write to.
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  copy=$private/$(basename "$name")
  cat "/proc/sys/$name" >"$copy"
  mount --bind "$copy" "/proc/sys/$name"
done
