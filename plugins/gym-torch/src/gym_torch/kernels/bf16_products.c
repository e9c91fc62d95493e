/* Sums of products of matrices in bf16, `scale left right + left right + ... + bias`: sums are fp32, and rounded once.
 *
 * Processors have an instruction that multiplies two pairs of numbers and adds both to a sum. So right factors are laid out in such pairs
 * first (`Word`), 64 columns after another. A block of 6 rows and 64 columns of what comes out is 24 registers of sums. Sums are added
 * up in one order, so bits of a row depend neither on threads nor on other rows.
 */
#include "scalars.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

typedef uint16_t Half; /* bf16 */
typedef uint32_t Word; /* two of them */
typedef Word __attribute__((aligned(2), may_alias)) Anywhere;

enum { ROWS = 6, WIDE = 64, LANES = 16, MOST = 192, GROUP = 8, WHOLE = 1024, PART = 256 };
/* MOST: rows, and GROUP: times 64 columns that one thread computes at once. Sums of more than WHOLE words are added up in parts, so
 * that both factors of a part stay in a cache. */

static inline Int least(Int a, Int b) { return a < b ? a : b; }
static inline Int parts_of(Int size, Int part) { return (size + part - 1) / part; }
static inline __mmask16 first(Int count) { return count <= 0 ? 0 : count >= LANES ? 0xffff : (1u << count) - 1; }

typedef struct {
    const Half *left; /* [rows][depth], an even number of them where rows are apart */
    const void *right; /* [depth][columns], or with `along` [columns][depth]; bf16, or fp32 where `wide` */
    Int left_stride, right_stride, depth, along, wide;
    Word *laid; /* the right factor as [columns / 64][depth / 2][64] */
} Product;

typedef struct {
    Int rows, columns, count;
    const Half *bias; /* [columns], or 0 */
    Half *out;
    float *scratch; /* MOST times GROUP times 64 for each thread */
    float scale;
    Product products[4];
} Sum;

static inline __m256i numbers(const Product *from, Int i, Int j, Int count) { /* as bf16, the first `count` of them, then zeros */
    Int where = i * from->right_stride + j;
    if (from->wide) return (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(first(count), (const float *)from->right + where));
    return _mm256_maskz_loadu_epi16(first(count), (const Half *)from->right + where);
}

/* Lays out 64 columns of a right factor; those beyond are zeros. */
static void lay(const Product *from, Int panel, Int columns) {
    Int depth = from->depth, words = parts_of(depth, 2);
    __m512i down = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 4);
    for (Int c = 0; c < WIDE; c += LANES) {
        Int column = panel * WIDE + c, count = columns - column;
        Word *to = from->laid + panel * words * WIDE + c;
        for (Int k = 0; !from->along && k < words; k++) {
            __m512i pairs = _mm512_cvtepu16_epi32(numbers(from, 2 * k, column, count));
            if (2 * k + 1 < depth) pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers(from, 2 * k + 1, column, count)), 16));
            _mm512_storeu_si512(to + k * WIDE, pairs);
        }
        for (Int k = 0; from->along && k < words; k += LANES) { /* words are there, and rows of them become columns */
            Word square[LANES * LANES] __attribute__((aligned(64)));
            for (Int n = 0; n < LANES; n++) {
                __m512i row = _mm512_setzero_si512();
                if (n < count) {
                    row = _mm512_castsi256_si512(numbers(from, column + n, 2 * k, depth - 2 * k));
                    row = _mm512_inserti64x4(row, numbers(from, column + n, 2 * k + LANES, depth - 2 * k - LANES), 1);
                }
                _mm512_store_si512(square + n * LANES, row);
            }
            for (Int n = 0; n < least(LANES, words - k); n++)
                _mm512_storeu_si512(to + (k + n) * WIDE, _mm512_i32gather_epi32(down, square + n, 4));
        }
    }
}

/* Where 6 rows of 64 sums go: they are kept, or written as `rows` rows of `columns` numbers. */
typedef struct {
    float *kept, scale;
    Half *out;
    const Half *bias;
    Int rows, columns, width;
    int fresh;
} Tile;

static inline __m512 added(const Half *bias, __mmask16 there, __m512 sum) {
    return _mm512_add_ps(sum, (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, bias)), 16));
}

/* For each register of sums, written out: compilers keep them in memory otherwise. */
#define EACH _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++) _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)

