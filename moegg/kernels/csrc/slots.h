/* slots.h - anonymous memory for expert records: one region of equal slots per record size, reserved once, filled as needed.
 *
 * A slot takes memory from its first use until mg_slots_trim gives it back, so the bytes in use and the bytes that freed slots
 * still hold are counted together (mg_slots_held). Not thread-safe: the store's lock guards it. Regions begin on 2 MiB.
 */
#ifndef MOEGG_SLOTS_H
#define MOEGG_SLOTS_H
#include <stdint.h>

typedef struct mg_slots mg_slots;

/* sizes, counts: [n_classes] bytes of a slot, and how many can ever be in use at once. NULL: no address space or memory. */
mg_slots *mg_slots_new(int32_t n_classes, const int64_t *sizes, const int32_t *counts);
void mg_slots_free(mg_slots *s);
/* The caller knows that one is free. Memory of free slots of other classes goes back so that at most `limit` bytes are held. */
int32_t mg_slots_take(mg_slots *s, int32_t cls, int64_t limit);
void mg_slots_give(mg_slots *s, int32_t cls, int32_t slot);
uint8_t *mg_slots_at(const mg_slots *s, int32_t cls, int32_t slot);
int64_t mg_slots_held(const mg_slots *s);
/* Gives memory of free slots back to the system until at most `limit` bytes are held. */
void mg_slots_trim(mg_slots *s, int64_t limit);

/* Zeroed, 2 MiB aligned memory with huge pages advised; NULL if there is none. */
void *mg_big_alloc(int64_t nbytes);
void mg_big_free(void *at, int64_t nbytes);

#endif
