// SPDX-License-Identifier: MIT OR Apache-2.0

// A goroutine on a thread named "waiter" waits for a channel that one on "worker"
// sends to after computing.
package main

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

func name(text string) {
	runtime.LockOSThread()
	bytes := append([]byte(text), 0)
	syscall.RawSyscall(syscall.SYS_PRCTL, 15, uintptr(unsafe.Pointer(&bytes[0])), 0)
}

func main() {
	ms, _ := strconv.Atoi(os.Args[1])
	done := make(chan int)
	name("waiter")
	go func() {
		name("worker")
		end := time.Now().Add(time.Duration(ms) * time.Millisecond)
		n := 0
		for time.Now().Before(end) {
			n++
		}
		done <- n
		select {}
	}()
	<-done
}
