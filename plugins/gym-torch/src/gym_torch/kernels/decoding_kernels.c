/* What a step of decoding does, in fp32, or in bf16 with sums in fp32 where it is compiled with GYM_BF16: products of few rows with a
 * weight, and attention of new tokens to the keys and values of their rows.
 *
 * Every sum is made in one order: bits of a row depend neither on threads nor on what other rows there are beside.
 */
#include "vectors.h"
#include <math.h>
#include <stdlib.h>

#if defined(__AVX512F__)
enum { TALL = 6 };
#else
enum { TALL = 3 };
#endif
enum { WIDE = 4, NEAR = 7 * 1024, NEXT = 16 * 1024, WORTH = 1 << 16 }; /* columns of a tile; numbers in the two nearest caches; least work */

/* Products of few rows with a weight that is read where it lies, once: out[r][n] = sum over k of x[r][k] w[n][k] (+ bias[n]).
 * A weight has its inputs next to each other, so a sum is one of vectors along them, and its lanes are added at the end.
 *
 * Some rows with WIDE rows of the weight; those of them that are beyond its end are its last one again, and not written. */
static inline __attribute__((always_inline)) void tile(const int tall, const Number *x, Int x_row, const Number *const *w, Int inputs,
                                                       const Number *bias, Number *out, Int out_row, Int columns) {
    Floats sums[TALL][WIDE];
    for (int r = 0; r < tall; r++)
        for (int c = 0; c < WIDE; c++) sums[r][c] = (Floats){0};
    Int k = 0, left = inputs % STEP;
    for (; k < inputs - left; k += STEP) {
        Held weights[WIDE];
        for (int c = 0; c < WIDE; c++) weights[c] = held(w[c] + k, STEP);
        for (int r = 0; r < tall; r++) {
            Held given = held(x + r * x_row + k, STEP);
            for (int c = 0; c < WIDE; c++) sums[r][c] = multiplied(sums[r][c], given, weights[c]);
        }
    }
    if (left)
        for (int r = 0; r < tall; r++)
            for (int c = 0; c < WIDE; c++) sums[r][c] = multiplied(sums[r][c], held(x + r * x_row + k, left), held(w[c] + k, left));
#pragma GCC unroll 8
    for (int r = 0; r < tall; r++) {
        Four found = added(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
        for (Int c = 0; bias && c < columns; c++) found[c] += numbers(bias + c, 1)[0];
        for (Int c = 0; c < columns; c++) out[r * out_row + c] = rounded(found[c]);
    }
}

/* Some rows, which stay in the nearest cache, with some rows of the weight, which stay in the next one. */
static void block(const Number *x, Int x_row, Int rows, const Number *weight, Int inputs, const Number *bias, Number *out, Int out_row,
                  Int columns) {
    for (Int c = 0; c < columns; c += WIDE)
        for (Int r = 0; r < rows; r += TALL) {
            Int wide = columns - c < WIDE ? columns - c : WIDE, tall = rows - r < TALL ? rows - r : TALL;
            const Number *w[WIDE], *b = bias ? bias + c : 0, *from = x + r * x_row;
            Number *to = out + r * out_row + c;
            for (int i = 0; i < WIDE; i++) w[i] = weight + (c + (i < wide ? i : wide - 1)) * inputs;
            switch (tall) {
            case 1: tile(1, from, x_row, w, inputs, b, to, out_row, wide); break;
            case 2: tile(2, from, x_row, w, inputs, b, to, out_row, wide); break;
            case 3: tile(3, from, x_row, w, inputs, b, to, out_row, wide); break;
#if defined(__AVX512F__)
            case 4: tile(4, from, x_row, w, inputs, b, to, out_row, wide); break;
            case 5: tile(5, from, x_row, w, inputs, b, to, out_row, wide); break;
            case 6: tile(6, from, x_row, w, inputs, b, to, out_row, wide); break;
#endif
            }
        }
}

/* x [rows][inputs] with rows `x_row` apart, weight [outputs][inputs], out [rows][outputs]; `bias` may be 0. */
void gym_product(const Number *x, Int x_row, Int rows, const Number *weight, Int outputs, Int inputs, const Number *bias, Number *out,
                 int threads) {
    Int step = NEXT / (inputs ? inputs : 1) / WIDE * WIDE, panel = NEAR / (inputs ? inputs : 1) / TALL * TALL;
    if (step < WIDE) step = WIDE;
    if (panel < TALL) panel = TALL;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * outputs * inputs > WORTH)
    for (Int n = 0; n < outputs; n += step)
        for (Int r = 0; r < rows; r += panel)
            block(x + r * x_row, x_row, rows - r < panel ? rows - r : panel, weight + n * inputs, inputs, bias ? bias + n : 0,
                  out + r * outputs + n, outputs, outputs - n < step ? outputs - n : step);
}

