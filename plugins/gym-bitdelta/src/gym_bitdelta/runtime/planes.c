/* Products with packed planes of signs, for the segments of a batch.
 *
 * A record says where a matrix [out, in] lies in an arena of 32-bit words. Its value at (o, i) is
 *
 *     sum over planes p:  factor[p] * scale[p or 0][o][i / group] * column[p or 0][o / band][i] * sign[p][o][i],
 *     and with offsets  offset[o][i / group] * column[0][o / band][i]  more.
 *
 * Signs lie in tiles of 16 outputs, [planes][tiles][words][16]: bit b of a word is the sign of input 32 * word + b, and 1 is +. Four
 * signs of an output choose one of the 16 sums that four inputs can make. So a permutation of a register looks up what 64
 * multiplications would give (lookup tables for weights of few bits: arXiv:2407.00088; here in fp32, without rounding tables).
 * Each output adds in one fixed order, whatever the threads, the other rows and their tenants are.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t Int;

enum {
    LANES = 16, /* outputs of a tile */
    TOKENS = 4, /* that share the words they read */
    BLOCK = 16, /* words of a row whose tables are held at once */
    TABLES = BLOCK * 8 * LANES
};

/* What a record says; `gym_bitdelta.runtime.kernel_layout.Field` has the same order. Places are in words, -1 where there is nothing; GROUP is in
 * words of a row, BAND in tiles or 0 for all; SCALES and COLUMNS are 1 where all planes share one. */
enum { PLANES, IN, OUT, SIGNS, FACTOR, SCALE, SCALES, GROUP, COLUMN, COLUMNS, BAND, OFFSET, BIAS, INDEX, LEADING, FIELDS };

typedef void (*Tables)(const float *x, Int words, float *tables, Int apart);
typedef void (*Span)(const uint32_t *signs, Int tile, Int words, const float *tables, Int tokens, const float *scale,
                     Int scale_tile, float factor, float *sums, Int sums_row, Int tiles);
typedef struct {
    const char *name;
    Tables tables; /* of words * 8 groups of four inputs: the 16 sums of each, `apart` floats from one to the next */
    Span span;     /* sums += factor * scale * (signs times inputs), for some words of some tiles */
    int beside;    /* whether TOKENS tokens have their tables side by side, sum by sum, and not one after another */
} Kernel;

static void plain_tables(const float *x, Int words, float *tables, Int apart) {
    for (Int g = 0; g < words * 8; g++, x += 4)
        for (int n = 0; n < LANES; n++, tables += apart)
            *tables = ((n & 1 ? x[0] : -x[0]) + (n & 2 ? x[1] : -x[1])) + ((n & 4 ? x[2] : -x[2]) + (n & 8 ? x[3] : -x[3]));
}

/* The sums of four tokens lie side by side: what finds one finds all, and one addition adds all. Compilers make of it what a
 * processor has. */
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
_Static_assert(sizeof(Four) == TOKENS * sizeof(float), "a Four holds one sum of each token");

static void plain_beside(const uint32_t *signs, Int tile, Int words, const float *tables, const float *scale, Int scale_tile,
                         float factor, float *sums, Int sums_row, Int tiles) {
    enum { WIDE = 4 }; /* outputs at once, so that their additions overlap */
    for (Int t = 0; t < tiles; t++)
        for (int o = 0; o < LANES; o += WIDE) {
            Four sum[WIDE] = {{0}};
            const uint32_t *at = signs + t * tile + o;
            const Four *table = (const Four *)tables;
            for (Int w = 0; w < words; w++, at += LANES)
                for (int j = 0; j < 8; j++, table += LANES)
                    for (int k = 0; k < WIDE; k++) sum[k] += table[at[k] >> 4 * j & 15];
            for (int k = 0; k < WIDE; k++)
                for (int r = 0; r < TOKENS; r++)
                    sums[r * sums_row + t * LANES + o + k] += scale[t * scale_tile + o + k] * factor * sum[k][r];
        }
}

