#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What does a build wait for? Here nothing: the compiler computes, in processes
# that come and go, beside a make that waits for them.
. "$(dirname "$0")/common.sh"
need make g++

for number in 1 2 3 4; do
	cat >part$number.cc <<EOF
#include <algorithm>
#include <map>
#include <regex>
#include <string>
std::map<std::string, std::regex> table$number;
bool part$number(const std::string &s) { return std::regex_search(s, table$number[s]); }
EOF
done
cat >main.cc <<'EOF'
int main() { return 0; }
EOF
cat >Makefile <<'EOF'
OBJECTS := main.o part1.o part2.o part3.o part4.o
program: $(OBJECTS)
	g++ -o $@ $^
%.o: %.cc
	g++ -O2 -c -o $@ $<
EOF

title "make -j2"
"$debox" run --quiet -o report.txt -- make -s -j2
rm -f program *.o
getrusage make -s -j2
verdict 'cc1plus[^:]*: .*computing in its own code' 'readlink|wait4|pipe'
