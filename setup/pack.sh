#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# How does what `make build` made get to machines that build nothing?
#
#   setup/pack.sh [deb]     (by `make packages`; docs/packages.md says what is in each)
#
# Into target/packages/ (PACKAGES): Debian packages, split by setup/debian/*.install from
# what setup/install.sh installs (what is in none of them is an error) and /etc/debox/agent.toml; RPM packages of the
# same, split by setup/debox.spec; what the packages debox and debox-agent have as a tarball,
# but for the programs, which are those of `make static`; and the agent as an image for
# containers (setup/image.py). With `deb` the Debian packages only.
# The same commit and the same products make the same bytes. No root is needed.
set -eu
cd "$(dirname "$0")/.."
TREE=$PWD
OUT=${OUT:-target/release}
case $OUT in /*) ;; *) OUT=$TREE/$OUT ;; esac
packages=${PACKAGES:-$TREE/target/packages}
static=$TREE/target/x86_64-unknown-linux-gnu/release
programs="bin/debox sbin/deboxd libexec/debox-agent libexec/debox-serve libexec/debox-fleet"
export TREE OUT
case ${1-} in
"" | deb) ;;
*) echo "usage: setup/pack.sh [deb]" >&2; exit 2 ;;
esac
umask 022

for tool in dh:debhelper dpkg-deb:dpkg-dev dpkg-shlibdeps:dpkg-dev objcopy:binutils cargo:cargo rpmbuild:rpm python3:python3; do
	command -v "${tool%:*}" >/dev/null || { echo "packages: ${tool%:*} is missing: install ${tool#*:} (make setup-packages)" >&2; exit 1; }
done

if [ -z "${1-}" ]; then
	for program in $programs; do
		[ -x "$static/${program##*/}" ] || { echo "packages: $static/${program##*/} is missing: run \`make static\` first" >&2; exit 1; }
	done
fi

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
# When the sources became what they are: the last commit's, or the changes' where
# there is no repository.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

rm -rf "$packages"
mkdir -p "$packages/work/debox"
trap 'rm -rf "$packages/work"' EXIT
cd "$packages/work/debox"
cp -r "$TREE/setup/debian" debian
chmod 755 debian/rules

# CHANGELOG.md tells, and is in the package debox.
cat >debian/changelog <<END
debox ($version) unstable; urgency=medium

  * What changed is in /usr/share/doc/debox/releases.md.gz.

 -- $(sed -n 's/^Maintainer: //p' debian/control)  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END

# dh writes as any user what belongs to root: the control file says so, for dpkg-buildpackage.
export DEB_RULES_REQUIRES_ROOT=no
if ! debian/rules binary >../log 2>&1; then
	cat ../log >&2
	echo "packages: dh failed: its last lines say why" >&2
	exit 1
fi
mv ../*.deb "$packages"

if [ "${1-}" = deb ]; then
	exit
fi

# The command finds its libraries in the library folder beside its own. Units are for a place that
# is known: they are in the packages.
name=debox-$version-linux-$(uname -m)
architecture=$(dpkg --print-architecture)
cd ..
for package in debox debox-agent; do
	dpkg-deb -x "$packages/${package}_${version}_$architecture.deb" unpacked
done
mv unpacked/usr "$name"
rm -rf "$name/share/lintian" "$name/lib/systemd" "$name/lib/sysusers.d"
for program in $programs; do
	objcopy --strip-all "$static/${program##*/}" "$name/$program"
done
# What is within the programs has licences of its own, told by the packages that brought it.
for library in libc.a libelf.a libgcc_eh.a libz.a; do
	file=$(realpath "$(gcc -print-file-name=$library)")
	package=$(dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}") || { echo "packages: no Debian package brought $file: its licence cannot be told" >&2; exit 1; }
	package=${package%%:*}
	install -D -m 644 "/usr/share/doc/$package/copyright" "$name/share/doc/$package/copyright"
done
cp "$TREE/README.md" "$TREE/LICENSE-APACHE" "$TREE/LICENSE-MIT" "$TREE/LICENSE-BPF" "$name"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --mode=u=rwX,go=rX -cf - "$name" |
	gzip -9n >"$packages/$name.tar.gz"

# What is installed comes from the tree, and nothing from the rpm of this machine but its way to
# write a package.
if ! rpmbuild -bb --define "_topdir $packages/work/rpm" --define "tree $TREE" --define "version_built $version" \
	"$TREE/setup/debox.spec" >log 2>&1; then
	cat log >&2
	echo "packages: rpmbuild failed: its last lines say why" >&2
	exit 1
fi
mv rpm/RPMS/*/*.rpm "$packages"

for package in debox debox-agent; do
	dpkg-deb -x "$packages/${package}_${version}_$architecture.deb" image
done
"$TREE/setup/image.py" image "$packages/debox-agent-$version-oci.tar"

cd "$packages"
ls -sh --block-size=K -- *.deb *.rpm *.tar *.tar.gz
