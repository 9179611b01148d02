#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Services with pools of threads, most of which have nothing to do: is the one that
# holds up the others found, and are the idle ones left out? In Go and in Java.
. "$(dirname "$0")/common.sh"
need go javac java

cat >pool.go <<'EOF'
package main

import (
	"fmt"
	"os"
	"sync"
)

// Eight workers, one queue; each job appends to one file and waits for the disk.
func main() {
	file, _ := os.Create("go.log")
	jobs := make(chan int)
	var lock sync.Mutex
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for job := range jobs {
				lock.Lock()
				fmt.Fprintln(file, job)
				file.Sync()
				lock.Unlock()
			}
		}()
	}
	for job := 0; job < 400; job++ {
		jobs <- job
	}
	close(jobs)
	all.Wait()
}
EOF
cat >Pool.java <<'EOF'
import java.util.concurrent.*;

public class Pool {
    static double work(int n) {
        double sum = 0;
        for (int i = 1; i < n; i++) sum += Math.sin(i) / i;
        return sum;
    }
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(16);
        // One long job, and fifteen threads that wait for others.
        Future<Double> result = pool.submit(() -> work(60_000_000));
        for (int i = 0; i < 100; i++) pool.submit(() -> work(10));
        System.out.printf("%.3f%n", result.get());
        pool.shutdown();
    }
}
EOF
GOCACHE="$place/cache" GO111MODULE=off go build -o pool pool.go
javac -d . Pool.java

title "Go: workers behind one lock and the disk"
"$debox" run --quiet -o report.txt -- ./pool
! command -v strace >/dev/null || strace -f -c -e trace=fsync ./pool 2>&1 | grep -E 'usecs|fsync'
verdict 'fsync|waiting for a CPU' 'in epoll'

title "Java: one long job among idle threads"
"$debox" run --quiet -o report.txt -- java -cp . Pool
getrusage java -cp . Pool
# (A pause by the JVM's own VM Thread may add what that slept before: see docs/verdict.md.)
verdict 'pool-1-thread-1: computing in its own code' 'epoll|pool-1-thread-[2-9]'
