/* mapped.c - see mapped.h. The handler only compares addresses, writes and leaves; other faults go where they went before.
 *
 * A read of the mapping cannot be repeated or skipped from C, and unwinding through a thread pool is not safe: so the process ends.
 */
#include "mapped.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define MOST 64

static struct { _Atomic uintptr_t base; size_t size; char label[512]; } guarded[MOST];
static struct sigaction before;
static int installed;

static void say(const char *text) {
    const ssize_t n = write(2, text, strlen(text));
    (void)n;
}

static void on_bus(int sig, siginfo_t *info, void *context) {
    const uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < MOST; i++) {
        const uintptr_t base = atomic_load(&guarded[i].base);
        if (!base || at < base || at - base >= guarded[i].size) continue;
        say("moegg: ");
        say(guarded[i].label);
        say(": a part of the file could not be read: it was cut short or its disk failed while the model ran; check the file [io-mapped]\n");
        _exit(6);
    }
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(sig, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(sig);
    } else {
        signal(sig, SIG_DFL);                   /* the faulting instruction runs again and ends the process as before */
    }
}

int mg_guard(const void *base, size_t size, const char *label) {
    for (int i = 0; i < MOST; i++) {
        if (atomic_load(&guarded[i].base)) continue;
        guarded[i].size = size;
        strncpy(guarded[i].label, label, sizeof guarded[i].label - 1);
        atomic_store(&guarded[i].base, (uintptr_t)base);
        if (!installed) {
            struct sigaction a = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
            sigemptyset(&a.sa_mask);
            installed = sigaction(SIGBUS, &a, &before) == 0;
        }
        return 0;
    }
    return -1;
}

void mg_unguard(const void *base) {
    for (int i = 0; i < MOST; i++)
        if (atomic_load(&guarded[i].base) == (uintptr_t)base) atomic_store(&guarded[i].base, 0);
}
