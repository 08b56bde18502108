# Other PostgreSQL versions, each from its Debian release, unpacked by debootstrap into build/matrix/ and entered by
# chroot. The script that sources this file runs as root in separate namespaces: tq_chroots_begin.

# tq_chroots_begin "$@": runs the script again as root (with sudo if needed), in fresh namespaces. Mounts and processes
# of a run end with it, whatever ends it. Call it first.
tq_chroots_begin() {
	if [ -z "${TQ_INSIDE:-}" ]; then
		_tq_root=
		[ "$(id -u)" -eq 0 ] || _tq_root="sudo -E"
		# shellcheck disable=SC2086 # nothing, or a command
		exec $_tq_root env TQ_INSIDE=yes unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
	fi
	unset TQ_INSIDE
	mount --make-rprivate /
}

_tq_release_of() {
	case $1 in
	15) echo bookworm ;;
	17) echo trixie ;;
	18) echo forky ;;
	*) tq_die "no Debian release known for PostgreSQL $1 (there are 15, 17 and 18)" ;;
	esac
}

# tq_known VERSION: ends the script for an unknown version
tq_known() {
	_tq_release_of "$1" >/dev/null
}

# The mirror of this machine's own packages.
_tq_mirror() {
	apt-get indextargets --format '$(REPO_URI) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
		awk '$2 == "main" && $1 !~ /security/ { print $1; exit }'
}

# tq_unpack VERSION: a minimal system with the server and its headers, in $TQ_CHROOT
tq_unpack() {
	TQ_CHROOT=$TQ_ROOT/build/matrix/$1
	[ ! -e "$TQ_CHROOT/.ready" ] || return 0
	_tq_release=$(_tq_release_of "$1")
	_tq_uri=$(_tq_mirror)
	[ -n "$_tq_uri" ] || tq_die "apt names no Debian mirror (apt-get update first?)"
	# debootstrap handles releases newer than itself like unstable
	_tq_script=/usr/share/debootstrap/scripts/$_tq_release
	[ -e "$_tq_script" ] || _tq_script=/usr/share/debootstrap/scripts/sid
	rm -rf "$TQ_CHROOT"
	mkdir -p "$TQ_CHROOT"
	tq_say "unpacking Debian $_tq_release from $_tq_uri"
	debootstrap --variant=minbase "$_tq_release" "$TQ_CHROOT" "$_tq_uri" "$_tq_script" >"$TQ_CHROOT.log" 2>&1 ||
		{ tail -n 20 "$TQ_CHROOT.log" >&2; return 1; }
	# apt's settings for the mirror on this machine are needed for the same mirror there
	apt-config dump Acquire | grep -iE '::(Proxy|Check-Valid-Until|Check-Date)' >"$TQ_CHROOT/etc/apt/apt.conf.d/90mirror" || :
	# no services, and no cluster from the distribution
	printf '#!/bin/sh\nexit 101\n' >"$TQ_CHROOT/usr/sbin/policy-rc.d"
	chmod +x "$TQ_CHROOT/usr/sbin/policy-rc.d"
	mkdir -p "$TQ_CHROOT/etc/postgresql-common"
	echo 'create_main_cluster = false' >"$TQ_CHROOT/etc/postgresql-common/createcluster.conf"
	tq_enter sh -c "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 \
		-o Dpkg::Options::=--force-confold install --yes --no-install-recommends \
		postgresql-$1 postgresql-server-dev-$1" >>"$TQ_CHROOT.log" 2>&1 || { tail -n 20 "$TQ_CHROOT.log" >&2; return 1; }
	touch "$TQ_CHROOT/.ready"
}

# tq_enter COMMAND...: in $TQ_CHROOT
tq_enter() {
	mountpoint -q "$TQ_CHROOT/proc" || mount -t proc proc "$TQ_CHROOT/proc"
	[ -d "$TQ_CHROOT/dev/shm" ] || mkdir "$TQ_CHROOT/dev/shm"
	mountpoint -q "$TQ_CHROOT/dev/shm" || mount -t tmpfs tmpfs "$TQ_CHROOT/dev/shm"
	cp -L /etc/resolv.conf "$TQ_CHROOT/etc/resolv.conf"
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C TQ_JOBS="$TQ_JOBS" ${TQ_PROVE_JOBS:+TQ_PROVE_JOBS="$TQ_PROVE_JOBS"} \
		chroot "$TQ_CHROOT" "$@"
}

# The sources as /tq in $TQ_CHROOT; earlier build output stays.
tq_bring_sources() {
	mkdir -p "$TQ_CHROOT/tq"
	find "$TQ_CHROOT/tq" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
	tar -C "$TQ_ROOT" -c --exclude=./build --exclude=./.git . | tar -C "$TQ_CHROOT/tq" -x --no-same-owner
}
