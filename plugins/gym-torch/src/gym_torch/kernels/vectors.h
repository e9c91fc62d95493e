/* Vectors of numbers that are fp32 in memory, or bf16 where a file is compiled with GYM_BF16, and fp32 in between. */
#include "scalars.h"

#ifdef GYM_BF16
typedef uint16_t Number;
#else
typedef float Number;
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef Number Numbers __attribute__((vector_size(LANES * sizeof(Number))));
typedef float Four __attribute__((vector_size(16)));

/* The first numbers, as many as there are, then zeros. */
static inline Floats floats(const float *x, Int count) {
    Floats found = {0};
    if (count >= LANES) memcpy(&found, x, sizeof found);
    else memcpy(&found, x, count * sizeof *x);
    return found;
}
static inline Floats numbers(const Number *x, Int count) {
#ifdef GYM_BF16
    Numbers found = {0};
    if (count >= LANES) memcpy(&found, x, sizeof found);
    else memcpy(&found, x, count * sizeof *x);
    return (Floats)(__builtin_convertvector(found, Words) << 16);
#else
    return floats(x, count);
#endif
}

/* To the nearest number, ties to even; what is not a number stays none. */
static inline Number rounded(float x) {
#ifdef GYM_BF16
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#else
    return x;
#endif
}
static inline void store(Number *to, const float *from, Int count) {
    for (Int n = 0; n < count; n++) to[n] = rounded(from[n]);
}

/* What a product multiplies at once, and adds to a lane each: STEP numbers. */
#if defined(GYM_BF16) && defined(__AVX512BF16__)
#include <immintrin.h>
enum { STEP = 32 };
typedef __m512i Held;
static inline Held held(const Number *x, Int count) {
    Held found = {0};
    if (count >= STEP) memcpy(&found, x, sizeof found);
    else memcpy(&found, x, count * sizeof *x);
    return found;
}
static inline Floats multiplied(Floats sum, Held a, Held b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
enum { STEP = LANES };
typedef Floats Held;
static inline Held held(const Number *x, Int count) { return numbers(x, count); }
static inline Floats multiplied(Floats sum, Held a, Held b) { return sum + a * b; }
#endif

/* The sums of lanes of four vectors. */
static inline Four added(Floats a, Floats b, Floats c, Floats d) {
    Four found;
#if defined(__AVX512F__)
    const Ints low = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30}, high = low + 1;
    const Ints first = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}, second = first + 2;
#else
    const Ints low = {0, 8, 2, 10, 4, 12, 6, 14}, high = low + 1;
    const Ints first = {0, 1, 8, 9, 4, 5, 12, 13}, second = first + 2;
#endif
    Floats ab = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
    Floats cd = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, high);
    Floats all = __builtin_shuffle(ab, cd, first) + __builtin_shuffle(ab, cd, second);
    Four parts[LANES / 4];
    memcpy(parts, &all, sizeof all);
    found = parts[0] + parts[1];
    for (int p = 2; p < LANES / 4; p++) found += parts[p];
    return found;
}
