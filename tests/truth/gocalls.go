// SPDX-License-Identifier: MIT OR Apache-2.0

// Which calls does a program make that has no libc? `gocalls N` makes N times
// getppid on each of 4 goroutines, and one pipe read that blocks for 30 ms.
package main

import (
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func main() {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		os.Exit(2)
	}
	var all sync.WaitGroup
	for i := 0; i < 4; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < n; j++ {
				syscall.RawSyscall(syscall.SYS_GETPPID, 0, 0, 0)
			}
		}()
	}
	all.Wait()
	var fd [2]int
	if syscall.Pipe(fd[:]) != nil {
		os.Exit(1)
	}
	go func() {
		time.Sleep(30 * time.Millisecond)
		syscall.Write(fd[1], []byte{1})
	}()
	buf := make([]byte, 1)
	if got, err := syscall.Read(fd[0], buf); got != 1 || err != nil {
		os.Exit(1)
	}
}