/* New tokens of rows, [tokens][heads][dim], those of row r from first[r] to first[r + 1]. A row has its own keys and values,
 * [rows][heads][held][dim], `lengths[r]` before the new ones, which are written behind them. It may continue a prompt that others
 * continue too, [prompts][heads][width][dim]; rows of group g are members[bounds[g]] to members[bounds[g + 1]], and continue prompt
 * prompt[g], or none where that is below 0. */
typedef struct {
    const Number *query, *key, *value;
    Number *out, *keys, *values;
    const Number *prompt_keys, *prompt_values;
    Int query_token, query_head, key_token, key_head, value_token, value_head; /* strides of the new tokens */
    Int row, head, prompt_row, prompt_head;                                      /* and of what is kept */
    const Int *first, *lengths, *members, *bounds, *prompt, *prompt_lengths;
    Int groups, heads, kv_heads, dim, window, threads; /* window 0: everything before is seen */
    float scale, cap;                                  /* cap 0: none */
} Call;

enum { KEYS = 16 }; /* of a block */

/* Products of a query with some keys, WIDE at a time. */
static inline __attribute__((always_inline)) void products(const Number *query, const Number *keys, Int count, const Int dim, float *out) {
    for (Int k = 0; k < count; k += WIDE) {
        Int wide = count - k < WIDE ? count - k : WIDE;
        const Number *at[WIDE];
        Floats sums[WIDE];
        for (int c = 0; c < WIDE; c++) at[c] = keys + (k + (c < wide ? c : wide - 1)) * dim, sums[c] = (Floats){0};
        for (Int d = 0; d < dim; d += STEP) {
            Held given = held(query + d, dim - d);
            for (int c = 0; c < WIDE; c++) sums[c] = multiplied(sums[c], given, held(at[c] + d, dim - d));
        }
        Four found = added(sums[0], sums[1], sums[2], sums[3]);
        memcpy(out + k, &found, wide * sizeof *out);
    }
}

/* Add some values, each by its weight, to a sum. */
static inline __attribute__((always_inline)) void gathered(const float *weights, const Number *values, Int count, const Int dim, float *sum) {
    for (Int d = 0; d < dim; d += LANES) {
        Floats found = floats(sum + d, dim - d);
        for (Int k = 0; k < count; k++) found += weights[k] * numbers(values + k * dim + d, dim - d);
        memcpy(sum + d, &found, (dim - d < LANES ? dim - d : LANES) * sizeof *sum);
    }
}

static inline Int smaller(Int a, Int b) { return a < b ? a : b; }

/* Scores of the keys of one query become weights that sum to 1; those outside of [from, to), and in the gap, become 0. */
static void weigh(const Call *call, float *scores, Int from, Int to, Int count, Int gap, Int past) {
    float most = -INFINITY, sum = 0;
    for (Int k = 0; k < from; k++) scores[k] = 0;
    for (Int k = to; k < count; k++) scores[k] = 0;
    for (Int k = from; k < to; k++) {
        float score = scores[k] * call->scale;
        scores[k] = call->cap > 0 ? call->cap * tanhf(score / call->cap) : score;
    }
    for (Int k = gap > from ? gap : from; k < past; k++) scores[k] = -INFINITY;
#pragma omp simd reduction(max : most)
    for (Int k = from; k < to; k++) most = scores[k] > most ? scores[k] : most;
#pragma omp simd reduction(+ : sum)
    for (Int k = from; k < to; k++) {
        float weight = power(scores[k] - most);
        scores[k] = weight, sum += weight;
    }
    float share = 1.0f / sum;
    for (Int k = from; k < to; k++) scores[k] *= share;
}

/* The rows of one group with one head of keys. For each query `scores` has a row of `size`, those of the prompt, then the own ones, and
 * `sums` one of `dim`, which are 0. */
