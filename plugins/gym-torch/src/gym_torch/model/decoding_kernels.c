/* What a step of decoding does, in fp32: products of few rows with a weight, and attention of new tokens to the keys and values of
 * their rows.
 *
 * Every sum is made in one order: bits of a row depend neither on threads nor on what other rows there are beside.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t Int;

#if defined(__AVX512F__)
enum { LANES = 16, TALL = 6 };
const char *gym_kernel(void) { return "avx512"; }
#else
enum { LANES = 8, TALL = 3 };
#if defined(__AVX2__)
const char *gym_kernel(void) { return "avx2"; }
#else
const char *gym_kernel(void) { return "c"; }
#endif
#endif
enum { WIDE = 4, NEAR = 7 * 1024, NEXT = 16 * 1024, WORTH = 1 << 16 }; /* columns of a tile; numbers in the two nearest caches; least work */

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Numbers __attribute__((vector_size(LANES * 4)));
typedef float Four __attribute__((vector_size(16)));

static inline Floats loaded(const float *x) {
    Floats found;
    memcpy(&found, x, sizeof found);
    return found;
}
static inline Floats part(const float *x, Int count) { /* the first numbers, then zeros */
    Floats found = {0};
    memcpy(&found, x, count * sizeof *x);
    return found;
}

/* The sums of lanes of four vectors. */
static inline Four added(Floats a, Floats b, Floats c, Floats d) {
    Four found;
#if defined(__AVX512F__)
    const Numbers low = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30}, high = low + 1;
    const Numbers first = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}, second = first + 2;
#else
    const Numbers low = {0, 8, 2, 10, 4, 12, 6, 14}, high = low + 1;
    const Numbers first = {0, 1, 8, 9, 4, 5, 12, 13}, second = first + 2;
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

/* Products of few rows with a weight that is read where it lies, once: out[r][n] = sum over k of x[r][k] w[n][k] (+ bias[n]).
 * A weight has its inputs next to each other, so a sum is one of vectors along them, and its lanes are added at the end.
 *
 * Some rows with WIDE rows of the weight; those of them that are beyond its end are its last one again, and not written. */
