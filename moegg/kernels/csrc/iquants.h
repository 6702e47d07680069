/* iquants.h - blocks of ggml's codebook rows (iq1, iq2, iq3) as signed codes and whole scales.
 *
 * The value of element e is d * sc[e / 16] * c[e], which is exact in f32.
 */
#ifndef MOEGG_IQUANTS_H
#define MOEGG_IQUANTS_H
#include "quants.h"

typedef struct {
    float d;
    int8_t sc[16], c[256];
} mg_iq;

void mg_iq_iq2_xxs(const mg_iq2_xxs *b, mg_iq *q);
void mg_iq_iq2_xs(const mg_iq2_xs *b, mg_iq *q);
void mg_iq_iq2_s(const mg_iq2_s *b, mg_iq *q);
void mg_iq_iq3_xxs(const mg_iq3_xxs *b, mg_iq *q);
void mg_iq_iq3_s(const mg_iq3_s *b, mg_iq *q);
void mg_iq_iq1_s(const mg_iq1_s *b, mg_iq *q);
void mg_iq_iq1_m(const mg_iq1_m *b, mg_iq *q);

#endif
