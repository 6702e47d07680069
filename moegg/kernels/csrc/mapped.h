/* mapped.h - a mapped file that is cut short or fails to be read raises SIGBUS; this turns it into one line and exit code 6. */
#ifndef MOEGG_MAPPED_H
#define MOEGG_MAPPED_H
#include <stddef.h>

/* Guards [base, base + size). `label` (the path) is copied, cut to what fits. 0, or -1 if too many mappings are guarded. */
int mg_guard(const void *base, size_t size, const char *label);
void mg_unguard(const void *base);

#endif
