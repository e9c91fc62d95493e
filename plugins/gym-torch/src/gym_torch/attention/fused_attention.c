/* Causal attention between the tokens of a segment and back into the prefixes that it continues: forward and backward, for tensors
 * in bf16, or in fp32 where it is compiled with GYM_FP32.
 *
 * Scores are held transposed, [keys][queries], so that queries are the lanes of a vector: maxima and sums over keys need no
 * sums across lanes, and what one product writes is laid out as the next one reads it. Softmax is computed block by block
 * (arXiv:2205.14135), scores and sums in fp32. One task is a tree of segments and one head of keys, whose blocks are taken in one
 * fixed order: bits of a result depend neither on threads nor on the other segments of the row.
 */
#include "lanes.h"

enum { UNIT = 32, BLOCK = 64, VECTORS = BLOCK / LANES };
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
static inline const Number *rows_of(const Row *row, int tensor, Int head, Int token) {
    return row->data[tensor] + head * row->head[tensor] + token * row->token[tensor];
}

/* Copies of `count` rows [dim], filled up with zeros. */
static void pack_rows(const Number *from, Int stride, Int count, Int dim, Int width, Number *to) {
    for (Int i = 0; i < filled(count); i++)
        for (Int d = 0; d < width; d += LANES) {
            Numbers numbers = first(from + i * stride + d, i < count ? dim - d : 0);
            memcpy(to + i * width + d, &numbers, sizeof numbers);
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
    for (Int d = 0; d < dim; d += LANES) sums += widened(first(a + d, dim - d)) * widened(first(b + d, dim - d));
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

/* A block: some keys of segment `of` and some queries of segment `own`. */
typedef struct {
    const Int *own, *of;
    Int query, queries, key, keys;
    int whole; /* every query sees every key, and both fill it */
    Int late;  /* keys from here on are seen by queries from here on alone; 0: nothing is known of that */
} Block;

/* Which of the LANES queries from `lane` on see key `r`, where the block is not whole. */
static inline Mask mask(const Row *row, const Block *block, Int r, Int lane) {
    if (r >= block->keys) return lanes(0, 0);
    Int key = block->of[POSITION] + block->key + r, query = block->own[POSITION] + block->query + lane;
    Int last = block->queries - lane;
    if (row->window) last = least(last, row->window + key - query);
    return lanes(key - query, last);
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
        block->late = block->of == block->own && block->key == block->query && block->keys > UNIT ? UNIT : 0;
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
static inline Floats capped(const Row *row, Floats product, Floats *slope, int cap) {
    Floats score = product * row->scale;
    *slope = all(1);
    if (cap) {
        Floats t = tanh2(score * (2.88539008f / row->cap));
        score = t * row->cap, *slope = 1 - t * t;
    }
    return rounded_now(score * 1.44269504f);
}

/* Keys of a block, filled up, that queries from `query` on may see; and the first query that may see key `key`. */
static inline Int keys_of(const Block *block, Int query) { return query < block->late ? block->late : filled(block->keys); }
static inline Int query_of(const Block *block, Int key) { return block->late && key >= block->late ? block->late : 0; }

/* Products of a block, without what nobody sees. By key and query, c = a b: a [keys][width], b in words [width / STEP][BLOCK]. */
static void multiply_width(const Block *block, float *c, Int width, const Number *a, const Word *b) {
    Int late = block->late, tall = filled(block->keys), wide = filled(block->queries);
    multiply(c, BLOCK, keys_of(block, 0), wide, width, a, width, b, BLOCK, 0);
    if (late) multiply(c + late * BLOCK + late, BLOCK, tall - late, wide - late, width, a + late * width, width, b + late, BLOCK, 0);
}
/* By number and query, c += a b: a [width][keys], b in words [keys / STEP][BLOCK]. */
static void multiply_keys(const Block *block, float *c, Int width, const Number *a, Int a_row, const Word *b) {
    Int late = block->late, wide = filled(block->queries);
    multiply(c, BLOCK, width, late ? late : wide, keys_of(block, 0), a, a_row, b, BLOCK, 1);
    if (late) multiply(c + late, BLOCK, width, wide - late, filled(block->keys), a, a_row, b + late, BLOCK, 1);
}
/* By key and number, c += a b: a [keys][BLOCK], b in words [queries / STEP][width]. */
static void multiply_queries(const Block *block, float *c, Int width, const Number *a, const Word *b) {
    Int late = block->late, tall = filled(block->keys), wide = filled(block->queries);
    multiply(c, width, keys_of(block, 0), width, wide, a, BLOCK, b, width, 1);
    if (late) multiply(c + late * width, width, tall - late, width, wide - late, a + late * BLOCK + late, BLOCK, b + late / STEP * width, width, 1);
}

/* What follows is compiled for each kind of block: `cap` says whether scores are capped, `whole` whether each query sees each key. */
#define EACH_KIND(FUNCTION, ROW, BLOCK_OF, ...) \
    ((ROW)->cap > 0 ? ((BLOCK_OF)->whole ? FUNCTION(ROW, BLOCK_OF, __VA_ARGS__, 1, 1) : FUNCTION(ROW, BLOCK_OF, __VA_ARGS__, 1, 0)) \
                    : ((BLOCK_OF)->whole ? FUNCTION(ROW, BLOCK_OF, __VA_ARGS__, 0, 1) : FUNCTION(ROW, BLOCK_OF, __VA_ARGS__, 0, 0)))

/* From the scores of a block to weights, in words: 2 to the power of a score less `top` of its query, which are summed in `sum`. */
static inline __attribute__((always_inline)) void weigh(const Row *row, const Block *block, Scratch *s, Floats *top, Floats *sum, int cap, int whole) {
    for (Int v = 0; v < filled(block->queries); v += LANES, top++, sum++) {
        Int width = filled(row->dim), tall = keys_of(block, v);
        Floats most = *top, slope;
        for (Int r = 0; r < least(tall, block->keys); r++) {
            Floats score = capped(row, loaded(s->scores + r * BLOCK + v), &slope, cap);
            if (!whole) score = chosen(mask(row, block, r, v), score, all(-1e30f));
            memcpy(s->scores + r * BLOCK + v, &score, sizeof score);
            most = larger(score, most);
        }
        if (any_above(most, *top + 8)) { /* a weight of up to 256 is as exact as one of 1, so sums are seldom scaled */
            Floats factor = power(*top - most);
            *top = most, *sum *= factor;
            for (Int d = 0; d < width; d++) {
                Floats scaled = loaded(s->sums + d * BLOCK + v) * factor;
                memcpy(s->sums + d * BLOCK + v, &scaled, sizeof scaled);
            }
        }
        for (Int r = 0; r < tall; r += STEP) {
            Floats weights[STEP];
            for (int o = 0; o < STEP; o++) {
                weights[o] = power(loaded(s->scores + (r + o) * BLOCK + v) - *top);
                if (!whole) weights[o] = zeroed(mask(row, block, r + o, v), weights[o]);
                *sum += weights[o];
            }
            Words word = joined(weights);
            memcpy(s->joined + r / STEP * BLOCK + v, &word, sizeof word);
        }
    }
}

/* The weights of a block once more, and the gradient of its scores, in rows and in words. */
static inline __attribute__((always_inline)) void weigh_again(const Row *row, const Block *block, Scratch *s, const float *lse, const float *delta, int cap, int whole) {
    for (Int r = 0; r < filled(block->keys); r += STEP)
        for (Int v = query_of(block, r); v < filled(block->queries); v += LANES) {
            Floats changes[STEP];
            for (int o = 0; o < STEP; o++) {
                Int at = (r + o) * BLOCK + v;
                Floats slope, weight = power(capped(row, loaded(s->scores + at), &slope, cap) - loaded(lse + v));
                if (!whole) weight = zeroed(mask(row, block, r + o, v), weight);
                changes[o] = weight * (loaded(s->d_scores + at) - loaded(delta + v));
                if (cap) changes[o] *= slope;
                put(s->weights + at, weight, LANES), put(s->d_weights + at, changes[o], LANES);
            }
            Words word = joined(changes);
            memcpy(s->joined + r / STEP * BLOCK + v, &word, sizeof word);
        }
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
                Floats top[VECTORS], sum[VECTORS];
                for (int v = 0; v < VECTORS; v++) top[v] = all(-1e30f), sum[v] = all(0);
                memset(s->sums, 0, width * BLOCK * sizeof *s->sums);
                Block block = {own, own, query, count, -BLOCK};
                while (next(row, &block)) {
                    Int place = block.of[PLACE] + block.key;
                    multiply_width(&block, s->scores, width, s->key + place * width, s->query_t);
                    EACH_KIND(weigh, row, &block, s, top, sum);
                    multiply_keys(&block, s->sums, width, s->key_t + place, row->size, s->joined);
                }
                float factors[BLOCK];
                for (Int i = 0; i < wide; i++) {
                    float total = sum[i / LANES][i % LANES];
                    factors[i] = 1 / total;
                    if (i < count) row->lse[head * row->tokens + start + i] = top[i / LANES][i % LANES] + log2f(total);
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
                Block block = {own, own, query, count, -BLOCK};
                while (next(row, &block)) {
                    Int place = block.of[PLACE] + block.key;
                    multiply_width(&block, s->scores, width, s->key + place * width, s->query_t);
                    multiply_width(&block, s->d_scores, width, s->value + place * width, s->d_out_t);
                    EACH_KIND(weigh_again, row, &block, s, lse, delta);
                    multiply_queries(&block, s->d_value + place * width, width, s->weights, s->d_out);
                    multiply_queries(&block, s->d_key + place * width, width, s->d_weights, s->query);
                    multiply_keys(&block, s->sums, width, s->key_t + place, row->size, s->joined);
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
