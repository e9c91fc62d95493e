/* Causal attention between the tokens of a segment and back into the prefixes that it continues: forward and backward, for tensors
 * in bf16, or in fp32 where it is compiled with GYM_FP32.
 *
 * Scores are held transposed, [keys][queries], so that queries are the lanes of a vector: maxima and sums over keys need no
 * sums across lanes, and what one product writes is laid out as the next one reads it. Softmax is computed block by block
 * (arXiv:2205.14135), scores and sums in fp32. One task is a tree of segments and one head of keys, whose blocks are taken in one
 * fixed order: bits of a result depend neither on threads nor on the other segments of the row.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

enum { UNIT = 32, BLOCK = 64, VECTORS = BLOCK / LANES, STEP = sizeof(Word) / sizeof(Number) };
enum { START, LENGTH, PARENT, POSITION, PLACE, NODE }; /* of a segment; PLACE is where its keys begin in what a task packs */
enum { QUERY, KEY, VALUE, OUT, D_OUT, D_QUERY, D_KEY, D_VALUE, TENSORS };

/* One row. Tensors are [heads][tokens][dim] with strides of heads and tokens. Trees are numbers of segments, those of tree t from
 * bounds[t] to bounds[t + 1], prefixes first; `size` is the most keys of a tree, each segment filled up to UNIT. */
typedef struct {
    Number *data[TENSORS];
    Int head[TENSORS], token[TENSORS];
    float *lse; /* [heads][tokens], to the base of 2 */
    const Int *nodes, *members, *bounds;
    Int trees, size, tokens, heads, kv_heads, dim, window, threads;
    float scale, cap; /* 0: no cap */
} Row;

typedef struct {
    Number *key, *key_t, *value; /* [size][dim], [dim][size], [size][dim]; forward has values there too */
    float *d_key, *d_value;
    Word *query_t, *query, *d_out_t, *d_out; /* [dim / STEP][BLOCK], [BLOCK / STEP][dim] */
    float *scores, *d_scores, *sums;         /* [BLOCK][BLOCK], [dim][BLOCK] */
    Number *weights, *d_weights;             /* [BLOCK][BLOCK] */
    Word *joined;                            /* [BLOCK / STEP][BLOCK] */
    void *memory;
} Scratch;

static inline Floats loaded(const float *x) {
    Floats found;
    memcpy(&found, x, sizeof found);
    return found;
}

#if defined(__AMX_BF16__) && !defined(GYM_FP32) && !defined(GYM_PLAIN)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
const char *gym_kernel(void) { return syscall(SYS_arch_prctl, 0x1023, 18) ? 0 : "amx"; } /* may this process use tiles? */

static void begin(void) {
    struct {
        uint8_t palette, row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape __attribute__((aligned(64))) = {.palette = 1};
    for (int t = 0; t < 8; t++) shape.bytes[t] = 64, shape.rows[t] = 16;
    _tile_loadconfig(&shape);
}
static void end(void) { _tile_release(); }

/* c [m][n] (+)= a [m][k] b [k][n]; b holds rows in words, [k / STEP][n]. All sizes are multiples of UNIT. */
static __attribute__((noinline)) void multiply(float *c, Int c_row, Int m, Int n, Int k, const Number *a, Int a_row, const Word *b, Int b_row, int add) {
    for (Int i = 0; i < m; i += UNIT)
        for (Int j = 0; j < n; j += UNIT) {
            float *at = c + i * c_row + j;
            if (add) {
                _tile_loadd(0, at, c_row * 4); _tile_loadd(1, at + 16, c_row * 4);
                _tile_loadd(2, at + 16 * c_row, c_row * 4); _tile_loadd(3, at + 16 * c_row + 16, c_row * 4);
            } else {
                _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
            }
            for (Int p = 0; p < k; p += UNIT) {
                const Number *rows = a + i * a_row + p;
                const Word *columns = b + p / 2 * b_row + j;
                _tile_loadd(4, rows, a_row * 2); _tile_loadd(6, columns, b_row * 4);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(7, columns + 16, b_row * 4); _tile_dpbf16ps(1, 4, 7);
                _tile_loadd(5, rows + 16 * a_row, a_row * 2); _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, at, c_row * 4); _tile_stored(1, at + 16, c_row * 4);
            _tile_stored(2, at + 16 * c_row, c_row * 4); _tile_stored(3, at + 16 * c_row + 16, c_row * 4);
        }
}
#else
static void begin(void) {}
static void end(void) {}
#if defined(GYM_FP32)
const char *gym_kernel(void) { return "fp32"; }
static inline Floats added(Floats sum, Word a, const Word *b) {
    float number;
    Floats numbers;
    memcpy(&number, &a, sizeof number);
    memcpy(&numbers, b, sizeof numbers);
    return sum + number * numbers;
}
#elif defined(__AVX512BF16__) && !defined(GYM_PLAIN)
#include <immintrin.h>
const char *gym_kernel(void) { return "avx512_bf16"; }
static inline Floats added(Floats sum, Word a, const Word *b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)_mm512_loadu_si512(b));
}
#else
const char *gym_kernel(void) { return "plain"; }
static inline Floats added(Floats sum, Word a, const Word *b) {
    union {
        Word bits;
        float number;
    } low = {a << 16}, high = {a & 0xffff0000u};
    Words pairs;
    memcpy(&pairs, b, sizeof pairs);
    return sum + low.number * (Floats)(pairs << 16) + high.number * (Floats)(pairs & 0xffff0000u);
}
#endif

