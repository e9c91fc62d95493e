/* Causal attention between the tokens of a segment and back into the prefixes that it continues, in bf16: forward and backward.
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
typedef uint16_t Half;                                 /* bf16 */
typedef uint32_t Pair;                                 /* two of them, of rows or columns next to each other */
typedef float Floats __attribute__((vector_size(64))); /* of 16 queries */
typedef uint32_t Words __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef Half Halves __attribute__((vector_size(32)));

enum { LANES = 16, UNIT = 32, BLOCK = 64, VECTORS = BLOCK / LANES };
enum { START, LENGTH, PARENT, POSITION, PLACE, NODE }; /* of a segment; PLACE is where its keys begin in what a task packs */
enum { QUERY, KEY, VALUE, OUT, D_OUT, D_QUERY, D_KEY, D_VALUE, TENSORS };

/* One row. Tensors are [heads][tokens][dim] with strides of heads and tokens. Trees are numbers of segments, those of tree t from
 * bounds[t] to bounds[t + 1], prefixes first; `size` is the most keys of a tree, each segment filled up to UNIT. */
typedef struct {
    Half *data[TENSORS];
    Int head[TENSORS], token[TENSORS];
    float *lse; /* [heads][tokens], to the base of 2 */
    const Int *nodes, *members, *bounds;
    Int trees, size, tokens, heads, kv_heads, dim, window, threads;
    float scale, cap; /* 0: no cap */
} Row;

typedef struct {
    Half *key, *key_t, *value; /* [size][dim], [dim][size], [size][dim]; forward has values there too */
    float *d_key, *d_value;
    Pair *query_t, *query, *d_out_t, *d_out; /* [dim / 2][BLOCK], [BLOCK / 2][dim] */
    float *scores, *d_scores, *sums;         /* [BLOCK][BLOCK], [dim][BLOCK] */
    Half *weights, *d_weights;               /* [BLOCK][BLOCK] */
    Pair *pairs;                             /* [BLOCK / 2][BLOCK] */
    void *memory;
} Scratch;

#if defined(__AMX_BF16__) && !defined(GYM_PLAIN)
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

/* c [m][n] (+)= a [m][k] b [k][n]; b holds pairs of rows, [k / 2][n]. All sizes are multiples of UNIT. */
static __attribute__((noinline)) void multiply(float *c, Int c_row, Int m, Int n, Int k, const Half *a, Int a_row, const Pair *b, Int b_row, int add) {
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
                const Half *rows = a + i * a_row + p;
                const Pair *columns = b + p / 2 * b_row + j;
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
#if defined(__AVX512BF16__) && !defined(GYM_PLAIN)
#include <immintrin.h>
const char *gym_kernel(void) { return "avx512_bf16"; }
static inline Floats added(Floats sum, Pair a, const Pair *b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)_mm512_loadu_si512(b));
}
#else
const char *gym_kernel(void) { return "plain"; }
static inline Floats added(Floats sum, Pair a, const Pair *b) {
    union {
        Pair bits;
        float number;
    } low = {a << 16}, high = {a & 0xffff0000u};
    Words pairs;
    memcpy(&pairs, b, sizeof pairs);
    return sum + low.number * (Floats)(pairs << 16) + high.number * (Floats)(pairs & 0xffff0000u);
}
#endif

static __attribute__((noinline)) void multiply(float *c, Int c_row, Int m, Int n, Int k, const Half *a, Int a_row, const Pair *b, Int b_row, int add) {
    enum { ROWS = 8 };
    for (Int i = 0; i < m; i += ROWS)
        for (Int j = 0; j < n; j += UNIT) {
            Floats sums[ROWS][2];
            for (int r = 0; r < ROWS; r++)
                for (int s = 0; s < 2; s++)
                    if (add)
                        memcpy(&sums[r][s], c + (i + r) * c_row + j + s * LANES, 64);
                    else
                        sums[r][s] = (Floats){0};
            for (Int p = 0; p < k; p += 2)
                for (int r = 0; r < ROWS; r++) {
                    Pair pair;
                    memcpy(&pair, a + (i + r) * a_row + p, 4);
                    for (int s = 0; s < 2; s++) sums[r][s] = added(sums[r][s], pair, b + p / 2 * b_row + j + s * LANES);
                }
            for (int r = 0; r < ROWS; r++)
                for (int s = 0; s < 2; s++) memcpy(c + (i + r) * c_row + j + s * LANES, &sums[r][s], 64);
        }
}
#endif

