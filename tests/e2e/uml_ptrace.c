/* ptrace for User Mode Linux on a processor with AMX, preloaded into it.
 *
 * UML 6.1 writes a process's floating-point registers in 2,696 bytes, which is all there is up to
 * AVX-512 and PKRU. Linux takes exactly the size of the processor's extended state, 11,008 bytes
 * with AMX, and answers anything shorter with EFAULT (arch/x86/kernel/fpu/regset.c,
 * xstateregs_set), so that UML panics at its first process. The rest is filled in here with what
 * the process has.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

enum { GETREGSET = 0x4204, SETREGSET = 0x4205, X86_XSTATE = 0x202 };

long ptrace(long request, long pid, long address, void *data)
{
    static long (*libc_ptrace)(long, long, long, void *);
    static char state[1 << 16];
    struct iovec *part = data, whole = {state, sizeof state};

    if (!libc_ptrace)
        libc_ptrace = dlsym(RTLD_NEXT, "ptrace");
    long result = libc_ptrace(request, pid, address, data);
    if (request != SETREGSET || address != X86_XSTATE || result == 0 || errno != EFAULT)
        return result;
    if (libc_ptrace(GETREGSET, pid, address, &whole) < 0)
        return -1;
    if (part->iov_len >= whole.iov_len) {
        errno = EFAULT;
        return -1;
    }
    memcpy(state, part->iov_base, part->iov_len);
    return libc_ptrace(SETREGSET, pid, address, &whole);
}
