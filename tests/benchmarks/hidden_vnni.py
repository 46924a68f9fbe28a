"""Hides VNNI from a process, so that it computes as on a processor with AVX2 and without VNNI.

Linux traps the instruction CPUID on Intel processors since Ivy Bridge. A preloaded library answers it without AVX-512 and VNNI,
so ONNX Runtime and NumPy choose their kernels for AVX2. Requires gcc.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
static struct sigaction previous;

static void answer_cpuid(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uint8_t *code = (uint8_t *)registers[REG_RIP];
    if (code[0] != 0x0f || code[1] != 0xa2) {  /* Not CPUID: the fault repeats without this handler. */
        sigaction(SIGSEGV, &previous, NULL);
        return;
    }
    uint32_t leaf = registers[REG_RAX], subleaf = registers[REG_RCX], a, b, c, d;
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(subleaf));
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (leaf == 7 && subleaf == 0) {
        b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
        c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
        d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    } else if (leaf == 7 && subleaf == 1) {
        a &= ~(1u << 4 | 1u << 5 | 1u << 21 | 1u << 23);
        d = 0;
    }
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void trap_cpuid(void) {
    struct sigaction action = {.sa_sigaction = answer_cpuid, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, &previous);
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0)) {
        static const char message[] = "this processor or kernel cannot trap CPUID\n";
        write(2, message, sizeof message - 1);
        exit(1);
    }
}
"""


@contextlib.contextmanager
def hidden_vnni() -> Iterator[dict[str, str]]:
    """Yield the environment variables of a process without VNNI. Such a process exits if CPUID cannot be trapped."""
    with tempfile.TemporaryDirectory() as name:
        library, source = Path(name) / "hidden_vnni.so", Path(name) / "hidden_vnni.c"
        source.write_text(_SOURCE)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", library, source], check=True)
        yield {"LD_PRELOAD": str(library)}
