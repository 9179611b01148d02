#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Why do requests for a small file in memory take long while others fetch large
# files from the disk? One worker of nginx waits for the disk on behalf of all.
. "$(dirname "$0")/common.sh"
need nginx wrk python3

mkdir www
python3 - <<'EOF'
import os
for number in range(200):
    with open(f"www/{number}.bin", "wb") as file:
        file.write(os.urandom(2 << 20))
open("www/hot.txt", "w").write("hot\n")
os.sync()
EOF
# Keeps the large files out of memory for so many seconds, as a set of files
# does that is larger than memory.
cat >evict.py <<'EOF'
import os, sys, time
files = [os.open(f"www/{number}.bin", os.O_RDONLY) for number in range(200)]
end = time.monotonic() + float(sys.argv[1])
while True:
    for file in files:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    if time.monotonic() > end:
        break
    time.sleep(0.05)
EOF
cat >once.lua <<'EOF'
local n = -1
request = function()
  n = n + 1
  return wrk.format("GET", "/" .. (n % 200) .. ".bin")
end
EOF

for aio in off threads; do
	rm -f nginx.pid
	title "aio $aio"
	port=$(free_port)
	cat >nginx.conf <<EOF
daemon off; master_process off; error_log stderr error; pid $place/nginx.pid;
events { worker_connections 256; }
http {
  access_log off; sendfile on; aio $aio;
  client_body_temp_path $place/t1; proxy_temp_path $place/t2; fastcgi_temp_path $place/t3;
  uwsgi_temp_path $place/t4; scgi_temp_path $place/t5;
  server { listen 127.0.0.1:$port; root $place/www; }
}
EOF
	cat >load.sh <<EOF
tries=0
until [ -s nginx.pid ] && python3 -c 'import socket; socket.create_connection(("127.0.0.1", $port))' 2>/dev/null; do
	tries=\$((tries + 1))
	[ \$tries -lt 100 ] || exit 1
	sleep 0.1
done
python3 evict.py 0
python3 evict.py 6 &
wrk -t1 -c4 -d6s -s once.lua http://127.0.0.1:$port/ >large.txt &
wrk -t1 -c1 -d6s --latency http://127.0.0.1:$port/hot.txt >small.txt
wait \$!
kill -QUIT \$(cat nginx.pid)
EOF
	sh load.sh &
	load=$!
	children="$children $load"
	"$debox" run --sort blocked --top 4 --quiet -o report.txt -- nginx -p "$place" -c "$place/nginx.conf"
	wait $load
	cat report.txt
	[ $aio != off ] || says 'sendfile|waiting for a CPU' 'epoll_wait: '
	echo "requests for the small file:"
	grep -E '50%|99%|requests in' small.txt
	echo "transfer of the large ones:"
	grep 'Transfer/sec' large.txt
done
