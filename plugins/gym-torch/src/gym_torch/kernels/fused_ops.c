/* What a layer does between its matrix products, in one pass over memory each, forward and backward: norms, gated activations,
 * rotary positions, and log-probabilities of labels.
 *
 * Numbers are fp32 or bf16 in memory and fp32 in between. A row is the work of one thread, and what is added over rows is added
 * block by block in one order: bits of a result depend neither on threads nor on how many rows there are beside.
 * NaN and infinities come out where the definitions have them.
 */
#include "scalars.h"
#include <math.h>
#include <stdlib.h>

typedef uint16_t Half; /* bf16 */

enum { BLOCK = 128, WORTH = 1 << 15 }; /* rows of a block; numbers below which one thread does it all */

static inline float widen(Half number) { return of_bits((uint32_t)number << 16); }

static inline Half narrow(float number) { /* to the nearest, ties to even */
    uint32_t bits = bits_of(number);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

static inline float get_Half(Half number) { return widen(number); }
static inline float get_float(float number) { return number; }
static inline Half put_Half(float number) { return narrow(number); }
static inline float put_float(float number) { return number; }

static inline float sigmoid(float x) { /* 1 / (1 + e^-x) without overflow */
    float small = power(x < 0 ? x : -x);
    return (x < 0 ? small : 1.0f) / (1.0f + small);
}

/* RMSNorm (arXiv:1910.07467, equation 4): out = x / sqrt(mean(x^2) + eps) * weight, row by row; `inverse` keeps 1 / sqrt(...). */
#define NORM(IN, OUT)                                                                                                          \
    static void norm_##IN##_##OUT(const IN *x, const float *weight, OUT *out, float *inverse, Int rows, Int dim, float eps,    \
                                  int threads) {                                                                               \
        _Pragma("omp parallel for num_threads(threads) if (rows * dim > WORTH)") for (Int r = 0; r < rows; r++) {              \
            const IN *from = x + r * dim;                                                                                      \
            OUT *to = out + r * dim;                                                                                           \
            float sum = 0;                                                                                                     \
            _Pragma("omp simd reduction(+ : sum)") for (Int i = 0; i < dim; i++) sum += get_##IN(from[i]) * get_##IN(from[i]); \
            float by = 1.0f / sqrtf(sum / (float)dim + eps);                                                                   \
            inverse[r] = by;                                                                                                   \
            _Pragma("omp simd") for (Int i = 0; i < dim; i++) to[i] = put_##OUT(get_##IN(from[i]) * by * weight[i]);           \
        }                                                                                                                      \
    }

/* Its gradients: with n = x * inverse and g = d_out * weight, d_x = inverse * (g - n * mean(g * n)), and d_weight is the sum over rows
 * of d_out * n. `parts` [blocks][dim], or 0 where the weight is frozen. */
