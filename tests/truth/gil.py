# SPDX-License-Identifier: MIT OR Apache-2.0
"""A thread named "waiter" wants the interpreter's lock while "worker" computes"""

import ctypes
import sys
import threading
import time

libc = ctypes.CDLL(None)
libc.prctl.argtypes = [ctypes.c_int, ctypes.c_char_p]
# Else whoever waits wakes up every 5 ms to ask for the lock: a timer.
sys.setswitchinterval(60)
ms = int(sys.argv[1])
begun = threading.Event()


def worker():
    libc.prctl(15, b"worker")
    begun.set()
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass


libc.prctl(15, b"waiter")
thread = threading.Thread(target=worker)
thread.start()
begun.wait()
thread.join()
