#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What is installed where? One list, for installing and for taking away.
#
#   setup/install.sh install|uninstall     (by `make install`, `make uninstall`)
#
# PREFIX, DESTDIR, LIBDIR and OUT (what `make build` made) come from the
# environment. No root is needed where PREFIX can be written without. With
# SYMBOLS=within the programs keep their symbols, for who packs them and takes
# these out himself.
set -eu
what=${1:?install or uninstall}
PREFIX=${PREFIX:-/usr/local}
LIBDIR=${LIBDIR:-$PREFIX/lib}
DESTDIR=${DESTDIR:-}
SYMBOLS=${SYMBOLS:-beside}
cd "$(dirname "$0")/.."
OUT=${OUT:-target/release}
case $OUT in /*) ;; *) OUT=$PWD/$OUT ;; esac
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)

for directory in "$PREFIX" "$LIBDIR"; do
	case $directory in
	*[\ \|\&\\\"]*) echo "install: $directory holds a character that pkg-config and systemd do not take; choose another PREFIX" >&2; exit 1 ;;
	/*) ;;
	*) echo "install: PREFIX and LIBDIR must begin with /: now $directory" >&2; exit 1 ;;
	esac
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
written=$work/file
made=""
# put MODE TARGET SOURCE
put() {
	to=$DESTDIR$2
	if [ "$what" = uninstall ]; then
		rm -f "$to"
	else
		install -d "${to%/*}"
		install -m "$1" "$3" "$to"
	fi
	case " $made " in *" ${2%/*} "*) ;; *) made="$made ${2%/*}" ;; esac
}

# The same, with what only installing knows filled in.
put_filled() {
	sed -e "s|@PREFIX@|$PREFIX|g" -e "s|@LIBDIR@|$LIBDIR|g" -e "s|@SBINDIR@|$PREFIX/sbin|g" \
		-e "s|@VERSION@|$version|g" "$3" >"$written"
	put "$1" "$2" "$written"
}

# put_program TARGET SOURCE: without its symbols, which lie beside it, where
# debuggers (and its own backtraces) look for them.
put_program() {
	if [ "$SYMBOLS" = within ]; then
		put 755 "$1" "$2"
		return
	fi
	symbols=${1##*/}.debug
	if [ "$what" = install ]; then
		objcopy --only-keep-debug "$2" "$work/$symbols"
		(cd "$work" && objcopy --strip-all --add-gnu-debuglink="$symbols" "$2" "$written")
	fi
	put 755 "$1" "$written"
	put 644 "${1%/*}/.debug/$symbols" "$work/$symbols"
}

if [ "$what" = install ]; then
	command -v objcopy >/dev/null || { echo "install: objcopy is missing: install binutils" >&2; exit 1; }
	for product in debox deboxd debox-agent debox-serve debox-fleet libdebox.so.0 libdebox.a libdebox-wrap.so libdebox-select.so debox-splice.bin; do
		[ -e "$OUT/$product" ] || { echo "install: $OUT/$product is missing: run \`make build\` first" >&2; exit 1; }
	done
fi

put_program "$PREFIX/bin/debox" "$OUT/debox"
put_program "$PREFIX/sbin/deboxd" "$OUT/deboxd"
put_program "$PREFIX/libexec/debox-agent" "$OUT/debox-agent"
put_program "$PREFIX/libexec/debox-serve" "$OUT/debox-serve"
put_program "$PREFIX/libexec/debox-fleet" "$OUT/debox-fleet"

put 755 "$LIBDIR/libdebox.so.0" "$OUT/libdebox.so.0"
put 755 "$LIBDIR/libdebox-wrap.so" "$OUT/libdebox-wrap.so"
put 755 "$LIBDIR/libdebox-select.so" "$OUT/libdebox-select.so"
put 644 "$LIBDIR/libdebox.a" "$OUT/libdebox.a"
put 644 "$LIBDIR/debox-splice.bin" "$OUT/debox-splice.bin"
if [ "$what" = install ]; then
	ln -sf libdebox.so.0 "$DESTDIR$LIBDIR/libdebox.so"
else
	rm -f "$DESTDIR$LIBDIR/libdebox.so"
fi
put_filled 644 "$LIBDIR/pkgconfig/debox.pc" setup/debox.pc.in

# Every header there is: a program needs what debox.h includes.
for header in include/*.h include/debox/*.h; do
	put 644 "$PREFIX/$header" "$header"
done

# The crate `debox`, for cargo add --path. It links libdebox.a of this prefix.
rust=$PREFIX/share/debox/rust
sed -e 's|^members = .*|members = ["abi", "debox"]|' -e 's|path = "crates/|path = "|' -e '/^\[profile/,$d' Cargo.toml >"$written"
put 644 "$rust/Cargo.toml" "$written"
for file in crates/abi/Cargo.toml crates/abi/src/*.rs crates/debox/Cargo.toml crates/debox/build.rs \
	crates/debox/src/*.rs crates/debox/examples/*.rs; do
	put 644 "$rust/${file#crates/}" "$file"
done
echo "$LIBDIR" >"$written"
put 644 "$rust/debox/libdir" "$written"

for page in man/*.[1-8]; do
	put 644 "$PREFIX/share/man/man${page##*.}/${page#man/}" "$page"
done
# completions SHELL TARGET
completions() {
	[ "$what" = uninstall ] || "$OUT/debox" completions "$1" >"$written"
	put 644 "$2" "$written"
}
completions bash "$PREFIX/share/bash-completion/completions/debox"
completions fish "$PREFIX/share/fish/vendor_completions.d/debox.fish"
completions zsh "$PREFIX/share/zsh/site-functions/_debox"

for unit in systemd/*.service systemd/*.socket; do
	put_filled 644 "$PREFIX/lib/systemd/system/${unit#systemd/}" "$unit"
done

put 644 "$PREFIX/lib/sysusers.d/debox.conf" systemd/debox.conf
put 644 "$PREFIX/share/debox/agent.toml" systemd/agent.toml
for file in dashboards/*.json dashboards/*.yml; do
	put 644 "$PREFIX/share/debox/$file" "$file"
done

if [ "$what" = uninstall ]; then
	# Directories that only DeBox uses, and others that are empty now, up to PREFIX.
	for directory in $made; do
		while [ "$directory" != "$PREFIX" ] && [ "$directory" != / ] && [ -n "$directory" ]; do
			rmdir "$DESTDIR$directory" 2>/dev/null || break
			directory=${directory%/*}
		done
	done
elif [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then
	# A prefix that the loader does not search is not in its cache either.
	ldconfig
fi
# The broker's user, where the units are that need it: in a prefix that systemd
# searches. Uninstalling leaves it: a user id must not come to mean another.
case $what:$DESTDIR$PREFIX in
install:/usr | install:/usr/local)
	if [ "$(id -u)" = 0 ] && ! systemd-sysusers "$PREFIX/lib/sysusers.d/debox.conf" 2>/dev/null; then
		echo "install: no systemd-sysusers made the user debox; deboxd.service needs it:" \
			"useradd --system --user-group --no-create-home --shell /usr/sbin/nologin debox" >&2
	fi
	;;
esac