/* Adds the product of some words to sums. A function of its own, for what else is at hand would take registers. */
static __attribute__((noinline)) void add(const Tile *to, const char *left, Int down, const Word *right, Int words) {
    __m512 sums[ROWS][4];
    if (to->fresh) EACH sums[i][j] = _mm512_setzero_ps();
    else EACH sums[i][j] = _mm512_loadu_ps(to->kept + i * WIDE + j * LANES);
    for (const Word *end = right + words * WIDE; right < end; right += WIDE, left += sizeof(Word)) {
        __m512bh columns[4];
        for (int j = 0; j < 4; j++) columns[j] = (__m512bh)_mm512_loadu_si512(right + j * LANES);
        EACH sums[i][j] = _mm512_dpbf16_ps(sums[i][j], (__m512bh)_mm512_set1_epi32(*(const Anywhere *)(left + i * down)), columns[j]);
    }
    if (to->scale != 1) EACH sums[i][j] = _mm512_mul_ps(sums[i][j], _mm512_set1_ps(to->scale));
    if (!to->out) {
        EACH _mm512_storeu_ps(to->kept + i * WIDE + j * LANES, sums[i][j]);
        return;
    }
    if (to->bias) EACH sums[i][j] = added(to->bias + j * LANES, first(to->columns - j * LANES), sums[i][j]);
    if (to->rows >= ROWS && to->columns >= WIDE) { /* without masks, which take as long as a tenth of the product */
        _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++) _Pragma("GCC unroll 2") for (int j = 0; j < 4; j += 2)
            _mm512_storeu_si512(to->out + i * to->width + j * LANES, (__m512i)_mm512_cvtne2ps_pbh(sums[i][j + 1], sums[i][j]));
        return;
    }
    EACH if (i < to->rows)
        _mm256_mask_storeu_epi16(to->out + i * to->width + j * LANES, first(to->columns - j * LANES), (__m256i)_mm512_cvtneps_pbh(sums[i][j]));
}

/* Computes rows from `row` on, which may be fewer than 6. */
static void tile(const Tile *to, const Product *from, Int row, Int word, Int words, const Word *right) {
    Int down = from->left_stride * sizeof(Half);
    const char *left = (const char *)from->left + row * down + word * sizeof(Word);
    Word few[ROWS][WHOLE];
    if (to->rows >= ROWS) {
        add(to, left, down, right, words);
        return;
    }
    memset(few, 0, sizeof few);
    for (Int i = 0; i < to->rows; i++) memcpy(few[i], left + i * down, words * sizeof(Word));
    add(to, (const char *)few, sizeof few[0], right, words);
}

/* Computes some rows, from `top` on, of some times 64 columns. */
static void task(const Sum *sum, Int top, Int rows, Int begin, Int end, Int at_once, float *kept) {
    for (int p = 0; p < sum->count; p++) {
        const Product *from = sum->products + p;
        Int all = parts_of(from->depth, 2);
        for (Int k = 0; k < all; k += at_once) {
            Int words = least(at_once, all - k), whole = k + words == all;
            for (Int panel = begin; panel < end; panel++) {
                Int column = panel * WIDE;
                Tile to = {.fresh = p == 0 && k == 0, .scale = p == 0 && whole ? sum->scale : 1, .width = sum->columns, .columns = sum->columns - column};
                to.bias = sum->bias ? sum->bias + column : 0;
                for (Int r = 0; r < rows; r += ROWS) {
                    to.kept = kept + ((panel - begin) * MOST + r) * WIDE;
                    to.rows = rows - r;
                    to.out = whole && p + 1 == sum->count ? sum->out + (top + r) * sum->columns + column : 0;
                    tile(&to, from, top + r, k, words, from->laid + (panel * all + k) * WIDE);
                }
            }
        }
    }
}

void gym_sum(const Sum *sum, int threads) {
    Int panels = parts_of(sum->columns, WIDE), groups = parts_of(panels, GROUP), words = 0;
    for (int p = 0; p < sum->count; p++) words += parts_of(sum->products[p].depth, 2);
    Int at_once = words > WHOLE ? PART : WHOLE, together = words > WHOLE ? GROUP : 1;
    Int most = least(MOST, parts_of(parts_of(sum->rows * groups, 4 * threads), ROWS) * ROWS); /* all threads get some */
    Int blocks = parts_of(sum->rows, most);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic)
        for (Int n = 0; n < panels * sum->count; n++) lay(sum->products + n / panels, n % panels, sum->columns);
        float *kept = sum->scratch + (Int)omp_get_thread_num() * MOST * GROUP * WIDE;
#pragma omp for schedule(dynamic)
        for (Int n = 0; n < blocks * groups; n++) {
            Int top = n / groups * most, from = n % groups * GROUP, end = least(panels, from + GROUP);
            for (Int panel = from; panel < end; panel += together)
                task(sum, top, least(most, sum->rows - top), panel, least(end, panel + together), at_once, kept);
        }
    }
}
#endif
