/* What the files of this folder share: the name of the instructions that they are compiled for, and e^x of one number. */
#include <stdint.h>
#include <string.h>

typedef int64_t Int;

#if defined(GYM_BF16) && defined(__AVX512BF16__)
const char *gym_kernel(void) { return "avx512_bf16"; }
#elif defined(__AVX512F__)
const char *gym_kernel(void) { return "avx512"; }
#elif defined(__AVX2__)
const char *gym_kernel(void) { return "avx2"; }
#else
const char *gym_kernel(void) { return "c"; }
#endif

static inline float of_bits(uint32_t bits) {
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

static inline uint32_t bits_of(float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    return bits;
}

/* e^x for x <= 0, within 2 units in the last place; a polynomial of degree 6 on [-ln 2 / 2, ln 2 / 2]. */
static inline float power(float x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float inside = x < -87.0f ? -87.0f : x;
    float whole = inside * 1.44269504f + shift, count = whole - shift;
    float rest = (inside - count * 0.693145752f) - count * 1.42860677e-6f;
    float sum = 1.38888889e-3f;
    sum = sum * rest + 8.33333333e-3f;
    sum = sum * rest + 4.16666667e-2f;
    sum = sum * rest + 1.66666667e-1f;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    float found = sum * of_bits((bits_of(whole) - 0x4b400000 + 127) << 23);
    return x < -87.0f ? 0.0f : found; /* NaN is below nothing, and stays */
}