static inline Int filled(Int count) { return (count + UNIT - 1) / UNIT * UNIT; }
static inline Int least(Int a, Int b) { return a < b ? a : b; }
static inline Floats all(float x) { return x - (Floats){0}; }
static inline Floats loaded(const float *x) {
    Floats found;
    memcpy(&found, x, sizeof found);
    return found;
}
static inline Floats chosen(Ints mask, Floats yes, Floats no) { return (Floats)((mask & (Ints)yes) | (~mask & (Ints)no)); }
static inline Floats larger(Floats a, Floats b) { return chosen(a > b, a, b); }

/* 2 to the power of x: a polynomial for what the nearest whole number leaves (relative error below 3e-7), 0 below 2 ** -126. */
static inline Floats power(Floats x) {
    Floats low = all(-126), high = all(127), magic = all(12582912);
    Floats inside = chosen(x < low, low, chosen(x > high, high, x));
    Floats shifted = inside + magic, f = inside - (shifted - magic);
    Floats y = all(1.32764478e-3f) * f + 9.67554151e-3f;
    y = ((y * f + 5.55071334e-2f) * f + 2.40221197e-1f) * f + 6.93146967e-1f;
    y = y * f + 1.00000007f;
    return (Floats)(~(x < low) & ((Ints)y + ((Ints)shifted << 23)));
}