static __attribute__((noinline)) void multiply(float *c, Int c_row, Int m, Int n, Int k, const Number *a, Int a_row, const Word *b, Int b_row, int add) {
    enum { ROWS = LANES / 2 }; /* twice as many sums stay in registers */
    for (Int i = 0; i < m; i += ROWS)
        for (Int j = 0; j < n; j += 2 * LANES) {
            Floats sums[ROWS][2]; /* of these products alone: what was there is added at the end, so that long sums keep their digits */
            for (int r = 0; r < ROWS; r++)
                for (int s = 0; s < 2; s++) sums[r][s] = (Floats){0};
            for (Int p = 0; p < k; p += STEP)
                for (int r = 0; r < ROWS; r++) {
                    Word word;
                    memcpy(&word, a + (i + r) * a_row + p, sizeof word);
                    for (int s = 0; s < 2; s++) sums[r][s] = added(sums[r][s], word, b + p / STEP * b_row + j + s * LANES);
                }
            for (int r = 0; r < ROWS; r++)
                for (int s = 0; s < 2; s++) {
                    float *at = c + (i + r) * c_row + j + s * LANES;
                    if (add) sums[r][s] += loaded(at);
                    memcpy(at, &sums[r][s], sizeof(Floats));
                }
        }
}
#endif

static inline Int filled(Int count) { return (count + UNIT - 1) / UNIT * UNIT; }
static inline Int least(Int a, Int b) { return a < b ? a : b; }
static inline Floats all(float x) { return x - (Floats){0}; }
static inline Floats chosen(Ints mask, Floats yes, Floats no) { return (Floats)((mask & (Ints)yes) | (~mask & (Ints)no)); }
static inline Floats larger(Floats a, Floats b) { return chosen(a > b, a, b); }

/* 2 to the power of x as `whole` * (1 + what is returned): a polynomial for what the nearest whole number leaves, which is within 1.2e-7
 * of what it stands for, also near 0. x is taken for -126 or 127 where it is outside. */
static inline Floats rest(Floats x, Floats *whole) {
    Floats low = all(-126), high = all(127), magic = all(12582912);
    Floats inside = chosen(x < low, low, chosen(x > high, high, x));
    Floats shifted = inside + magic, f = inside - (shifted - magic);
    Floats y = all(1.54035122e-4f) * f + 1.33907353e-3f;
    y = ((y * f + 9.61823761e-3f) * f + 5.55035733e-2f) * f + 2.40226492e-1f;
    *whole = (Floats)((Ints)all(1) + ((Ints)shifted << 23));
    return (y * f + 6.93147182e-1f) * f;
}
/* 2 to the power of x, 0 below 2 ** -126. */
static inline Floats power(Floats x) {
    Floats whole, part = rest(x, &whole);
    return (Floats)(~(x < -126) & (Ints)(whole + whole * part));
}
/* tanh(x / 2.88539008), which is (p - 1) / (p + 1) for p = 2 to the power of x, with all digits where x is small. */
static inline Floats tanh2(Floats x) {
    Floats whole, part = rest(x, &whole), less = whole * part + (whole - 1);
    return less / (less + 2);
}