#define NORM_BACK(IN, OUT)                                                                                                     \
    static void norm_back_##IN##_##OUT(const IN *x, const float *weight, const OUT *d_out, const float *inverse, IN *d_x,      \
                                       float *parts, Int rows, Int dim, int threads) {                                         \
        _Pragma("omp parallel for num_threads(threads) if (rows * dim > WORTH)") for (Int b = 0; b < rows; b += BLOCK) {       \
            float *part = parts ? parts + b / BLOCK * dim : 0;                                                                 \
            if (part) memset(part, 0, dim * sizeof(float));                                                                    \
            for (Int r = b; r < rows && r < b + BLOCK; r++) {                                                                  \
                const IN *from = x + r * dim;                                                                                  \
                const OUT *by_out = d_out + r * dim;                                                                           \
                IN *to = d_x + r * dim;                                                                                        \
                float by = inverse[r], sum = 0;                                                                                \
                _Pragma("omp simd reduction(+ : sum)") for (Int i = 0; i < dim; i++) sum +=                                    \
                    get_##OUT(by_out[i]) * weight[i] * get_##IN(from[i]);                                                      \
                float pull = sum * by * by / (float)dim;                                                                       \
                if (part) {                                                                                                    \
                    _Pragma("omp simd") for (Int i = 0; i < dim; i++) {                                                        \
                        float one = get_##IN(from[i]), given = get_##OUT(by_out[i]);                                           \
                        part[i] += given * (one * by);                                                                         \
                        to[i] = put_##IN(by * (given * weight[i] - one * pull));                                               \
                    }                                                                                                          \
                } else {                                                                                                       \
                    _Pragma("omp simd") for (Int i = 0; i < dim; i++) to[i] =                                                  \
                        put_##IN(by * (get_##OUT(by_out[i]) * weight[i] - get_##IN(from[i]) * pull));                          \
                }                                                                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
    }

/* gate * sigmoid(s(gate)) * up: SiLU with s(x) = x (arXiv:2002.05202, equation 6), and GELU in its approximation by tanh with
 * s(x) = 2 sqrt(2 / pi) (x + 0.044715 x^3) (arXiv:1606.08415, section 2). */
static inline float inside(float x, int tanh) { return tanh ? 1.59576912f * (x + 0.044715f * x * x * x) : x; }
static inline float slope(float x, int tanh) { return tanh ? 1.59576912f * (1.0f + 0.134145f * x * x) : 1.0f; }

#define GATED(T)                                                                                                               \
    static inline void gated_row_##T(const T *gate, const T *up, T *out, Int dim, int tanh) {                                  \
        _Pragma("omp simd") for (Int i = 0; i < dim; i++) {                                                                    \
            float x = get_##T(gate[i]);                                                                                        \
            out[i] = put_##T(x * sigmoid(inside(x, tanh)) * get_##T(up[i]));                                                   \
        }                                                                                                                      \
    }                                                                                                                          \
    static inline void gated_back_row_##T(const T *gate, const T *up, const T *d_out, T *d_gate, T *d_up, Int dim, int tanh) { \
        _Pragma("omp simd") for (Int i = 0; i < dim; i++) {                                                                    \
            float x = get_##T(gate[i]), by = get_##T(d_out[i]), s = sigmoid(inside(x, tanh));                                  \
            d_up[i] = put_##T(by * (x * s));                                                                                   \
            d_gate[i] = put_##T(by * get_##T(up[i]) * (s + x * s * (1.0f - s) * slope(x, tanh)));                              \
        }                                                                                                                      \
    }                                                                                                                          \
    static void gated_##T(const T *gate, Int gate_row, const T *up, Int up_row, T *out, Int rows, Int dim, int tanh,           \
                          int threads) {                                                                                       \
        _Pragma("omp parallel for num_threads(threads) if (rows * dim > WORTH)") for (Int r = 0; r < rows; r++) {              \
            if (tanh) gated_row_##T(gate + r * gate_row, up + r * up_row, out + r * dim, dim, 1);                              \
            else gated_row_##T(gate + r * gate_row, up + r * up_row, out + r * dim, dim, 0);                                   \
        }                                                                                                                      \
    }                                                                                                                          \
    static void gated_back_##T(const T *gate, Int gate_row, const T *up, Int up_row, const T *d_out, T *d_gate, T *d_up,       \
                               Int rows, Int dim, int tanh, int threads) {                                                     \
        _Pragma("omp parallel for num_threads(threads) if (rows * dim > WORTH)") for (Int r = 0; r < rows; r++) {              \
            const T *g = gate + r * gate_row, *u = up + r * up_row, *d = d_out + r * dim;                                      \
            if (tanh) gated_back_row_##T(g, u, d, d_gate + r * dim, d_up + r * dim, dim, 1);                                   \
            else gated_back_row_##T(g, u, d, d_gate + r * dim, d_up + r * dim, dim, 0);                                        \
        }                                                                                                                      \
    }

/* Rotary positions (arXiv:2104.09864, equation 34, halves in place of pairs): [batch][heads][tokens][dim] with strides, into
 * [batch][tokens][heads][dim]; the first `turned` numbers of a head turn. The gradient turns back. */
#define TURN(IN, OUT)                                                                                                          \
    static void turn_##IN##_##OUT(const IN *x, const Int *stride, const float *cos, const float *sin, const Int *along,        \
                                  OUT *out, const Int *size, Int turned, int back, int threads) {                              \
        Int heads = size[1], tokens = size[2], dim = size[3], half = turned / 2;                                               \
        _Pragma("omp parallel for num_threads(threads) if (size[0] * heads * tokens * dim > WORTH)")                           \
        for (Int row = 0; row < size[0] * tokens; row++) {                                                                     \
            Int b = row / tokens, t = row % tokens;                                                                            \
            const float *c = cos + b * along[0] + t * along[1], *s = sin + b * along[0] + t * along[1];                        \
            for (Int h = 0; h < heads; h++) {                                                                                  \
                const IN *from = x + b * stride[0] + h * stride[1] + t * stride[2];                                            \
                OUT *to = out + (row * heads + h) * dim;                                                                       \
                if (back) {                                                                                                    \
                    _Pragma("omp simd") for (Int i = 0; i < half; i++) {                                                       \
                        float one = get_##IN(from[i]), other = get_##IN(from[i + half]);                                       \
                        to[i] = put_##OUT(one * c[i] + other * s[i + half]);                                                   \
                        to[i + half] = put_##OUT(other * c[i + half] - one * s[i]);                                            \
                    }                                                                                                          \
                } else {                                                                                                       \
                    _Pragma("omp simd") for (Int i = 0; i < half; i++) {                                                       \
                        float one = get_##IN(from[i]), other = get_##IN(from[i + half]);                                       \
                        to[i] = put_##OUT(one * c[i] - other * s[i]);                                                          \
                        to[i + half] = put_##OUT(other * c[i + half] + one * s[i + half]);                                     \
                    }                                                                                                          \
                }                                                                                                              \
                for (Int i = turned; i < dim; i++) to[i] = put_##OUT(get_##IN(from[i]));                                       \
            }                                                                                                                  \
        }                                                                                                                      \
    }