static void plain_span(const uint32_t *signs, Int tile, Int words, const float *tables, Int tokens, const float *scale,
                       Int scale_tile, float factor, float *sums, Int sums_row, Int tiles) {
    if (tokens == TOKENS) {
        plain_beside(signs, tile, words, tables, scale, scale_tile, factor, sums, sums_row, tiles);
        return;
    }
    for (Int t = 0; t < tiles; t++)
        for (Int r = 0; r < tokens; r++) {
            float sum[LANES] = {0};
            const uint32_t *at = signs + t * tile;
            const float *table = tables + r * TABLES;
            for (Int w = 0; w < words; w++, at += LANES)
                for (int j = 0; j < 8; j++, table += LANES)
                    for (int o = 0; o < LANES; o++) sum[o] += table[at[o] >> 4 * j & 15];
            for (int o = 0; o < LANES; o++) sums[r * sums_row + t * LANES + o] += scale[t * scale_tile + o] * factor * sum[o];
        }
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f")))

AVX512 static void avx512_tables(const float *x, Int words, float *tables, Int apart) {
    const __m512 zero = _mm512_setzero_ps();
    for (Int g = 0; g < words * 8; g++, x += 4, tables += LANES) {
        __m512 a = _mm512_set1_ps(x[0]), b = _mm512_set1_ps(x[1]), c = _mm512_set1_ps(x[2]), d = _mm512_set1_ps(x[3]);
        a = _mm512_mask_sub_ps(a, 0x5555, zero, a);
        b = _mm512_mask_sub_ps(b, 0x3333, zero, b);
        c = _mm512_mask_sub_ps(c, 0x0f0f, zero, c);
        d = _mm512_mask_sub_ps(d, 0x00ff, zero, d);
        _mm512_storeu_ps(tables, _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
    }
}

/* `rows` and `wide` are constants where this is called, so that the sums stay in registers. */
AVX512 static inline __attribute__((always_inline)) void avx512_block(
    const int rows, const int wide, const uint32_t *signs, Int tile, Int words, const float *tables, const float *scale,
    Int scale_tile, float factor, float *sums, Int sums_row) {
    __m512 sum[TOKENS][4];
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < wide; t++) sum[r][t] = _mm512_setzero_ps();
    for (Int w = 0; w < words; w++) {
        __m512i index[4];
        for (int t = 0; t < wide; t++) index[t] = _mm512_loadu_si512(signs + t * tile + w * LANES);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            for (int r = 0; r < rows; r++) {
                const __m512 table = _mm512_loadu_ps(tables + r * TABLES + (w * 8 + j) * LANES);
                for (int t = 0; t < wide; t++) sum[r][t] = _mm512_add_ps(sum[r][t], _mm512_permutexvar_ps(index[t], table));
            }
            for (int t = 0; t < wide; t++) index[t] = _mm512_srli_epi32(index[t], 4);
        }
    }
    for (int t = 0; t < wide; t++) {
        const __m512 s = _mm512_mul_ps(_mm512_loadu_ps(scale + t * scale_tile), _mm512_set1_ps(factor));
        for (int r = 0; r < rows; r++) {
            float *to = sums + r * sums_row + t * LANES;
            _mm512_storeu_ps(to, _mm512_fmadd_ps(s, sum[r][t], _mm512_loadu_ps(to)));
        }
    }
}

AVX512 static void avx512_span(const uint32_t *signs, Int tile, Int words, const float *tables, Int tokens, const float *scale,
                               Int scale_tile, float factor, float *sums, Int sums_row, Int tiles) {
#define EACH(rows, wide)                                                                                           \
    for (; t + wide <= tiles; t += wide)                                                                           \
    avx512_block(rows, wide, signs + t * tile, tile, words, tables, scale + t * scale_tile, scale_tile, factor,    \
                 sums + t * LANES, sums_row)
    Int t = 0;
    if (tokens == TOKENS) {
        EACH(TOKENS, 2);
        EACH(TOKENS, 1);
        return;
    }
    for (Int r = 0; r < tokens; r++, tables += TABLES, sums += sums_row) {
        t = 0;
        EACH(1, 4);
        EACH(1, 1);
    }
#undef EACH
}

