/* diskfile.h - one model file as the store sees it: exact reads past or through the page cache, its mapping, its identity.
 *
 * Owns the descriptors and the mapping of the whole file, which may lie on the disk in parts: plain cuts of one length (the last is
 * shorter), mapped side by side; reads go on from one into the next, and all offsets are those of the whole. Thread-safe after
 * mg_file_open. A mapping whose file is cut short kills the process by SIGBUS on the next touch; here a handler puts zero pages under
 * it instead and mg_file_lost() tells. Linux: O_DIRECT, MADV_POPULATE_READ, fadvise. macOS: F_NOCACHE, touching, madvise (compiled,
 * not tested on a real machine).
 */
#ifndef MOEGG_DISKFILE_H
#define MOEGG_DISKFILE_H
#include <stdint.h>

#define MG_IO_ALIGN 4096                      /* offset, address and length of a direct read */
#define MG_SPLIT_ALIGN ((int64_t)2 << 20)     /* lengths of all parts but the last are multiples of it */
#define MG_COPY_BYTES ((int64_t)512 << 10)

enum { MG_IO_OK = 0, MG_IO_ERRNO = 1, MG_IO_SHORT = 2, MG_IO_CHANGED = 3, MG_IO_BUDGET = 4, MG_IO_STUCK = 5, MG_IO_FORKED = 6 };

typedef struct {
    int32_t kind, os_errno;       /* MG_IO_*; errno of MG_IO_ERRNO */
    int32_t layer, expert;        /* -1: no expert record */
    int64_t offset, nbytes;       /* what was being read */
} mg_io_error;

/* Replaces the system's read in tests: bytes read into buf, or -errno. buf NULL: bring the range into the page cache. */
typedef int64_t (*mg_read_hook)(void *ctx, int fd, void *buf, int64_t nbytes, int64_t offset);

typedef struct {
    int32_t n_parts;              /* 1: the file is whole */
    const char *const *paths;     /* [n_parts] */
    const int64_t *identity;      /* [n_parts][4]: device, inode, bytes, mtime in ns, as they were when the container was checked */
    int32_t direct;               /* read past the page cache where the system allows it */
    int32_t exact;                /* nothing is read beyond what is asked for */
    int32_t fresh;                /* what the system has cached of the file is forgotten first, as far as nobody maps it */
    mg_read_hook hook;            /* NULL: the system */
    void *hook_ctx;
} mg_file_config;

typedef struct mg_file mg_file;

mg_file *mg_file_open(const mg_file_config *c, mg_io_error *error);     /* NULL: error tells */
void mg_file_close(mg_file *f);
const uint8_t *mg_file_map(const mg_file *f);
int mg_file_is_direct(const mg_file *f);                                /* 0 also after the system has refused it */
int64_t mg_file_retries(const mg_file *f);

/* Reads at least `need` bytes at `offset` into dst, which holds `room` >= need bytes; offset and room 4 KiB aligned for a direct
 * read. Interrupted and short reads go on, EIO is tried again, a refused direct read becomes a buffered one whose pages are
 * dropped. MG_IO_OK or the error's kind. */
int mg_file_read(mg_file *f, void *dst, int64_t need, int64_t room, int64_t offset, mg_io_error *error);
void mg_file_want(mg_file *f, int64_t offset, int64_t nbytes);          /* the system may begin to read; returns early */
/* Brings the pages of a range into the page cache, exactly these, and maps them (MADV_POPULATE_READ). buf: MG_COPY_BYTES to fill
 * by reads; NULL: by advice. */
int mg_file_fill(mg_file *f, int64_t offset, int64_t nbytes, void *buf, mg_io_error *error);
void mg_file_drop(mg_file *f, int64_t offset, int64_t nbytes);          /* unmaps the whole pages of a range and forgets them */
int mg_file_cached(const mg_file *f, int64_t offset, int64_t nbytes);   /* 1: all of it is in memory, 0: not all, -1: unknown */
int mg_file_changed(mg_file *f);                                        /* 1: truncated or written since it was opened */
int mg_file_lost(const mg_file *f);                                     /* 1: the mapping was touched where the file is gone */

#endif
