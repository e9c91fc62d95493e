/* Vectors of LANES numbers, one for each of as many queries: fp32 in registers, in memory bf16, or fp32 where a file is compiled with
 * GYM_FP32. With AVX-512 masks are bits, and bf16 is rounded by the processor where it can; GYM_PLAIN does without the latter. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef int64_t Int;
#ifdef GYM_FP32
typedef float Number;
#else
typedef uint16_t Number; /* bf16 */
#endif
typedef uint32_t Word; /* what a product multiplies at once: two numbers of bf16 from rows or columns next to each other, or one of fp32 */
#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8 /* compilers make poor code of vectors that are wider than those of the processor */
#endif
typedef float Floats __attribute__((vector_size(4 * LANES))); /* of as many queries */
typedef Word Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef Number Numbers __attribute__((vector_size(LANES * sizeof(Number))));
enum { STEP = sizeof(Word) / sizeof(Number) };

static inline Int least(Int a, Int b) { return a < b ? a : b; }
static inline Floats all(float x) { return x - (Floats){0}; }
static inline Floats loaded(const float *x) {
    Floats found;
    memcpy(&found, x, sizeof found);
    return found;
}

/* Some of the lanes. */
#ifdef __AVX512F__
typedef __mmask16 Mask;
static inline Mask from_to(Int low, Int high) { return (Mask)(((1u << high) - 1) & ~((1u << low) - 1)); }
static inline Floats zeroed(Mask mask, Floats x) { return (Floats)_mm512_maskz_mov_ps(mask, (__m512)x); } /* 0 in all other lanes */
static inline Floats chosen(Mask mask, Floats yes, Floats no) { return (Floats)_mm512_mask_mov_ps((__m512)no, mask, (__m512)yes); }
static inline Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); } /* b where either is no number */
static inline Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
static inline int any_above(Floats a, Floats b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0; }
#else
typedef Ints Mask;
static inline Mask from_to(Int low, Int high) {
#if LANES == 16
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
    return (lane >= (int32_t)low) & (lane < (int32_t)high);
}
static inline Floats zeroed(Mask mask, Floats x) { return (Floats)(mask & (Ints)x); }
static inline Floats chosen(Mask mask, Floats yes, Floats no) { return (Floats)((mask & (Ints)yes) | (~mask & (Ints)no)); }
static inline Floats larger(Floats a, Floats b) { return chosen(a > b, a, b); }
static inline Floats smaller(Floats a, Floats b) { return chosen(a < b, a, b); }
static inline int any_above(Floats a, Floats b) {
    Ints above = a > b;
    int32_t some = 0;
    for (int lane = 0; lane < LANES; lane++) some |= above[lane];
    return some != 0;
}
#endif
/* The lanes from `low` to before `high`, which may lie outside. */
static inline Mask lanes(Int low, Int high) { return from_to(low < 0 ? 0 : least(low, LANES), high < 0 ? 0 : least(high, LANES)); }

/* 2 to the power of f, less 1, for f from -1/2 to 1/2: a polynomial, within 1.2e-7 of 2 to the power of f, also near 0. */
static inline Floats fraction(Floats f) {
    Floats y = all(1.54035122e-4f) * f + 1.33907353e-3f;
    y = ((y * f + 9.61823761e-3f) * f + 5.55035733e-2f) * f + 2.40226492e-1f;
    return (y * f + 6.93147182e-1f) * f;
}
/* 2 to the power of x as `whole` * (1 + what is returned). x is taken for -126 or 127 where it is outside. */
static inline Floats rest(Floats x, Floats *whole) {
    Floats inside = larger(all(-126), smaller(all(127), x)), magic = all(12582912);
    Floats shifted = inside + magic;
    *whole = (Floats)((Ints)all(1) + ((Ints)shifted << 23));
    return fraction(inside - (shifted - magic));
}
/* 2 to the power of x, 0 below 2 ** -126; what is no number stays none. */
static inline Floats power(Floats x) {
#ifdef __AVX512F__
    __m512 count = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    return (Floats)_mm512_maskz_scalef_ps(kept, (__m512)(1 + fraction(x - (Floats)count)), count);
#else
    Floats whole, part = rest(x, &whole);
    return zeroed(~(x < -126), whole + whole * part);
#endif
}
/* tanh(x / 2.88539008), which is (p - 1) / (p + 1) for p = 2 to the power of x, with all digits where x is small. */
static inline Floats tanh2(Floats x) {
    Floats whole, part = rest(x, &whole), less = whole * part + (whole - 1);
    return less / (less + 2);
}

