#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Why does it take so long to install a small package? For the trigger of another
# one, which makes its index anew.
. "$(dirname "$0")/common.sh"
need dpkg dpkg-deb python3

package() {
	mkdir -p "$1/DEBIAN"
	cat >"$1/DEBIAN/control" <<EOF
Package: $1
Version: 1
Architecture: all
Maintainer: Nobody <nobody@example.org>
Description: of a case
EOF
}
package case-index
echo "interest /usr/share/case" >case-index/DEBIAN/triggers
cat >case-index/DEBIAN/postinst <<EOF
#!/bin/sh
[ "\$1" != triggered ] || exec "$python" "$place/index.py"
EOF
chmod 755 case-index/DEBIAN/postinst
cat >index.py <<'EOF'
words = [f"word {i * 7919 % 400009}" for i in range(400000)]
print(len(sorted(words, key=lambda word: word[::-1])))
EOF
package case-data
mkdir -p case-data/usr/share/case
for number in $(seq 40); do echo "$number" >case-data/usr/share/case/$number; done
dpkg-deb -b case-index >/dev/null
dpkg-deb -b case-data >/dev/null
mkdir -p admin/info admin/updates admin/triggers root
: >admin/status
install_package() {
	dpkg --log=/dev/null --admindir="$place/admin" --instdir="$place/root" --force-script-chrootless -i "$1" >/dev/null
}
install_package case-index.deb

title "dpkg -i, with a trigger"
"$debox" run --quiet -o report.txt -- dpkg --log=/dev/null --admindir="$place/admin" --instdir="$place/root" \
	--force-script-chrootless -i case-data.deb
title "the trigger alone"
getrusage "$python" index.py
verdict 'python3[^:]*: .*computing in its own code' 'wait4|waiting for a child'
