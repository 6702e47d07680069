/* diskfile.c - see diskfile.h. */
#include "diskfile.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22                 /* Linux 5.14; older kernels answer EINVAL */
#endif
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#define EIO_TRIES 3
#define MAX_GUARDS 64

typedef struct {
    int fd, direct_fd;
    int64_t identity[4];
} mg_part;

struct mg_file {
    mg_part *parts;
    int n_parts, direct;      /* direct: all parts could be opened for direct reads */
    int64_t span, size, page; /* span: bytes of every part but the last */
    uint8_t *map;
    mg_read_hook hook;
    void *hook_ctx;
    atomic_int refused;
    atomic_llong retries;
    int guard, may_ask;       /* may_ask: mincore tells the truth to the owner and to who may write, else 1 for every page */
};

/* --- the mapping of a file that shrinks ------------------------------------------------------------------------------------ */

static struct { _Atomic(uint8_t *) base; atomic_llong bytes; atomic_int lost; } guards[MAX_GUARDS];
static struct sigaction before;
static atomic_int installed;

/* A fault inside a guarded mapping: the whole of it becomes zeros, so that the pass can end; its results are then thrown away. */
static void on_sigbus(int sig, siginfo_t *info, void *context) {
    uint8_t *at = info->si_addr;
    for (int i = 0; i < MAX_GUARDS; i++) {
        uint8_t *base = atomic_load(&guards[i].base);
        const int64_t bytes = atomic_load(&guards[i].bytes);
        if (!base || at < base || at >= base + bytes) continue;
        atomic_store(&guards[i].lost, 1);
        if (mmap(base, (size_t)bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) return;
    }
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(sig, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(sig);
    } else {
        sigaction(SIGBUS, &before, NULL);     /* the instruction runs again and ends the process as it would have */
    }
}

static int guard(uint8_t *base, int64_t bytes) {
    if (!atomic_exchange(&installed, 1)) {
        struct sigaction a;
        memset(&a, 0, sizeof a);
        a.sa_sigaction = on_sigbus;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&a.sa_mask);
        sigaction(SIGBUS, &a, &before);
    }
    for (int i = 0; i < MAX_GUARDS; i++) {
        uint8_t *none = NULL;
        if (!atomic_compare_exchange_strong(&guards[i].base, &none, base)) continue;
        atomic_store(&guards[i].lost, 0);
        atomic_store(&guards[i].bytes, bytes);
        return i;
    }
    return -1;                                /* more models at once than guards: they live without */
}

static void unguard(int i) {
    if (i < 0) return;
    atomic_store(&guards[i].bytes, 0);
    atomic_store(&guards[i].base, NULL);
}

int mg_file_lost(const mg_file *f) { return f->guard >= 0 && atomic_load(&guards[f->guard].lost); }

/* --- opening --------------------------------------------------------------------------------------------------------------- */

static int64_t mtime_ns(const struct stat *st) {
#ifdef __APPLE__
    return (int64_t)st->st_mtimespec.tv_sec * 1000000000 + st->st_mtimespec.tv_nsec;
#else
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
#endif
}

static int part_changed(const mg_part *p) {
    struct stat st;
    if (fstat(p->fd, &st)) return 1;
    return (int64_t)st.st_dev != p->identity[0] || (int64_t)st.st_ino != p->identity[1] || (int64_t)st.st_size != p->identity[2]
        || mtime_ns(&st) != p->identity[3];
}

int mg_file_changed(mg_file *f) {
    for (int i = 0; i < f->n_parts; i++)
        if (part_changed(&f->parts[i])) return 1;
    return 0;
}

/* The part that holds byte `offset`; *at its place there, *n cut to what the part has from there on. */
static const mg_part *locate(const mg_file *f, int64_t offset, int64_t *at, int64_t *n) {
    int64_t i = offset / f->span;
    if (i >= f->n_parts) i = f->n_parts - 1;              /* beyond the end: the last part answers with nothing */
    const int64_t left = i + 1 < f->n_parts ? (i + 1) * f->span - offset : *n;
    *at = offset - i * f->span;
    *n = *n < left ? *n : left;
    return &f->parts[i];
}