#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static void avx2_tables(const float *x, Int words, float *tables, Int apart) {
    const float m = -0.0f;
    const __m256 a1 = _mm256_setr_ps(m, 0, m, 0, m, 0, m, 0), b1 = _mm256_setr_ps(m, m, 0, 0, m, m, 0, 0);
    const __m256 c1 = _mm256_setr_ps(m, m, m, m, 0, 0, 0, 0), d1 = _mm256_set1_ps(m);
    for (Int g = 0; g < words * 8; g++, x += 4, tables += LANES) {
        const __m256 ab = _mm256_add_ps(_mm256_xor_ps(_mm256_set1_ps(x[0]), a1), _mm256_xor_ps(_mm256_set1_ps(x[1]), b1));
        const __m256 c = _mm256_xor_ps(_mm256_set1_ps(x[2]), c1), d = _mm256_set1_ps(x[3]);
        _mm256_storeu_ps(tables, _mm256_add_ps(ab, _mm256_add_ps(c, _mm256_xor_ps(d, d1))));
        _mm256_storeu_ps(tables + 8, _mm256_add_ps(ab, _mm256_add_ps(c, d)));
    }
}

/* Entry `index % 16` of a table in two registers: bit 3, moved to the sign, chooses between them. */
AVX2 static inline __attribute__((always_inline)) __m256 avx2_look(__m256 low, __m256 high, __m256i index) {
    const __m256 which = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), which);
}

AVX2 static void avx2_span(const uint32_t *signs, Int tile, Int words, const float *tables, Int tokens, const float *scale,
                           Int scale_tile, float factor, float *sums, Int sums_row, Int tiles) {
    const __m256 f = _mm256_set1_ps(factor);
    for (Int t = 0; t < tiles; t++)
        for (Int r = 0; r < tokens; r++) {
            const uint32_t *at = signs + t * tile;
            const float *table = tables + r * TABLES, *s = scale + t * scale_tile;
            __m256 left = _mm256_setzero_ps(), right = left;
            for (Int w = 0; w < words; w++, at += LANES) {
                __m256i i = _mm256_loadu_si256((const __m256i *)at), k = _mm256_loadu_si256((const __m256i *)(at + 8));
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++, table += LANES) {
                    const __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
                    left = _mm256_add_ps(left, avx2_look(low, high, i));
                    right = _mm256_add_ps(right, avx2_look(low, high, k));
                    i = _mm256_srli_epi32(i, 4);
                    k = _mm256_srli_epi32(k, 4);
                }
            }
            float *to = sums + r * sums_row + t * LANES;
            _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_mul_ps(_mm256_loadu_ps(s), f), left, _mm256_loadu_ps(to)));
            _mm256_storeu_ps(to + 8, _mm256_fmadd_ps(_mm256_mul_ps(_mm256_loadu_ps(s + 8), f), right, _mm256_loadu_ps(to + 8)));
        }
}

static const Kernel KERNELS[] = {
    {"avx512", avx512_tables, avx512_span, 0}, {"avx2", avx2_tables, avx2_span, 0}, {"c", plain_tables, plain_span, 1}};
enum { COUNT = 3 };