/* Numbers in memory, and what a product multiplies at once: STEP numbers of rows next to each other, in one word. */
static inline Numbers first(const Number *from, Int count) { /* the first `count` of them, then zeros */
    Numbers numbers = {0};
    if (count >= LANES) memcpy(&numbers, from, sizeof numbers);
    else if (count > 0) memcpy(&numbers, from, count * sizeof *from);
    return numbers;
}
#ifdef GYM_FP32
static inline Numbers kept(Floats x) { return (Numbers)x; }
static inline Floats widened(Numbers x) { return x; }
static inline Words words(const Number *x, Int stride) { return (Words)loaded(x); }
static inline Words joined(const Floats *x) { return (Words)x[0]; }
#else
static inline Floats widened(Numbers x) { return (Floats)(__builtin_convertvector(x, Words) << 16); }
static inline Words words(const Number *x, Int stride) {
    return __builtin_convertvector(first(x, LANES), Words) | __builtin_convertvector(first(x + stride, LANES), Words) << 16;
}
#if defined(__AVX512BF16__) && !defined(GYM_PLAIN) /* to the nearest, ties to even */
static inline Numbers kept(Floats x) { return (Numbers)_mm512_cvtneps_pbh((__m512)x); }
static inline Words joined(const Floats *x) {
    const __m512i pairs = _mm512_add_epi32(_mm512_set1_epi32(0x100000), _mm512_set_epi32(
        0xf000f, 0xe000e, 0xd000d, 0xc000c, 0xb000b, 0xa000a, 0x90009, 0x80008, 0x70007, 0x60006, 0x50005, 0x40004, 0x30003, 0x20002, 0x10001, 0));
    return (Words)_mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]));
}
#else
static inline Words rounded(Floats x) {
    Words bits = (Words)x;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline Numbers kept(Floats x) { return __builtin_convertvector(rounded(x), Numbers); }
static inline Words joined(const Floats *x) { return rounded(x[0]) | rounded(x[1]) << 16; }
#endif
#endif
static inline void put(Number *to, Floats x, Int count) { /* the first `count` of them */
    Numbers numbers = kept(x);
    if (count >= LANES) memcpy(to, &numbers, sizeof numbers);
    else memcpy(to, &numbers, count * sizeof *to);
}

/* Exchanges rows and columns of LANES x LANES words: one bit of their numbers after the other. */
#define EXCHANGE(BIT, ...) \
    for (int r = 0; r < LANES; r++) \
        if (!(r & BIT)) { \
            Words a = x[r], b = x[r | BIT]; \
            x[r] = __builtin_shufflevector(a, b, __VA_ARGS__); \
            x[r | BIT] = OTHER(a, b, BIT, __VA_ARGS__); \
        }
#if LANES == 16
#define OTHER(a, b, BIT, A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P) \
    __builtin_shufflevector(a, b, A + BIT, B + BIT, C + BIT, D + BIT, E + BIT, F + BIT, G + BIT, H + BIT, I + BIT, J + BIT, \
                            K + BIT, L + BIT, M + BIT, N + BIT, O + BIT, P + BIT)
static inline void exchange(Words x[LANES]) {
    EXCHANGE(1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
    EXCHANGE(2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
    EXCHANGE(4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
    EXCHANGE(8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
}
#else
#define OTHER(a, b, BIT, A, B, C, D, E, F, G, H) \
    __builtin_shufflevector(a, b, A + BIT, B + BIT, C + BIT, D + BIT, E + BIT, F + BIT, G + BIT, H + BIT)
static inline void exchange(Words x[LANES]) {
    EXCHANGE(1, 0, 8, 2, 10, 4, 12, 6, 14)
    EXCHANGE(2, 0, 1, 8, 9, 4, 5, 12, 13)
    EXCHANGE(4, 0, 1, 2, 3, 8, 9, 10, 11)
}
#endif