static mg_file *give_up(mg_file *f, mg_io_error *error, int kind) {
    *error = (mg_io_error){kind, kind == MG_IO_ERRNO ? errno : 0, -1, -1, 0, f ? f->size : 0};
    mg_file_close(f);
    return NULL;
}

static void forget(mg_file *f, int64_t offset, int64_t nbytes) {
#ifdef POSIX_FADV_DONTNEED
    for (int64_t at, n; nbytes > 0; offset += n, nbytes -= n) {
        n = nbytes;
        const mg_part *p = locate(f, offset, &at, &n);
        posix_fadvise(p->fd, at, n, POSIX_FADV_DONTNEED);
    }
#else
    (void)f; (void)offset; (void)nbytes;
#endif
}

static int open_direct(const char *path) {
#if defined(O_DIRECT)
    return open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
#elif defined(F_NOCACHE)
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) fcntl(fd, F_NOCACHE, 1);
    return fd;
#else
    (void)path;
    return -1;
#endif
}

/* Opens the parts, whose lengths must fit together. MG_IO_* */
static int open_parts(mg_file *f, const mg_file_config *c) {
    f->n_parts = c->n_parts;
    f->span = f->n_parts > 1 ? c->identity[2] : INT64_MAX;
    f->direct = c->direct;
    for (int i = 0; i < f->n_parts; i++) f->parts[i] = (mg_part){-1, -1, {0}};
    for (int i = 0; i < f->n_parts; i++) {
        mg_part *p = &f->parts[i];
        memcpy(p->identity, c->identity + 4 * i, sizeof p->identity);
        const int64_t bytes = p->identity[2];
        const int last = i + 1 == f->n_parts;
        if (bytes > f->span || (f->n_parts > 1 && (bytes < 1 || (!last && (bytes != f->span || bytes % MG_SPLIT_ALIGN)))))
            return MG_IO_SHORT;
        f->size += bytes;
        if ((p->fd = open(c->paths[i], O_RDONLY | O_CLOEXEC)) < 0) return MG_IO_ERRNO;
        if (part_changed(p)) return MG_IO_CHANGED;
        f->may_ask &= access(c->paths[i], W_OK) == 0;
        if (f->direct && (p->direct_fd = open_direct(c->paths[i])) < 0) f->direct = 0;
    }
    return MG_IO_OK;
}