/* log p(label) of rows of logits, which become p - 1 at the label and p elsewhere where `residual` is asked for, in place. */
#define LABELS(T)                                                                                                              \
    static void labels_##T(T *logits, const Int *labels, float *scores, Int rows, Int size, int residual, int threads) {       \
        _Pragma("omp parallel for num_threads(threads) if (rows * size > WORTH)") for (Int r = 0; r < rows; r++) {             \
            T *row = logits + r * size;                                                                                        \
            float most = -INFINITY, sum = 0, own = get_##T(row[labels[r]]);                                                    \
            _Pragma("omp simd reduction(max : most)") for (Int i = 0; i < size; i++) {                                         \
                float x = get_##T(row[i]);                                                                                     \
                most = x > most ? x : most;                                                                                    \
            }                                                                                                                  \
            _Pragma("omp simd reduction(+ : sum)") for (Int i = 0; i < size; i++) sum += power(get_##T(row[i]) - most);        \
            float whole = logf(sum);                                                                                           \
            scores[r] = (own - most) - whole;                                                                                  \
            if (!residual) continue;                                                                                           \
            float share = 1.0f / sum;                                                                                          \
            _Pragma("omp simd") for (Int i = 0; i < size; i++) row[i] = put_##T(power(get_##T(row[i]) - most) * share);        \
            row[labels[r]] = put_##T(power(own - most) * share - 1.0f);                                                        \
        }                                                                                                                      \
    }

NORM(float, float) NORM(Half, float) NORM(Half, Half) NORM(float, Half)
NORM_BACK(float, float) NORM_BACK(Half, float) NORM_BACK(Half, Half) NORM_BACK(float, Half)
GATED(float) GATED(Half)
TURN(float, float) TURN(float, Half) TURN(Half, float) TURN(Half, Half)
LABELS(float) LABELS(Half)

/* By the widths of numbers in memory: 0 is fp32, 1 is bf16. */
#define BY_TWO(name, in, out, ...)                                                                                             \
    ((in) ? (out) ? name##_Half_Half(__VA_ARGS__) : name##_Half_float(__VA_ARGS__)                                             \
          : (out) ? name##_float_Half(__VA_ARGS__) : name##_float_float(__VA_ARGS__))
#define BY_ONE(name, half, ...) ((half) ? name##_Half(__VA_ARGS__) : name##_float(__VA_ARGS__))

void gym_norm(int in, int to, void *x, void *weight, void *out, void *inverse, Int rows, Int dim, float eps, int threads) {
    BY_TWO(norm, in, to, x, weight, out, inverse, rows, dim, eps, threads);
}

int gym_norm_back(int in, int to, void *x, void *weight, void *d_out, void *inverse, void *d_x, float *d_weight, Int rows,
                  Int dim, int threads) {
    Int blocks = (rows + BLOCK - 1) / BLOCK;
    float *parts = d_weight ? malloc((blocks ? blocks : 1) * dim * sizeof(float)) : 0;
    if (d_weight && !parts) return 1;
    BY_TWO(norm_back, in, to, x, weight, d_out, inverse, d_x, parts, rows, dim, threads);
    if (d_weight) {
        memset(d_weight, 0, dim * sizeof(float));
        for (Int b = 0; b < blocks; b++)
            for (Int i = 0; i < dim; i++) d_weight[i] += parts[b * dim + i];
    }
    free(parts);
    return 0;
}

void gym_gated(int half, void *gate, Int gate_row, void *up, Int up_row, void *out, Int rows, Int dim, int tanh, int threads) {
    BY_ONE(gated, half, gate, gate_row, up, up_row, out, rows, dim, tanh, threads);
}

void gym_gated_back(int half, void *gate, Int gate_row, void *up, Int up_row, void *d_out, void *d_gate, void *d_up, Int rows,
                    Int dim, int tanh, int threads) {
    BY_ONE(gated_back, half, gate, gate_row, up, up_row, d_out, d_gate, d_up, rows, dim, tanh, threads);
}

/* `shape` holds three strides of x in numbers, two of cos and sin, four sizes and how many numbers of a head turn. */
void gym_turn(int in, int to, void *x, void *cos, void *sin, void *out, const Int *shape, int back, int threads) {
    BY_TWO(turn, in, to, x, shape, cos, sin, shape + 3, out, shape + 5, shape[9], back, threads);
}

int gym_labels(int half, void *logits, const Int *labels, float *scores, Int rows, Int size, int residual, int threads) {
    for (Int r = 0; r < rows; r++)
        if (labels[r] < 0 || labels[r] >= size) return 1;
    BY_ONE(labels, half, logits, labels, scores, rows, size, residual, threads);
    return 0;
}