static int runs(int number) {
    __builtin_cpu_init();
    if (number == 0) return __builtin_cpu_supports("avx512f") != 0;
    if (number == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return 1;
}
#else
static const Kernel KERNELS[] = {{"c", plain_tables, plain_span, 1}};
enum { COUNT = 1 };
static int runs(int number) { return number == 0; }
#endif

/* Name of a kernel, fastest first; "" where this processor does not run it, NULL past the last. */
const char *gym_kernel(int number) { return number >= COUNT ? NULL : runs(number) ? KERNELS[number].name : ""; }

int gym_fields(void) { return FIELDS; }

typedef struct {
    const uint32_t *words;
    const float *floats; /* the same place */
    const Int *of;
} Record;

static Int ceiling(Int a, Int b) { return (a + b - 1) / b; }

static const float *column_of(Record m, Int plane, Int band, Int padded) {
    const Int tiles = ceiling(m.of[OUT], LANES), bands = m.of[BAND] ? ceiling(tiles, m.of[BAND]) : 1;
    return m.floats + m.of[COLUMN] + ((m.of[COLUMNS] > 1 ? plane : 0) * bands + band) * padded;
}

/* Add the offsets of tiles [begin, end) for some words of one token. */
static void add_offsets(Record m, const float *x, Int from, Int words, Int begin, Int end, Int groups, float *sums) {
    for (Int w = 0; w < words; w++) {
        float sum = 0;
        for (int i = 0; i < 32; i++) sum += x[w * 32 + i];
        for (Int t = begin; t < end; t++) {
            const float *offset = m.floats + m.of[OFFSET] + (t * groups + (from + w) / m.of[GROUP]) * LANES;
            for (int o = 0; o < LANES; o++) sums[(t - begin) * LANES + o] += offset[o] * sum;
        }
    }
}

/* Add to sums, whose column 0 is output 16 * first, the product of tiles [first, last) with a few tokens x [tokens][padded inputs]. */
static void multiply(const Kernel *kernel, Record m, const float *x, Int x_row, Int tokens, Int first, Int last, float *sums,
                     Int sums_row, float *tables, float *scaled) {
    const Int words = ceiling(m.of[IN], 32), tiles = ceiling(m.of[OUT], LANES), groups = ceiling(words, m.of[GROUP]);
    const Int apart = kernel->beside && tokens == TOKENS ? TOKENS : 1, next = apart > 1 ? 1 : TABLES;
    if (m.of[BIAS] >= 0)
        for (Int r = 0; r < tokens; r++)
            for (Int o = 0; o < (last - first) * LANES; o++) sums[r * sums_row + o] += m.floats[m.of[BIAS] + first * LANES + o];
    for (Int from = 0; m.of[PLANES] && from < words; from += BLOCK) {
        const Int until = from + BLOCK < words ? from + BLOCK : words;
        for (Int begin = first, end; begin < last; begin = end) {
            const Int band = m.of[BAND] ? begin / m.of[BAND] : 0;
            end = m.of[BAND] && (band + 1) * m.of[BAND] < last ? (band + 1) * m.of[BAND] : last;
            float *here = sums + (begin - first) * LANES;
            for (Int p = 0; p < m.of[PLANES]; p++) {
                for (Int r = 0; r < tokens && (p == 0 || (m.of[COLUMN] >= 0 && m.of[COLUMNS] > 1)); r++) {
                    const float *row = x + r * x_row + from * 32;
                    if (m.of[COLUMN] >= 0) {
                        const float *column = column_of(m, p, band, words * 32) + from * 32;
                        for (Int i = 0; i < (until - from) * 32; i++) scaled[i] = row[i] * column[i];
                        row = scaled;
                    }
                    kernel->tables(row, until - from, tables + r * next, apart);
                    if (p == 0 && m.of[OFFSET] >= 0)
                        add_offsets(m, row, from, until - from, begin, end, groups, here + r * sums_row);
                }
                const uint32_t *signs = m.words + m.of[SIGNS] + (p * tiles + begin) * words * LANES;
                const float *scale = m.floats + m.of[SCALE] + ((m.of[SCALES] > 1 ? p : 0) * tiles + begin) * groups * LANES;
                for (Int w = from, stop; w < until; w = stop) {
                    const Int group = w / m.of[GROUP];
                    stop = (group + 1) * m.of[GROUP] < until ? (group + 1) * m.of[GROUP] : until;
                    kernel->span(signs + w * LANES, words * LANES, stop - w, tables + (w - from) * 8 * LANES * apart, tokens,
                                 scale + group * LANES, groups * LANES, m.floats[m.of[FACTOR] + p], here, sums_row, end - begin);
                }
            }
        }
    }
}

static float from_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 64; /* not a number */
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static void add_to(void *y, int half, Int at, float value) {
    if (half)
        ((uint16_t *)y)[at] = to_bf16(from_bf16(((uint16_t *)y)[at]) + value);
    else
        ((float *)y)[at] += value;
}

typedef struct {
    Int segment, token, tokens, first, last;
} Item;

/* y [tokens][out] += the product of each segment's matrix with x [tokens][in]. Both are fp32, or with `half` bf16.
 *
 * Segment s has the rows `rows[starts[s]]` to `rows[starts[s + 1]]` of the batch, each of `per` tokens that lie together, and two records. Where
 * the first has planes, the matrix is second times first (low rank): of its outputs the last LEADING are added to the first ones, and
 * copied to their own places. Returns 1 where there is no memory, else 0. */
int gym_add_products(void *y, const void *x, int half, Int per, Int in, Int out, Int segments, const Int *starts, const Int *rows,
                     const void *const *arenas, const Int *records, int threads, int which) {
    const Kernel *kernel = KERNELS + which;
    const Int padded = ceiling(in, 32) * 32;
    Int blocks = 0, widest = 0, inner = 0, count = 0, most = 0;
    for (Int s = 0; s < segments; s++) {
        const Int *first = records + s * 2 * FIELDS, *second = first + FIELDS;
        const Int tiles = ceiling(second[OUT], LANES), hidden = first[PLANES] ? ceiling(first[OUT], 32) * 32 : 0;
        blocks += ceiling((starts[s + 1] - starts[s]) * per, TOKENS);
        widest = tiles > widest ? tiles : widest;
        inner = hidden > inner ? hidden : inner;
    }
    if (!blocks || !widest) return 0;
    const Int parts = ceiling(4 * threads, blocks), part = ceiling(ceiling(widest, parts), 4) * 4;
    Item *items = malloc(blocks * ceiling(widest, part) * sizeof(Item));
    if (!items) return 1;
    for (Int s = 0; s < segments; s++) {
        const Int *first = records + s * 2 * FIELDS, tokens = (starts[s + 1] - starts[s]) * per;
        const Int tiles = ceiling(first[FIELDS + OUT], LANES), step = first[PLANES] ? tiles : part; /* hidden sums are made once */
        most = step > most ? step : most;
        for (Int token = 0; token < tokens; token += TOKENS)
            for (Int from = 0; from < tiles; from += step)
                items[count++] = (Item){s, token, tokens - token < TOKENS ? tokens - token : TOKENS, from,
                                        from + step < tiles ? from + step : tiles};
    }
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        const Int sums_row = most * LANES;
        float *own = malloc((TOKENS * (padded + sums_row + inner + TABLES) + BLOCK * 32) * sizeof(float));
        float *sums = own + TOKENS * padded, *hidden = sums + TOKENS * sums_row, *tables = hidden + TOKENS * inner;
        float *scaled = tables + TOKENS * TABLES;
#pragma omp for schedule(dynamic)
        for (Int n = 0; n < count; n++) {
            if (!own) {
                failed = 1;
                continue;
            }
            const Item item = items[n];
            const void *words = arenas[item.segment];
            const Int *of = records + item.segment * 2 * FIELDS;
            const Record first = {words, words, of}, second = {words, words, of + FIELDS};
            Int at[TOKENS];
            for (Int r = 0; r < item.tokens; r++) {
                const Int token = item.token + r;
                at[r] = rows[starts[item.segment] + token / per] * per + token % per;
                float *to = own + r * padded;
                if (half)
                    for (Int i = 0; i < in; i++) to[i] = from_bf16(((const uint16_t *)x)[at[r] * in + i]);
                else
                    memcpy(to, (const float *)x + at[r] * in, in * sizeof(float));
                memset(to + in, 0, (padded - in) * sizeof(float));
            }
            memset(sums, 0, TOKENS * sums_row * sizeof(float));
            if (of[PLANES]) {
                const Int rank = of[OUT] - of[LEADING];
                memset(hidden, 0, TOKENS * inner * sizeof(float));
                multiply(kernel, first, own, padded, item.tokens, 0, ceiling(of[OUT], LANES), hidden, inner, tables, scaled);
                for (Int r = 0; r < item.tokens; r++)
                    for (Int k = 0; k < of[LEADING]; k++)
                        hidden[r * inner + rank + k] = hidden[r * inner + k] += hidden[r * inner + rank + k];
            }
            multiply(kernel, second, of[PLANES] ? hidden : own, of[PLANES] ? inner : padded, item.tokens, item.first, item.last, sums,
                     sums_row, tables, scaled);
            const Int begin = item.first * LANES;
            const Int end = item.last * LANES < second.of[OUT] ? item.last * LANES : second.of[OUT];
            const int32_t *index = second.of[INDEX] >= 0 ? (const int32_t *)words + second.of[INDEX] : NULL;
            for (Int r = 0; r < item.tokens; r++)
                for (Int o = begin; o < end; o++)
                    add_to(y, half, at[r] * out + (index ? index[o] : o), sums[r * sums_row + o - begin]);
        }
        free(own);
    }
    free(items);
    return failed;
}
