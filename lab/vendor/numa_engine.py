# SPDX-License-Identifier: Apache-2.0
"""Stand-in for an engine of several workers on a NUMA guest: where its threads and pages go, nothing else.

``numa_engine.py CPUS …``: one worker per list such as 2,3, each binding itself to it as vLLM's numactl and
vllm-ascend's taskset do, then touching memory; "-" leaves a worker where the kernel puts it. The core process asks for
all CPUs of the machine, as vLLM's asks for whole nodes. Titles are those of vLLM; the size of the memory is invented.
"""

import os
import sys
import threading
import time

MEMORY_BYTES = 32 << 20
READY = "/run/numa_engine"  # one line for each worker that has touched its memory


def work(cpus: str) -> None:
    if cpus != "-":
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    memory = bytearray(MEMORY_BYTES)  # zeroed, so not touched yet
    for place in range(0, MEMORY_BYTES, 4096):
        memory[place] = 1
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    with open(READY, "a", encoding="ascii") as stream:
        stream.write(f"{os.getpid()}\n")
    time.sleep(3600)


def start(title: str, *arguments: str) -> int:
    return os.spawnv(os.P_NOWAIT, sys.executable, [title, os.path.abspath(__file__), *arguments])


def main() -> None:
    if sys.argv[1] == "--worker":
        work(sys.argv[2])
        return
    with open(READY, "w"):
        pass
    for rank, cpus in enumerate(sys.argv[1:]):
        start(f"VLLM::Worker_TP{rank}", "--worker", cpus)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    time.sleep(3600)


if __name__ == "__main__":
    main()