static inline Words rounded(Floats x) { /* to bf16, to the nearest, ties to even */
    Words bits = (Words)x;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline Half half(float x) {
    Pair bits;
    memcpy(&bits, &x, 4);
    return (Half)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float full(Half x) {
    Pair bits = (Pair)x << 16;
    float found;
    memcpy(&found, &bits, 4);
    return found;
}

static inline Words words(const Half *x) {
    Halves found;
    memcpy(&found, x, sizeof found);
    return __builtin_convertvector(found, Words);
}
static inline Floats widened(const Half *x) { return (Floats)(words(x) << 16); }
static inline Words paired(const Half *x, Int stride) { return words(x) | words(x + stride) << 16; }

/* Exchanges rows and columns of 16 x 16 words: one bit of their numbers after the other. */
#define EXCHANGE(BIT, ...) \
    for (int r = 0; r < LANES; r++) \
        if (!(r & BIT)) { \
            Words a = x[r], b = x[r | BIT]; \
            x[r] = __builtin_shufflevector(a, b, __VA_ARGS__); \
            x[r | BIT] = OTHER(a, b, BIT, __VA_ARGS__); \
        }
#define OTHER(a, b, BIT, A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P) \
    __builtin_shufflevector(a, b, A + BIT, B + BIT, C + BIT, D + BIT, E + BIT, F + BIT, G + BIT, H + BIT, I + BIT, J + BIT, \
                            K + BIT, L + BIT, M + BIT, N + BIT, O + BIT, P + BIT)
static inline void exchange(Words x[LANES]) {
    EXCHANGE(1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
    EXCHANGE(2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
    EXCHANGE(4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
    EXCHANGE(8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
}

static inline const Half *rows_of(const Row *row, int tensor, Int head, Int token) {
    return row->data[tensor] + head * row->head[tensor] + token * row->token[tensor];
}

/* Copies of `count` rows [dim], filled up with zeros. */
static void pack_rows(const Half *from, Int stride, Int count, Int dim, Int width, Half *to) {
    for (Int i = 0; i < filled(count); i++) {
        memset(to + i * width, 0, width * sizeof *to);
        if (i < count) memcpy(to + i * width, from + i * stride, dim * sizeof *to);
    }
}
/* The same with rows and columns exchanged, from rows that are packed already. */
static void pack_columns(const Half *rows, Int count, Int width, Half *to, Int to_row) {
    for (Int i = 0; i < filled(count); i += UNIT)
        for (Int d = 0; d < width; d += LANES) {
            Words pairs[LANES];
            for (int r = 0; r < LANES; r++) pairs[r] = paired(rows + (i + 2 * r) * width + d, width);
            exchange(pairs);
            for (int r = 0; r < LANES; r++) memcpy(to + (d + r) * to_row + i, pairs + r, sizeof *pairs);
        }
}

/* Queries of a block in pairs: of columns in `across` [width / 2][BLOCK], of rows in `along` [BLOCK / 2][width] where that is given. */
static void pack_pairs(const Half *from, Int stride, Int count, Int dim, Int width, Pair *across, Pair *along, Half *rows) {
    pack_rows(from, stride, count, dim, width, rows);
    for (Int i = 0; i < filled(count); i += LANES)
        for (Int d = 0; d < width / 2; d += LANES) {
            Words tile[LANES];
            for (int r = 0; r < LANES; r++) memcpy(tile + r, rows + (i + r) * width + 2 * d, sizeof *tile);
            exchange(tile);
            for (int r = 0; r < LANES; r++) memcpy(across + (d + r) * BLOCK + i, tile + r, sizeof *tile);
        }
    for (Int i = 0; along && i < filled(count); i += 2)
        for (Int d = 0; d < width; d += LANES) {
            Words pairs = paired(rows + i * width + d, width);
            memcpy(along + i / 2 * width + d, &pairs, sizeof pairs);
        }
}

/* Write what was summed for the queries of a block, [width][BLOCK], each multiplied by a factor of its own, as rows of a tensor. */
static void write_rows(const float *sums, const float *factors, Int count, Int dim, Half *to, Int stride) {
    for (Int i = 0; i < count; i += LANES)
        for (Int d = 0; d < dim; d += LANES) {
            Words tile[LANES];
            for (int r = 0; r < LANES; r++) tile[r] = (Words)(loaded(sums + (d + r) * BLOCK + i) * loaded(factors + i));
            exchange(tile);
            for (Int r = 0; r < least(LANES, count - i); r++) {
                Halves halves = __builtin_convertvector(rounded((Floats)tile[r]), Halves);
                memcpy(to + (i + r) * stride + d, &halves, least(LANES, dim - d) * sizeof *to);
            }
        }
}

/* The product of two vectors of `dim` numbers. */
static float product(const Half *a, const Half *b, Int dim) {
    Floats sums = {0};
    Int d = 0;
    for (; d + LANES <= dim; d += LANES) sums += widened(a + d) * widened(b + d);
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    for (; d < dim; d++) sum += full(a[d]) * full(b[d]);
    return sum;
}

/* Which of 16 queries see a key: those from `low` to `high`, both counted from the first of them. */
static inline Ints seen(Int low, Int high) {
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (lane >= (int32_t)(low < 0 ? 0 : least(low, LANES))) & (lane < (int32_t)(high < 0 ? 0 : least(high, LANES)));
}

/* A block: some keys of segment `of` and some queries of segment `own`. */
typedef struct {
    const Int *own, *of;
    Int query, queries, key, keys;
} Block;

static inline Ints mask(const Row *row, const Block *block, Int r, Int lane) {
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
        Int newest = block->of[POSITION] + block->key + block->keys - 1;
        if (!row->window || block->own[POSITION] + block->query - newest < row->window) return 1;
    }
}

/* A score to the base of 2, and what a change of it counts behind the cap. */
static inline Floats capped(const Row *row, Floats product, Floats *slope) {
    Floats score = product * row->scale;
    *slope = all(1);
    if (row->cap > 0) {
        Floats t = 1 - 2 / (power(score * (2 * 1.44269504f / row->cap)) + 1);
        score = t * row->cap, *slope = 1 - t * t;
    }
    return score * 1.44269504f;
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
                pack_pairs(rows_of(row, QUERY, head, start), row->token[QUERY], count, row->dim, width, s->query_t, 0, s->weights);
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
                        for (Int r = 0; r < tall; r += 2) {
                            Words two[2];
                            for (int o = 0; o < 2; o++) {
                                Floats weight = power(loaded(s->scores + (r + o) * BLOCK + v * LANES) - most[v]);
                                weight = (Floats)((Ints)weight & mask(row, &block, r + o, v * LANES));
                                sum[v] += weight, two[o] = rounded(weight);
                            }
                            two[0] |= two[1] << 16;
                            memcpy(s->pairs + r / 2 * BLOCK + v * LANES, two, sizeof *two);
                        }
                        for (Int d = 0; d < width; d++) {
                            Floats scaled = loaded(s->sums + d * BLOCK + v * LANES) * kept;
                            memcpy(s->sums + d * BLOCK + v * LANES, &scaled, sizeof scaled);
                        }
                    }
                    multiply(s->sums, BLOCK, width, wide, tall, s->key_t + place, row->size, s->pairs, BLOCK, 1);
                }
                float factors[BLOCK];
                for (Int i = 0; i < wide; i++) {
                    float total = sum[i / LANES][i % LANES];
                    factors[i] = 1 / total;
                    if (i < count) row->lse[head * row->tokens + start + i] = most[i / LANES][i % LANES] + log2f(total);
                }
                write_rows(s->sums, factors, count, row->dim, (Half *)rows_of(row, OUT, head, start), row->token[OUT]);
            }
        }
}

static void backward(const Row *row, Scratch *s, Int tree, Int kv_head) {
    Int width = filled(row->dim), group = row->heads / row->kv_heads;
    const Int *first = row->members + row->bounds[tree], *stop = row->members + row->bounds[tree + 1];
    for (const Int *member = first; member < stop; member++) {
        const Int *own = row->nodes + NODE * *member;
        Int place = own[PLACE];
        const Half *key = rows_of(row, KEY, kv_head, own[START]), *value = rows_of(row, VALUE, kv_head, own[START]);
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
                const Half *d_out = rows_of(row, D_OUT, head, start), *out = rows_of(row, OUT, head, start);
                pack_pairs(rows_of(row, QUERY, head, start), row->token[QUERY], count, row->dim, width, s->query_t, s->query, s->weights);
                pack_pairs(d_out, row->token[D_OUT], count, row->dim, width, s->d_out_t, s->d_out, s->weights);
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
                    for (Int r = 0; r < tall; r += 2)
                        for (Int v = 0; v < wide; v += LANES) {
                            Words two[2];
                            for (int o = 0; o < 2; o++) {
                                Int at = (r + o) * BLOCK + v;
                                Floats slope, score = capped(row, loaded(s->scores + at), &slope);
                                Floats weight = (Floats)((Ints)power(score - loaded(lse + v)) & mask(row, &block, r + o, v));
                                Floats change = weight * (loaded(s->d_scores + at) - loaded(delta + v)) * slope;
                                two[o] = rounded(change);
                                Words bits = rounded(weight);
                                Halves kept = __builtin_convertvector(bits, Halves), changed = __builtin_convertvector(two[o], Halves);
                                memcpy(s->weights + at, &kept, sizeof kept);
                                memcpy(s->d_weights + at, &changed, sizeof changed);
                            }
                            two[0] |= two[1] << 16;
                            memcpy(s->pairs + r / 2 * BLOCK + v, two, sizeof *two);
                        }
                    multiply(s->d_value + place * width, width, tall, width, wide, s->weights, BLOCK, s->d_out, width, 1);
                    multiply(s->d_key + place * width, width, tall, width, wide, s->d_weights, BLOCK, s->query, width, 1);
                    multiply(s->sums, BLOCK, width, wide, tall, s->key_t + place, row->size, s->pairs, BLOCK, 1);
                }
                write_rows(s->sums, scales, count, row->dim, (Half *)rows_of(row, D_QUERY, head, start), row->token[D_QUERY]);
            }
        }
    for (const Int *member = first; member < stop; member++) {
        const Int *own = row->nodes + NODE * *member;
        for (Int i = 0; i < own[LENGTH]; i++) {
            Half *d_key = (Half *)rows_of(row, D_KEY, kv_head, own[START] + i);
            Half *d_value = (Half *)rows_of(row, D_VALUE, kv_head, own[START] + i);
            Int from = (own[PLACE] + i) * width;
            for (Int d = 0; d < row->dim; d++)
                d_key[d] = half(s->d_key[from + d] * row->scale), d_value[d] = half(s->d_value[from + d]);
        }
    }
}

/* Memory of one thread, in parts that each begin at 64 bytes. */
static int allocate(const Row *row, Scratch *s) {
    Int width = filled(row->dim), packed = row->size * width, square = BLOCK * BLOCK, rows = BLOCK * width;
    struct {
        void **at;
        Int bytes;
    } parts[] = {
        {(void **)&s->key, packed * 2},     {(void **)&s->key_t, packed * 2},   {(void **)&s->value, packed * 2},
        {(void **)&s->d_key, packed * 4},   {(void **)&s->d_value, packed * 4}, {(void **)&s->query_t, rows * 2},
        {(void **)&s->query, rows * 2},     {(void **)&s->d_out_t, rows * 2},   {(void **)&s->d_out, rows * 2},
        {(void **)&s->scores, square * 4},  {(void **)&s->d_scores, square * 4}, {(void **)&s->sums, rows * 4},
        {(void **)&s->weights, (square > rows ? square : rows) * 2}, {(void **)&s->d_weights, square * 2},
        {(void **)&s->pairs, square * 2},
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