#ifdef GYM_FP32
static inline Words rounded(Floats x) { return (Words)x; } /* to what a tensor holds, in a word */
static inline Words joined(const Words *x) { return x[0]; }
static inline Numbers kept(Words x) { return (Numbers)x; }
static inline Floats widened(const Number *x) { return loaded(x); }
static inline Words words(const Number *x, Int stride) { return (Words)loaded(x); }
#else
static inline Words rounded(Floats x) { /* to what a tensor holds, to the nearest, ties to even */
    Words bits = (Words)x;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline Words joined(const Words *x) { return x[0] | x[1] << 16; }
static inline Numbers kept(Words x) { return __builtin_convertvector(x, Numbers); }
static inline Words each(const Number *x) {
    Numbers found;
    memcpy(&found, x, sizeof found);
    return __builtin_convertvector(found, Words);
}
static inline Floats widened(const Number *x) { return (Floats)(each(x) << 16); }
static inline Words words(const Number *x, Int stride) { return each(x) | each(x + stride) << 16; }
#endif
static inline void put(Number *to, Floats x, Int count) { /* the first `count` of them */
    Numbers numbers = kept(rounded(x));
    memcpy(to, &numbers, least(LANES, count) * sizeof *to);
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

static inline const Number *rows_of(const Row *row, int tensor, Int head, Int token) {
    return row->data[tensor] + head * row->head[tensor] + token * row->token[tensor];
}

/* Copies of `count` rows [dim], filled up with zeros. */
static void pack_rows(const Number *from, Int stride, Int count, Int dim, Int width, Number *to) {
    for (Int i = 0; i < filled(count); i++) {
        memset(to + i * width, 0, width * sizeof *to);
        if (i < count) memcpy(to + i * width, from + i * stride, dim * sizeof *to);
    }
}
/* The same with rows and columns exchanged, from rows that are packed already. */
static void pack_columns(const Number *rows, Int count, Int width, Number *to, Int to_row) {
    for (Int i = 0; i < filled(count); i += LANES * STEP)
        for (Int d = 0; d < width; d += LANES) {
            Words tile[LANES];
            for (int r = 0; r < LANES; r++) tile[r] = words(rows + (i + STEP * r) * width + d, width);
            exchange(tile);
            for (int r = 0; r < LANES; r++) memcpy(to + (d + r) * to_row + i, tile + r, sizeof *tile);
        }
}

/* Queries of a block in words: of columns in `across` [width / STEP][BLOCK], of rows in `along` [BLOCK / STEP][width] where that is
 * given. */
static void pack_words(const Number *from, Int stride, Int count, Int dim, Int width, Word *across, Word *along, Number *rows) {
    pack_rows(from, stride, count, dim, width, rows);
    for (Int i = 0; i < filled(count); i += LANES)
        for (Int d = 0; d < width / STEP; d += LANES) {
            Words tile[LANES];
            for (int r = 0; r < LANES; r++) memcpy(tile + r, rows + (i + r) * width + STEP * d, sizeof *tile);
            exchange(tile);
            for (int r = 0; r < LANES; r++) memcpy(across + (d + r) * BLOCK + i, tile + r, sizeof *tile);
        }
    for (Int i = 0; along && i < filled(count); i += STEP)
        for (Int d = 0; d < width; d += LANES) {
            Words row = words(rows + i * width + d, width);
            memcpy(along + i / STEP * width + d, &row, sizeof row);
        }
}

/* Write what was summed for the queries of a block, [width][BLOCK], each multiplied by a factor of its own, as rows of a tensor. */
static void write_rows(const float *sums, const float *factors, Int count, Int dim, Number *to, Int stride) {
    for (Int i = 0; i < count; i += LANES)
        for (Int d = 0; d < dim; d += LANES) {
            Words tile[LANES];
            for (int r = 0; r < LANES; r++) tile[r] = (Words)(loaded(sums + (d + r) * BLOCK + i) * loaded(factors + i));
            exchange(tile);
            for (Int r = 0; r < least(LANES, count - i); r++) put(to + (i + r) * stride + d, (Floats)tile[r], dim - d);
        }
}

/* The product of two vectors of `dim` numbers. */
static float product(const Number *a, const Number *b, Int dim) {
    Floats sums = {0};
    for (Int d = 0; d < dim; d += LANES) {
        Number left[LANES] = {0}, right[LANES] = {0};
        memcpy(left, a + d, least(LANES, dim - d) * sizeof *a);
        memcpy(right, b + d, least(LANES, dim - d) * sizeof *b);
        sums += widened(left) * widened(right);
    }
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

/* Which queries of a vector see a key: those from `low` to `high`, both counted from the first of them. */
static inline Ints seen(Int low, Int high) {
#if LANES == 16
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
    return (lane >= (int32_t)(low < 0 ? 0 : least(low, LANES))) & (lane < (int32_t)(high < 0 ? 0 : least(high, LANES)));
}

/* A block: some keys of segment `of` and some queries of segment `own`. */
typedef struct {
    const Int *own, *of;
    Int query, queries, key, keys;
    int whole; /* every query sees every key, and both fill it */
} Block;

static inline Ints mask(const Row *row, const Block *block, Int r, Int lane) {
    if (block->whole) return (Ints){0} - 1;
    if (r >= block->keys) return (Ints){0};
    Int key = block->of[POSITION] + block->key + r, query = block->own[POSITION] + block->query + lane;
    Int last = block->queries - lane;
    if (row->window) last = least(last, row->window + key - query);
    return seen(key - query, last);
}

/* The next block of keys that some of the queries see; 0 when there is none. Own keys come first, then those of prefixes. */
static int next(const Row *row, Block *block) {
    for (;;) {
        block->key += BLOCK;
        Int end = block->of == block->own ? block->query + block->queries : block->of[LENGTH];
        if (block->key >= end) {
            if (block->of[PARENT] < 0) return 0;
            block->of = row->nodes + NODE * block->of[PARENT], block->key = -BLOCK;
            continue;
        }
        block->keys = least(BLOCK, end - block->key);
        Int oldest = block->of[POSITION] + block->key, newest = oldest + block->keys - 1, query = block->own[POSITION] + block->query;
        Int all_near = !row->window || query + BLOCK - 1 - oldest < row->window;
        block->whole = newest <= query && all_near && block->queries == BLOCK && block->keys == BLOCK;
        if (!row->window || query - newest < row->window) return 1;
    }
}

/* The same number. What is subtracted from it is not made one operation with the product that it comes from: that rounds in another
 * place than the pass did which found the normalizer, and weights of large scores would not sum to 1. */
static inline Floats rounded_now(Floats x) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(x));
#elif defined(__AVX__)
    __asm__("" : "+x"(x));
#else
    __asm__("" : "+m"(x));
#endif
    return x;
}

/* A score to the base of 2, and what a change of it counts behind the cap. */
static inline Floats capped(const Row *row, Floats product, Floats *slope) {
    Floats score = product * row->scale;
    *slope = all(1);
    if (row->cap > 0) {
        Floats t = tanh2(score * (2.88539008f / row->cap));
        score = t * row->cap, *slope = 1 - t * t;
    }
    return rounded_now(score * 1.44269504f);
}

static void forward(const Row *row, Scratch *s, Int tree, Int kv_head) {
    Int width = filled(row->dim), group = row->heads / row->kv_heads;
    const Int *first = row->members + row->bounds[tree], *stop = row->members + row->bounds[tree + 1];
    for (const Int *member = first; member < stop; member++) {
        const Int *own = row->nodes + NODE * *member;
        Int place = own[PLACE];
        pack_rows(rows_of(row, KEY, kv_head, own[START]), row->token[KEY], own[LENGTH], row->dim, width, s->key + place * width);
        pack_rows(rows_of(row, VALUE, kv_head, own[START]), row->token[VALUE], own[LENGTH], row->dim, width, s->value + place * width);
        pack_columns(s->value + place * width, own[LENGTH], width, s->key_t + place, row->size);
    }
    for (const Int *member = first; member < stop; member++)
        for (Int head = kv_head * group; head < (kv_head + 1) * group; head++) {
            const Int *own = row->nodes + NODE * *member;
            for (Int query = 0; query < own[LENGTH]; query += BLOCK) {
                Int count = least(BLOCK, own[LENGTH] - query), wide = filled(count), start = own[START] + query;
                pack_words(rows_of(row, QUERY, head, start), row->token[QUERY], count, row->dim, width, s->query_t, 0, s->weights);
                Floats most[VECTORS], sum[VECTORS], slope;
                for (int v = 0; v < VECTORS; v++) most[v] = all(-1e30f), sum[v] = all(0);
                memset(s->sums, 0, width * BLOCK * sizeof *s->sums);
                Block block = {own, own, query, count, -BLOCK, 0};
                while (next(row, &block)) {
                    Int tall = filled(block.keys), place = block.of[PLACE] + block.key;
                    multiply(s->scores, BLOCK, tall, wide, width, s->key + place * width, width, s->query_t, BLOCK, 0);
                    for (Int v = 0; v < wide / LANES; v++) {
                        Floats before = most[v];
                        for (Int r = 0; r < block.keys; r++) {
                            Floats score = capped(row, loaded(s->scores + r * BLOCK + v * LANES), &slope);
                            score = chosen(mask(row, &block, r, v * LANES), score, all(-1e30f));
                            memcpy(s->scores + r * BLOCK + v * LANES, &score, sizeof score);
                            most[v] = larger(score, most[v]);
                        }
                        Floats kept = power(before - most[v]);
                        sum[v] *= kept;
                        for (Int r = 0; r < tall; r += STEP) {
                            Words rows[STEP];
                            for (int o = 0; o < STEP; o++) {
                                Floats weight = power(loaded(s->scores + (r + o) * BLOCK + v * LANES) - most[v]);
                                weight = (Floats)((Ints)weight & mask(row, &block, r + o, v * LANES));
                                sum[v] += weight, rows[o] = rounded(weight);
                            }
                            Words word = joined(rows);
                            memcpy(s->joined + r / STEP * BLOCK + v * LANES, &word, sizeof word);
                        }
                        for (Int d = 0; d < width; d++) {
                            Floats scaled = loaded(s->sums + d * BLOCK + v * LANES) * kept;
                            memcpy(s->sums + d * BLOCK + v * LANES, &scaled, sizeof scaled);
                        }
                    }
                    multiply(s->sums, BLOCK, width, wide, tall, s->key_t + place, row->size, s->joined, BLOCK, 1);
                }
                float factors[BLOCK];
                for (Int i = 0; i < wide; i++) {
                    float total = sum[i / LANES][i % LANES];
                    factors[i] = 1 / total;
                    if (i < count) row->lse[head * row->tokens + start + i] = most[i / LANES][i % LANES] + log2f(total);
                }
                write_rows(s->sums, factors, count, row->dim, (Number *)rows_of(row, OUT, head, start), row->token[OUT]);
            }
        }
}

static void backward(const Row *row, Scratch *s, Int tree, Int kv_head) {
    Int width = filled(row->dim), group = row->heads / row->kv_heads;
    const Int *first = row->members + row->bounds[tree], *stop = row->members + row->bounds[tree + 1];
    for (const Int *member = first; member < stop; member++) {
        const Int *own = row->nodes + NODE * *member;
        Int place = own[PLACE];
        const Number *key = rows_of(row, KEY, kv_head, own[START]), *value = rows_of(row, VALUE, kv_head, own[START]);
        pack_rows(key, row->token[KEY], own[LENGTH], row->dim, width, s->key + place * width);
        pack_rows(value, row->token[VALUE], own[LENGTH], row->dim, width, s->value + place * width);
        pack_columns(s->key + place * width, own[LENGTH], width, s->key_t + place, row->size);
        memset(s->d_key + place * width, 0, filled(own[LENGTH]) * width * sizeof *s->d_key);
        memset(s->d_value + place * width, 0, filled(own[LENGTH]) * width * sizeof *s->d_value);
    }
    for (const Int *member = first; member < stop; member++)
        for (Int head = kv_head * group; head < (kv_head + 1) * group; head++) {
            const Int *own = row->nodes + NODE * *member;
            for (Int query = 0; query < own[LENGTH]; query += BLOCK) {
                Int count = least(BLOCK, own[LENGTH] - query), wide = filled(count), start = own[START] + query;
                const Number *d_out = rows_of(row, D_OUT, head, start), *out = rows_of(row, OUT, head, start);
                pack_words(rows_of(row, QUERY, head, start), row->token[QUERY], count, row->dim, width, s->query_t, s->query, s->weights);
                pack_words(d_out, row->token[D_OUT], count, row->dim, width, s->d_out_t, s->d_out, s->weights);
                float lse[BLOCK], delta[BLOCK], scales[BLOCK];
                for (Int i = 0; i < BLOCK; i++) {
                    lse[i] = i < count ? row->lse[head * row->tokens + start + i] : 0;
                    delta[i] = i < count ? product(d_out + i * row->token[D_OUT], out + i * row->token[OUT], row->dim) : 0;
                    scales[i] = row->scale;
                }
                memset(s->sums, 0, width * BLOCK * sizeof *s->sums);
                Block block = {own, own, query, count, -BLOCK, 0};
                while (next(row, &block)) {
                    Int tall = filled(block.keys), place = block.of[PLACE] + block.key;
                    multiply(s->scores, BLOCK, tall, wide, width, s->key + place * width, width, s->query_t, BLOCK, 0);
                    multiply(s->d_scores, BLOCK, tall, wide, width, s->value + place * width, width, s->d_out_t, BLOCK, 0);
                    for (Int r = 0; r < tall; r += STEP)
                        for (Int v = 0; v < wide; v += LANES) {
                            Words rows[STEP];
                            for (int o = 0; o < STEP; o++) {
                                Int at = (r + o) * BLOCK + v;
                                Floats slope, score = capped(row, loaded(s->scores + at), &slope);
                                Floats weight = (Floats)((Ints)power(score - loaded(lse + v)) & mask(row, &block, r + o, v));
                                Floats change = weight * (loaded(s->d_scores + at) - loaded(delta + v)) * slope;
                                rows[o] = rounded(change);
                                put(s->weights + at, weight, LANES), put(s->d_weights + at, change, LANES);
                            }
                            Words word = joined(rows);
                            memcpy(s->joined + r / STEP * BLOCK + v, &word, sizeof word);
                        }
                    multiply(s->d_value + place * width, width, tall, width, wide, s->weights, BLOCK, s->d_out, width, 1);
                    multiply(s->d_key + place * width, width, tall, width, wide, s->d_weights, BLOCK, s->query, width, 1);
                    multiply(s->sums, BLOCK, width, wide, tall, s->key_t + place, row->size, s->joined, BLOCK, 1);
                }
                write_rows(s->sums, scales, count, row->dim, (Number *)rows_of(row, D_QUERY, head, start), row->token[D_QUERY]);
            }
        }
    for (const Int *member = first; member < stop; member++) {
        const Int *own = row->nodes + NODE * *member;
        for (Int i = 0; i < own[LENGTH]; i++) {
            Number *d_key = (Number *)rows_of(row, D_KEY, kv_head, own[START] + i);
            Number *d_value = (Number *)rows_of(row, D_VALUE, kv_head, own[START] + i);
            Int from = (own[PLACE] + i) * width;
            for (Int d = 0; d < row->dim; d += LANES) {
                put(d_key + d, loaded(s->d_key + from + d) * row->scale, row->dim - d);
                put(d_value + d, loaded(s->d_value + from + d), row->dim - d);
            }
        }
    }
}

/* Memory of one thread, in parts that each begin at 64 bytes. */
static int allocate(const Row *row, Scratch *s) {
    Int width = filled(row->dim), packed = row->size * width, square = BLOCK * BLOCK, rows = BLOCK * width, size = sizeof(Number);
    struct {
        void **at;
        Int bytes;
    } parts[] = {
        {(void **)&s->key, packed * size},    {(void **)&s->key_t, packed * size},  {(void **)&s->value, packed * size},
        {(void **)&s->d_key, packed * 4},     {(void **)&s->d_value, packed * 4},   {(void **)&s->query_t, rows * size},
        {(void **)&s->query, rows * size},    {(void **)&s->d_out_t, rows * size},  {(void **)&s->d_out, rows * size},
        {(void **)&s->scores, square * 4},    {(void **)&s->d_scores, square * 4},  {(void **)&s->sums, rows * 4},
        {(void **)&s->weights, (square > rows ? square : rows) * size}, {(void **)&s->d_weights, square * size},
        {(void **)&s->joined, square * size},
    };
    Int total = 0, count = sizeof parts / sizeof *parts;
    for (Int p = 0; p < count; p++) total += (parts[p].bytes + 63) / 64 * 64;
    char *next = s->memory = aligned_alloc(64, total);
    if (!next) return 1;
    for (Int p = 0; p < count; p++) *parts[p].at = next, next += (parts[p].bytes + 63) / 64 * 64;
    return 0;
}

/* Attention of a row, or its gradient; 1 where there is no memory, and nothing is written then that is to be read. */
int gym_attention(const Row *row, int gradient) {
    int failed = 0;
#pragma omp parallel num_threads((int)row->threads) reduction(| : failed)
    {
        Scratch scratch;
        failed = allocate(row, &scratch);
        begin();
#pragma omp for schedule(dynamic)
        for (Int task = 0; task < row->trees * row->kv_heads; task++)
            if (!failed) (gradient ? backward : forward)(row, &scratch, task / row->kv_heads, task % row->kv_heads);
        end();
        if (!failed) free(scratch.memory);
    }
    return failed;
}
int gym_row_bytes(void) { return sizeof(Row); }