static inline __attribute__((always_inline)) void tile(const int tall, const float *x, Int x_row, const float *const *w, Int inputs,
                                                       const float *bias, float *out, Int out_row, Int columns) {
    Floats sums[TALL][WIDE];
    for (int r = 0; r < tall; r++)
        for (int c = 0; c < WIDE; c++) sums[r][c] = (Floats){0};
    Int k = 0, left = inputs % LANES;
    for (; k < inputs - left; k += LANES) {
        Floats weights[WIDE];
        for (int c = 0; c < WIDE; c++) weights[c] = loaded(w[c] + k);
        for (int r = 0; r < tall; r++) {
            Floats given = loaded(x + r * x_row + k);
            for (int c = 0; c < WIDE; c++) sums[r][c] += given * weights[c];
        }
    }
    if (left)
        for (int r = 0; r < tall; r++)
            for (int c = 0; c < WIDE; c++) sums[r][c] += part(x + r * x_row + k, left) * part(w[c] + k, left);
#pragma GCC unroll 8
    for (int r = 0; r < tall; r++) {
        Four found = added(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
        if (bias) {
            Four more = {0};
            memcpy(&more, bias, columns * sizeof *bias);
            found += more;
        }
        memcpy(out + r * out_row, &found, columns * sizeof *out);
    }
}

/* Some rows, which stay in the nearest cache, with some rows of the weight, which stay in the next one. */
static void block(const float *x, Int x_row, Int rows, const float *weight, Int inputs, const float *bias, float *out, Int out_row,
                  Int columns) {
    for (Int c = 0; c < columns; c += WIDE)
        for (Int r = 0; r < rows; r += TALL) {
            Int wide = columns - c < WIDE ? columns - c : WIDE, tall = rows - r < TALL ? rows - r : TALL;
            const float *w[WIDE], *b = bias ? bias + c : 0, *from = x + r * x_row;
            float *to = out + r * out_row + c;
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
void gym_product(const float *x, Int x_row, Int rows, const float *weight, Int outputs, Int inputs, const float *bias, float *out,
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

/* e^x for x <= 0, within 2 units in the last place; a polynomial of degree 6 on [-ln 2 / 2, ln 2 / 2]. */
static inline float power(float x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float inside = x < -87.0f ? -87.0f : x;
    float whole = inside * 1.44269504f + shift, count = whole - shift;
    float rest = (inside - count * 0.693145752f) - count * 1.42860677e-6f;
    float sum = 1.38888889e-3f, by;
    sum = sum * rest + 8.33333333e-3f;
    sum = sum * rest + 4.16666667e-2f;
    sum = sum * rest + 1.66666667e-1f;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    int32_t bits;
    memcpy(&bits, &whole, 4);
    bits = (bits - 0x4b400000 + 127) << 23;
    memcpy(&by, &bits, 4);
    return x < -87.0f ? 0.0f : sum * by;
}

/* New tokens of rows, [tokens][heads][dim], those of row r from first[r] to first[r + 1]. A row has its own keys and values,
 * [rows][heads][held][dim], `lengths[r]` before the new ones, which are written behind them. It may continue a prompt that others
 * continue too, [prompts][heads][width][dim]; rows of group g are members[bounds[g]] to members[bounds[g + 1]], and continue prompt
 * prompt[g], or none where that is below 0. */
typedef struct {
    const float *query, *key, *value;
    float *out, *keys, *values;
    const float *prompt_keys, *prompt_values;
    Int query_token, query_head, key_token, key_head, value_token, value_head; /* strides of the new tokens */
    Int row, head, prompt_row, prompt_head;                                      /* and of what is kept */
    const Int *first, *lengths, *members, *bounds, *prompt, *prompt_lengths;
    Int groups, heads, kv_heads, dim, window, threads; /* window 0: everything before is seen */
    float scale, cap;                                  /* cap 0: none */
} Call;

enum { KEYS = 16 }; /* of a block */

static inline Floats of(const float *x, Int d, Int dim) { return d + LANES <= dim ? loaded(x + d) : part(x + d, dim - d); }

/* Products of a query with some keys, WIDE at a time. */
static inline __attribute__((always_inline)) void products(const float *query, const float *keys, Int count, const Int dim, float *out) {
    for (Int k = 0; k < count; k += WIDE) {
        Int wide = count - k < WIDE ? count - k : WIDE;
        const float *at[WIDE];
        Floats sums[WIDE];
        for (int c = 0; c < WIDE; c++) at[c] = keys + (k + (c < wide ? c : wide - 1)) * dim, sums[c] = (Floats){0};
        for (Int d = 0; d < dim; d += LANES) {
            Floats given = of(query, d, dim);
            for (int c = 0; c < WIDE; c++) sums[c] += given * of(at[c], d, dim);
        }
        Four found = added(sums[0], sums[1], sums[2], sums[3]);
        memcpy(out + k, &found, wide * sizeof *out);
    }
}

/* Add some values, each by its weight, to a sum. */
static inline __attribute__((always_inline)) void gathered(const float *weights, const float *values, Int count, const Int dim, float *sum) {
    for (Int d = 0; d < dim; d += LANES) {
        Floats found = of(sum, d, dim);
        for (Int k = 0; k < count; k++) found += weights[k] * of(values + k * dim, d, dim);
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

/* The rows of one group with one head of keys. `scores` has a row of `size` for each query: those of the prompt, then the own ones. */
static inline __attribute__((always_inline)) void attend(const Call *call, Int group, Int kv_head, const Int dim, float *scores, Int size) {
    Int sharing = call->heads / call->kv_heads, number = call->prompt[group], count = number < 0 ? 0 : call->prompt_lengths[number];
    Int start = (count + KEYS - 1) / KEYS * KEYS; /* of the own scores */
    const float *prompt_keys = call->prompt_keys + number * call->prompt_row + kv_head * call->prompt_head;
    const float *prompt_values = call->prompt_values + number * call->prompt_row + kv_head * call->prompt_head;
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
        float *keys = call->keys + *row * call->row + kv_head * call->head, *first = own;
        float *values = call->values + *row * call->row + kv_head * call->head;
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
    own = scores;
    for (const Int *row = begin; row < end; row++)
        QUERIES(*row) memset(call->out + (t * call->heads + h) * dim, 0, dim * sizeof(float));
    for (Int k = 0; k < count; k += KEYS) {
        own = scores;
        for (const Int *row = begin; row < end; row++)
            QUERIES(*row)
                gathered(own + k, prompt_values + k * dim, smaller(KEYS, count - k), dim, call->out + (t * call->heads + h) * dim);
    }
    own = scores;
    for (const Int *row = begin; row < end; row++) {
        Int total = call->lengths[*row] + call->first[*row + 1] - call->first[*row];
        const float *values = call->values + *row * call->row + kv_head * call->head;
        float *first = own;
        for (Int k = 0; k < total; k += KEYS) {
            own = first;
            QUERIES(*row)
                gathered(own + start + k, values + k * dim, smaller(KEYS, total - k), dim, call->out + (t * call->heads + h) * dim);
        }
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
        float *scores = malloc((queries * size + 1) * sizeof *scores);
        if (!scores) failed = 1;
        else if (call->dim == 64) attend(call, group, head, 64, scores, size);
        else if (call->dim == 128) attend(call, group, head, 128, scores, size);
        else attend(call, group, head, call->dim, scores, size);
        free(scores);
    }
    return failed;
}
int gym_call_bytes(void) { return sizeof(Call); }