/* One range of addresses for all parts. */
static int map_parts(mg_file *f) {
    void *map = f->n_parts == 1 ? mmap(NULL, (size_t)f->size, PROT_READ, MAP_SHARED, f->parts[0].fd, 0)
                                : mmap(NULL, (size_t)f->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return MG_IO_ERRNO;
    f->map = map;
    for (int i = 0; f->n_parts > 1 && i < f->n_parts; i++) {
        const mg_part *p = &f->parts[i];
        if (mmap(f->map + i * f->span, (size_t)p->identity[2], PROT_READ, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED)
            return MG_IO_ERRNO;
    }
    return MG_IO_OK;
}

mg_file *mg_file_open(const mg_file_config *c, mg_io_error *error) {
    mg_file *f = calloc(1, sizeof *f);
    if (f) f->guard = -1;
    if (!f || !(f->parts = calloc((size_t)c->n_parts, sizeof *f->parts))) return give_up(f, error, MG_IO_ERRNO);
    f->may_ask = 1;
    f->page = sysconf(_SC_PAGESIZE);
    f->hook = c->hook;
    f->hook_ctx = c->hook_ctx;
    int status = open_parts(f, c);
    if (status == MG_IO_OK) status = map_parts(f);
    if (status != MG_IO_OK) return give_up(f, error, status);
    f->guard = guard(f->map, f->size);
    if (c->exact) {
        madvise(f->map, (size_t)f->size, MADV_RANDOM);
#ifdef POSIX_FADV_RANDOM
        for (int i = 0; i < f->n_parts; i++)         /* reads are whole extents; read-ahead would go beyond them */
            posix_fadvise(f->parts[i].fd, 0, 0, POSIX_FADV_RANDOM);
#endif
    }
    if (c->fresh) forget(f, 0, f->size);
    if (c->direct && !f->direct) atomic_store(&f->refused, 1);
    return f;
}

void mg_file_close(mg_file *f) {
    if (!f) return;
    unguard(f->guard);
    if (f->map) munmap(f->map, (size_t)f->size);
    for (int i = 0; i < f->n_parts; i++) {
        if (f->parts[i].fd >= 0) close(f->parts[i].fd);
        if (f->parts[i].direct_fd >= 0) close(f->parts[i].direct_fd);
    }
    free(f->parts);
    free(f);
}

const uint8_t *mg_file_map(const mg_file *f) { return f->map; }
int mg_file_is_direct(const mg_file *f) { return f->direct && !atomic_load(&f->refused); }
int64_t mg_file_retries(const mg_file *f) { return atomic_load(&f->retries); }

/* --- reading --------------------------------------------------------------------------------------------------------------- */

/* The more telling cause goes first. */
static int fail(mg_file *f, mg_io_error *error, int kind, int os_errno, int64_t offset, int64_t nbytes) {
    if (mg_file_changed(f)) kind = MG_IO_CHANGED;
    *error = (mg_io_error){kind, os_errno, -1, -1, offset, nbytes};
    return kind;
}

static int64_t read_once(mg_file *f, int fd, void *dst, int64_t n, int64_t offset) {
    if (f->hook) return f->hook(f->hook_ctx, fd, dst, n, offset);
    const ssize_t got = pread(fd, dst, (size_t)n, offset);
    return got < 0 ? -errno : got;
}

static void pause_before_retry(mg_file *f, int tries) {
    const struct timespec t = {0, 2000000L << tries};   /* a bus reset takes milliseconds */
    atomic_fetch_add(&f->retries, 1);
    nanosleep(&t, NULL);
}

int mg_file_read(mg_file *f, void *dst, int64_t need, int64_t room, int64_t offset, mg_io_error *error) {
    int direct = mg_file_is_direct(f), buffered = 0, tries = 0;
    int64_t done = 0;
    while (done < need) {
        int64_t at, want = direct ? room - done : need - done;
        const mg_part *p = locate(f, offset + done, &at, &want);
        const int64_t n = read_once(f, direct ? p->direct_fd : p->fd, (uint8_t *)dst + done, want, at);
        if (n > 0) {
            buffered |= !direct;
            done += n;
            direct = direct && done % MG_IO_ALIGN == 0;  /* the rest of a torn direct read goes the other way */
            if (done < need && n < want) atomic_fetch_add(&f->retries, 1);
        } else if (n == -EINTR || n == -EAGAIN) {
            atomic_fetch_add(&f->retries, 1);
        } else if (n == -EINVAL && direct) {
            atomic_store(&f->refused, 1);
            direct = 0;
        } else if (n == -EIO && tries + 1 < EIO_TRIES) {
            pause_before_retry(f, tries++);
        } else {
            return fail(f, error, n == 0 ? MG_IO_SHORT : MG_IO_ERRNO, n == 0 ? 0 : (int)-n, offset + done, need - done);
        }
    }
    if (buffered && f->direct) forget(f, offset, need);
    return MG_IO_OK;
}

/* --- the mapping ------------------------------------------------------------------------------------------------------------ */

static void pages_around(const mg_file *f, int64_t offset, int64_t nbytes, int64_t *start, int64_t *end) {
    *start = offset / f->page * f->page;
    *end = (offset + nbytes + f->page - 1) / f->page * f->page;
}

static void touch(const mg_file *f, int64_t start, int64_t end) {
    for (int64_t at = start; at < end; at += f->page) (void)*(volatile const uint8_t *)(f->map + at);
}

void mg_file_want(mg_file *f, int64_t offset, int64_t nbytes) {
    int64_t start, end;
    pages_around(f, offset, nbytes, &start, &end);
    madvise(f->map + start, (size_t)(end - start), MADV_WILLNEED);
}

/* By reads into a buffer that nobody looks at. 0 or -errno; the caller tries again. */
static int64_t fill_by_copy(mg_file *f, int64_t start, int64_t end, void *buf) {
    int64_t n = 1;
    for (int64_t at = start; n > 0 && at < end && at < f->size; at += n) {
        int64_t there, want = end - at < MG_COPY_BYTES ? end - at : MG_COPY_BYTES;
        const mg_part *p = locate(f, at, &there, &want);
        n = read_once(f, p->fd, buf, want, there);
    }
    return n > 0 ? 0 : n == 0 ? -EFAULT : n;             /* the file ends early: as a fault would say */
}

static int64_t fill_by_advice(mg_file *f, int64_t start, int64_t end) {
    const int64_t status = f->hook ? f->hook(f->hook_ctx, f->parts[0].fd, NULL, end - start, start) : 0;
    if (status >= 0) mg_file_want(f, start, end - start);
    return status < 0 ? status : 0;
}

int mg_file_fill(mg_file *f, int64_t offset, int64_t nbytes, void *buf, mg_io_error *error) {
    int64_t start, end;
    pages_around(f, offset, nbytes, &start, &end);
    for (int tries = 0; ; ) {
        const int there = !f->hook && mg_file_cached(f, start, end - start) == 1;
        int64_t status = there ? 0 : buf ? fill_by_copy(f, start, end, buf) : fill_by_advice(f, start, end);
        if (status == 0) {
            if (madvise(f->map + start, (size_t)(end - start), MADV_POPULATE_READ) == 0) return MG_IO_OK;
            status = -errno;
            if (status == -EINVAL) {                     /* an older kernel, or macOS */
                touch(f, start, end);
                return mg_file_lost(f) ? fail(f, error, MG_IO_CHANGED, 0, offset, nbytes) : MG_IO_OK;
            }
        }
        if (status == -EINTR || status == -EAGAIN) {
            atomic_fetch_add(&f->retries, 1);
        } else if (tries + 1 < EIO_TRIES && !mg_file_changed(f)) {
            pause_before_retry(f, tries++);
        } else {                                         /* what would be SIGBUS is EFAULT here */
            return fail(f, error, MG_IO_ERRNO, status == -EFAULT ? EIO : (int)-status, offset, nbytes);
        }
    }
}

void mg_file_drop(mg_file *f, int64_t offset, int64_t nbytes) {
    const int64_t start = (offset + f->page - 1) / f->page * f->page, end = (offset + nbytes) / f->page * f->page;
    if (end <= start) return;
    madvise(f->map + start, (size_t)(end - start), MADV_DONTNEED);
    forget(f, start, end - start);
}

int mg_file_cached(const mg_file *f, int64_t offset, int64_t nbytes) {
    int64_t start, end;
    if (!f->may_ask) return -1;
    pages_around(f, offset, nbytes, &start, &end);
#ifdef __APPLE__
    char seen[512];
#else
    unsigned char seen[512];
#endif
    for (int64_t at = start; at < end; at += 512 * f->page) {
        const int64_t n = end - at < 512 * f->page ? end - at : 512 * f->page;
        if (mincore(f->map + at, (size_t)n, seen)) return -1;
        for (int64_t i = 0; i < n / f->page; i++)
            if (!(seen[i] & 1)) return 0;
    }
    return 1;
}
