// SPDX-License-Identifier: MIT OR Apache-2.0

/** A thread named "waiter" parks until "worker" has computed. */
public class Park {
    public static void main(String[] args) throws Exception {
        long ns = Long.parseLong(args[0]) * 1000000;
        var answer = new java.util.concurrent.CompletableFuture<Long>();
        var waiter = new Thread(answer::join, "waiter");
        var worker = new Thread(() -> {
            long end = System.nanoTime() + ns, n = 0;
            while (System.nanoTime() < end) n++;
            answer.complete(n);
        }, "worker");
        waiter.start();
        worker.start();
        waiter.join();
        worker.join();
    }
}