static inline __attribute__((always_inline)) void attend(const Call *call, Int group, Int kv_head, const Int dim, float *scores, float *sums, Int size) {
    Int sharing = call->heads / call->kv_heads, number = call->prompt[group], count = number < 0 ? 0 : call->prompt_lengths[number];
    Int start = (count + KEYS - 1) / KEYS * KEYS; /* of the own scores */
    const Number *prompt_keys = call->prompt_keys + number * call->prompt_row + kv_head * call->prompt_head;
    const Number *prompt_values = call->prompt_values + number * call->prompt_row + kv_head * call->prompt_head;
    const Int *begin = call->members + call->bounds[group], *end = call->members + call->bounds[group + 1];
#define QUERIES(row) /* of a row, with the scores of each */                                                                  \
    for (Int t = call->first[row], place = 0; t < call->first[row + 1]; t++, place++)                                          \
        for (Int h = kv_head * sharing; h < (kv_head + 1) * sharing; h++, own += size)
    for (Int k = 0; k < count; k += KEYS) {
        float *own = scores;
        for (const Int *row = begin; row < end; row++)
            QUERIES(*row)
                products(call->query + t * call->query_token + h * call->query_head, prompt_keys + k * dim, smaller(KEYS, count - k),
                         dim, own + k);
    }
    float *own = scores;
    for (const Int *row = begin; row < end; row++) {
        Int length = call->lengths[*row], fresh = call->first[*row + 1] - call->first[*row], total = length + fresh;
        Number *keys = call->keys + *row * call->row + kv_head * call->head;
        float *first = own;
        Number *values = call->values + *row * call->row + kv_head * call->head;
        for (Int n = 0; n < fresh; n++) {
            Int t = call->first[*row] + n;
            memcpy(keys + (length + n) * dim, call->key + t * call->key_token + kv_head * call->key_head, dim * sizeof *keys);
            memcpy(values + (length + n) * dim, call->value + t * call->value_token + kv_head * call->value_head, dim * sizeof *keys);
        }
        for (Int k = 0; k < total; k += KEYS) {
            own = first;
            QUERIES(*row)
                products(call->query + t * call->query_token + h * call->query_head, keys + k * dim, smaller(KEYS, total - k), dim,
                         own + start + k);
        }
        own = first;
        QUERIES(*row) {
            Int seen = count + length + place + 1, from = call->window && seen > call->window ? seen - call->window : 0;
            weigh(call, own, from < count ? from : from - count + start, start + length + place + 1, start + total, count, start);
        }
    }
    float *sum = sums;
    for (Int k = 0; k < count; k += KEYS) {
        own = scores, sum = sums;
        for (const Int *row = begin; row < end; row++)
            QUERIES(*row) {
                gathered(own + k, prompt_values + k * dim, smaller(KEYS, count - k), dim, sum);
                sum += dim;
            }
    }
    own = scores, sum = sums;
    for (const Int *row = begin; row < end; row++) {
        Int total = call->lengths[*row] + call->first[*row + 1] - call->first[*row];
        const Number *values = call->values + *row * call->row + kv_head * call->head;
        float *first = own, *from = sum;
        for (Int k = 0; k < total; k += KEYS) {
            own = first, sum = from;
            QUERIES(*row) {
                gathered(own + start + k, values + k * dim, smaller(KEYS, total - k), dim, sum);
                sum += dim;
            }
        }
    }
    own = scores, sum = sums;
    for (const Int *row = begin; row < end; row++)
        QUERIES(*row) {
            store(call->out + (t * call->heads + h) * dim, sum, dim);
            sum += dim;
        }
}

/* Attention of new tokens; 1 where there is no memory. */
int gym_attend(const Call *call) {
    int failed = 0;
#pragma omp parallel for num_threads((int)call->threads) schedule(dynamic) reduction(| : failed)
    for (Int task = 0; task < call->groups * call->kv_heads; task++) {
        Int group = task / call->kv_heads, head = task % call->kv_heads, most = 0, queries = 0;
        Int count = call->prompt[group] < 0 ? 0 : call->prompt_lengths[call->prompt[group]];
        for (Int m = call->bounds[group]; m < call->bounds[group + 1]; m++) {
            Int row = call->members[m], fresh = call->first[row + 1] - call->first[row];
            queries += fresh * (call->heads / call->kv_heads);
            if (call->lengths[row] + fresh > most) most = call->lengths[row] + fresh;
        }
        Int size = (count + KEYS - 1) / KEYS * KEYS + (most + KEYS - 1) / KEYS * KEYS;
        float *scores = malloc((queries * (size + call->dim) + 1) * sizeof *scores), *sums = scores + queries * size;
        if (scores) memset(sums, 0, queries * call->dim * sizeof *sums);
        if (!scores) failed = 1;
        else if (call->dim == 64) attend(call, group, head, 64, scores, sums, size);
        else if (call->dim == 128) attend(call, group, head, 128, scores, sums, size);
        else attend(call, group, head, call->dim, scores, sums, size);
        free(scores);
    }
    return failed;
}
int gym_call_bytes(void) { return sizeof(Call); }
