/* Exact Hamming search over one segment (distinct codes, their postings and chunk tables), and the
 * counts by distance that scores are computed from.
 *
 * Codes are stored as rows of `stride` bytes: one 32-bit word, or 64-bit words. The order of words is
 * the lexicographic order of the packed bytes; unused low bits are 0 (segment.py packs them).
 *
 * A query is answered in one of two ways, both exact:
 *   tables  multi-index hashing: look up the codes that agree with the query in some 16-bit chunk up
 *           to a few flips, cheapest lookup first; stop when it would cost more than a fraction of
 *           the scan;
 *   scan    all codes, tile by tile; a tile stays in the L1 cache while all queries are compared.
 * Both feed the same counting selection: candidates are stored with their distance, a histogram
 * counts them, and the threshold falls as soon as k candidates are below it. Nothing is sorted until
 * the end, and almost all codes fail one vector comparison.
 * If bits have weights, codes are ranked by cost, the sum of the weights of differing bits. The scan
 * compares a lower bound of the cost, four masked popcounts, and computes the cost of the few codes
 * that pass. The tables look up the values of each chunk by their cost: a code that was not seen costs
 * at least the sum of what was looked up in each.
 *
 * Only the inner filters differ between CPUs; they are selected at run time.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <pthread.h>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define TILE_BYTES 16384 /* half of a typical L1 data cache; the rest is for query state */
#define GROUP 64         /* queries that share one pass over the codes */
#define CHUNKS 65536     /* values of a 16-bit chunk */
#define MOST_TABLES 64
#define BLIND 0.2 /* fraction of the budget for finding any k items */
#define MOST_THREADS 64

enum { NO_MEMORY = 1, DAMAGED = 2 }; /* reasons for failure; DAMAGED: corrupt arrays */

typedef struct {
    uint32_t row;
    uint32_t distance;
} Hit;

typedef struct {
    const uint8_t *codes;
    uint32_t count, stride;
    const uint32_t *offsets; /* postings of row i: [offsets[i], offsets[i+1]); NULL: item i itself */
    const void *ids;
    int wide; /* ids are int64, else uint32 */
    uint64_t items;
    uint32_t tables;        /* number of chunk tables; table 0 is the sorted order of the codes */
    const uint32_t *starts; /* tables x (CHUNKS + 1) */
    const uint32_t *orders; /* (tables - 1) x count: rows by the value of their chunk */
    /* Deleted items; NULL: none. Bitmaps, so that 64 neighbors are skipped in one step. */
    uint64_t *dead_items; /* by position in ids */
    uint64_t *dead_rows;  /* (tables or 1) x words_of(count): by position in the order of each table;
                             only rows without any other item */
} Segment;

INLINE size_t words_of(uint64_t bits) { return (size_t)((bits + 63) / 64); }

INLINE int is_set(const uint64_t *bits, uint64_t at) { return bits[at / 64] >> at % 64 & 1; }

/* Return the first position >= at whose bit is not set, or `to`. */
INLINE uint64_t next_clear(const uint64_t *bits, uint64_t at, uint64_t to) {
    while (at < to) {
        uint64_t clear = ~bits[at / 64] >> at % 64;
        if (clear) {
            at += (uint64_t)__builtin_ctzll(clear);
            return at < to ? at : to;
        }
        at = (at / 64 + 1) * 64;
    }
    return to;
}

/* Return the number of bits set in [from, to). */
static uint64_t count_set(const uint64_t *bits, uint64_t from, uint64_t to) {
    if (from >= to) return 0;
    uint64_t first = from / 64, last = (to - 1) / 64, n = 0;
    uint64_t head = UINT64_MAX << from % 64, tail = UINT64_MAX >> (63 - (to - 1) % 64);
    if (first == last) return (uint64_t)__builtin_popcountll(bits[first] & head & tail);
    n = (uint64_t)__builtin_popcountll(bits[first] & head) +
        (uint64_t)__builtin_popcountll(bits[last] & tail);
    for (uint64_t word = first + 1; word < last; word++)
        n += (uint64_t)__builtin_popcountll(bits[word]);
    return n;
}

/* ---- distances ---------------------------------------------------------------------------- */

INLINE uint64_t word64(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
}

INLINE uint32_t word32(const uint8_t *bytes) {
    uint32_t word;
    memcpy(&word, bytes, 4);
    return word;
}

INLINE uint32_t distance(const uint8_t *code, const uint8_t *query, uint32_t stride) {
    if (stride == 4) return (uint32_t)__builtin_popcount(word32(code) ^ word32(query));
    uint32_t sum = 0;
    for (uint32_t at = 0; at < stride; at += 8)
        sum += (uint32_t)__builtin_popcountll(word64(code + at) ^ word64(query + at));
    return sum;
}

INLINE uint32_t chunk(const uint8_t *code, uint32_t stride, uint32_t j) {
    if (stride == 4) return (word32(code) >> (16 - 16 * j)) & 0xffff;
    return (uint32_t)(word64(code + 8 * (j >> 2)) >> (48 - 16 * (j & 3))) & 0xffff;
}

/* ---- filters: rows of a tile no farther than `limit`, written to `hits` --------------------- */

typedef uint32_t (*Filter)(const uint8_t *codes, uint32_t n, const uint8_t *query, uint32_t stride,
                           uint32_t limit, Hit *hits);

/* Rows [from, to) one by one; branch-free, because it also runs where hits are dense. */
INLINE uint32_t each(const uint8_t *codes, uint32_t from, uint32_t to, const uint8_t *query,
                     uint32_t stride, uint32_t limit, Hit *hits, uint32_t found) {
    for (uint32_t i = from; i < to; i++) {
        uint32_t d = distance(codes + (size_t)i * stride, query, stride);
        hits[found].row = i;
        hits[found].distance = d;
        found += d <= limit;
    }
    return found;
}

#define ARGS \
    const uint8_t *codes, uint32_t n, const uint8_t *query, uint32_t stride, uint32_t limit, Hit *hits

/* A vector filter computes the smallest distance of a block; only a block with a hit is scanned again
 * row by row. One comparison and one branch per block, and no order of lanes to restore. */
#define VECTOR_FILTER(NAME, TARGET, STRIDE, BLOCK, PREPARE, ANY_HIT)                              \
    TARGET static uint32_t NAME(ARGS) {                                                           \
        uint32_t i = 0, found = 0;                                                                \
        (void)stride;                                                                             \
        PREPARE;                                                                                  \
        for (; i + (BLOCK) <= n; i += (BLOCK)) {                                                  \
            const uint8_t *p = codes + (size_t)i * (STRIDE);                                      \
            if (__builtin_expect(ANY_HIT, 0))                                                     \
                found = each(codes, i, i + (BLOCK), query, STRIDE, limit, hits, found);           \
        }                                                                                         \
        return each(codes, i, n, query, STRIDE, limit, hits, found);                              \
    }

#define PLAIN_FILTER(NAME, TARGET) \
    TARGET static uint32_t NAME(ARGS) { return each(codes, 0, n, query, stride, limit, hits, 0); }

PLAIN_FILTER(plain_any, )

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vpopcntdq,popcnt,bmi")))
#define AVX2 __attribute__((target("avx2,popcnt,bmi")))
#define POPCNT __attribute__((target("popcnt")))

#define X512(at) _mm512_xor_si512(_mm512_loadu_si512(p + (at)), q)
#define POP32(at) _mm512_popcnt_epi32(X512(at))
#define POP64(at) _mm512_popcnt_epi64(X512(at))
/* Blocks of 256 bytes: with 512 a single scan fell from 97% of memory bandwidth to 65%. */
#define MIN4_512(suffix, a, b, c, d) \
    _mm512_min_##suffix(_mm512_min_##suffix(a, b), _mm512_min_##suffix(c, d))
/* sums of adjacent 64-bit lanes of two vectors; the order does not matter */
#define PAIRS512(a, b) _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))

AVX512 INLINE __m512i pair512(const uint8_t *p, __m512i q) {
    __m512i a = POP64(0), b = POP64(64);
    return PAIRS512(a, b);
}

AVX512 INLINE __m512i quad512(const uint8_t *p, __m512i q) {
    __m512i a = pair512(p, q), b = pair512(p + 128, q);
    return _mm512_add_epi64(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

VECTOR_FILTER(avx512_4, AVX512, 4, 64,
              __m512i q = _mm512_set1_epi32((int)word32(query));
              __m512i most = _mm512_set1_epi32((int)limit),
              _mm512_cmple_epu32_mask(MIN4_512(epu32, POP32(0), POP32(64), POP32(128), POP32(192)),
                                      most))
VECTOR_FILTER(avx512_8, AVX512, 8, 32,
              __m512i q = _mm512_set1_epi64((long long)word64(query));
              __m512i most = _mm512_set1_epi64(limit),
              _mm512_cmple_epu64_mask(MIN4_512(epu64, POP64(0), POP64(64), POP64(128), POP64(192)),
                                      most))
VECTOR_FILTER(avx512_16, AVX512, 16, 16,
              __m512i q = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)query));
              __m512i most = _mm512_set1_epi64(limit),
              _mm512_cmple_epu64_mask(_mm512_min_epu64(pair512(p, q), pair512(p + 128, q)), most))
VECTOR_FILTER(avx512_32, AVX512, 32, 8,
              __m512i q = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)query));
              __m512i most = _mm512_set1_epi64(limit),
              _mm512_cmple_epu64_mask(quad512(p, q), most))

/* AVX2 has no popcount: two table lookups give it for each byte, sad sums eight bytes. */
AVX2 INLINE __m256i bytes256(const uint8_t *p, __m256i q) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,
                                           0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    __m256i x = _mm256_xor_si256(_mm256_loadu_si256((const void *)p), q);
    return _mm256_add_epi8(
        _mm256_shuffle_epi8(table, _mm256_and_si256(x, low)),
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), low)));
}

AVX2 INLINE __m256i pop32_256(const uint8_t *p, __m256i q) {
    const __m256i ones = _mm256_set1_epi8(1), words = _mm256_set1_epi16(1);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(bytes256(p, q), ones), words);
}

AVX2 INLINE __m256i pop64_256(const uint8_t *p, __m256i q) {
    return _mm256_sad_epu8(bytes256(p, q), _mm256_setzero_si256());
}

AVX2 INLINE __m256i pair256(const uint8_t *p, __m256i q) {
    __m256i a = pop64_256(p, q), b = pop64_256(p + 32, q);
    return _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

AVX2 INLINE __m256i quad256(const uint8_t *p, __m256i q) {
    __m256i a = pair256(p, q), b = pair256(p + 64, q);
    return _mm256_add_epi64(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}

/* Distances are small, so the 32-bit minimum also works for 64-bit lanes. */
#define MIN4_256(a, b, c, d) _mm256_min_epi32(_mm256_min_epi32(a, b), _mm256_min_epi32(c, d))
#define BELOW32(x) _mm256_movemask_epi8(_mm256_cmpgt_epi32(above, x))
#define BELOW64(x) _mm256_movemask_epi8(_mm256_cmpgt_epi64(above, x))

VECTOR_FILTER(avx2_4, AVX2, 4, 32,
              __m256i q = _mm256_set1_epi32((int)word32(query));
              __m256i above = _mm256_set1_epi32((int)limit + 1),
              BELOW32(MIN4_256(pop32_256(p, q), pop32_256(p + 32, q), pop32_256(p + 64, q),
                               pop32_256(p + 96, q))))
VECTOR_FILTER(avx2_8, AVX2, 8, 16,
              __m256i q = _mm256_set1_epi64x((long long)word64(query));
              __m256i above = _mm256_set1_epi64x((long long)limit + 1),
              BELOW64(MIN4_256(pop64_256(p, q), pop64_256(p + 32, q), pop64_256(p + 64, q),
                               pop64_256(p + 96, q))))
VECTOR_FILTER(avx2_16, AVX2, 16, 16,
              __m256i q = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)query));
              __m256i above = _mm256_set1_epi64x((long long)limit + 1),
              BELOW64(MIN4_256(pair256(p, q), pair256(p + 64, q), pair256(p + 128, q),
                               pair256(p + 192, q))))
VECTOR_FILTER(avx2_32, AVX2, 32, 8,
              __m256i q = _mm256_loadu_si256((const void *)query);
              __m256i above = _mm256_set1_epi64x((long long)limit + 1),
              BELOW64(_mm256_min_epi32(quad256(p, q), quad256(p + 128, q))))
PLAIN_FILTER(popcnt_any, POPCNT)
#endif

#if defined(__aarch64__)
INLINE uint32x4_t pop32_neon(const uint8_t *p, uint8x16_t q) {
    return vpaddlq_u16(vpaddlq_u8(vcntq_u8(veorq_u8(vld1q_u8(p), q))));
}

INLINE uint32x4_t pop64_neon(const uint8_t *p, uint8x16_t q) { /* sums of pairs: two codes per call */
    uint32x4_t a = pop32_neon(p, q), b = pop32_neon(p + 16, q);
    return vpaddq_u32(a, b);
}

INLINE uint32x4_t pop128_neon(const uint8_t *p, uint8x16_t q) {
    return vpaddq_u32(pop64_neon(p, q), pop64_neon(p + 32, q));
}

#define MIN4_NEON(a, b, c, d) vminq_u32(vminq_u32(a, b), vminq_u32(c, d))
VECTOR_FILTER(neon_4, , 4, 16, uint8x16_t q = vreinterpretq_u8_u32(vdupq_n_u32(word32(query))),
              vminvq_u32(MIN4_NEON(pop32_neon(p, q), pop32_neon(p + 16, q), pop32_neon(p + 32, q),
                                   pop32_neon(p + 48, q))) <= limit)
VECTOR_FILTER(neon_8, , 8, 16, uint8x16_t q = vreinterpretq_u8_u64(vdupq_n_u64(word64(query))),
              vminvq_u32(MIN4_NEON(pop64_neon(p, q), pop64_neon(p + 32, q), pop64_neon(p + 64, q),
                                   pop64_neon(p + 96, q))) <= limit)
VECTOR_FILTER(neon_16, , 16, 16, uint8x16_t q = vld1q_u8(query),
              vminvq_u32(MIN4_NEON(pop128_neon(p, q), pop128_neon(p + 64, q),
                                   pop128_neon(p + 128, q), pop128_neon(p + 192, q))) <= limit)
#endif

/* ---- weights ------------------------------------------------------------------------------ */

#define MASKS 4

typedef struct {
    uint64_t *sums;  /* (2 stride, 16): sum of the weights of the bits in each value of a half byte */
    uint64_t total;  /* of all weights */
    uint32_t bits;
    const int64_t *weights; /* (bits,) */
    /* Weights rounded to steps, so that the popcounts n of the difference under four masks give a
     * lower bound: ((n0 + 2 n1 + 4 n2 + factor n3) x step - slack) x unit <= cost. */
    uint8_t *masks; /* (MASKS, stride) */
    uint32_t factor, step, slack;
    uint64_t unit;
    uint32_t *scaled, low, high; /* (bits,): weights in units; the smallest and largest */
} Price; /* of one query */

typedef struct {
    uint64_t cost, items;
    uint32_t row, distance;
} Priced;

static int by_cost(const void *a, const void *b) {
    const Priced *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
    return (x->distance > y->distance) - (x->distance < y->distance);
}

#define SAMPLE 64
#define STEPS 16383 /* of rounded weights: a product with a popcount fits into 32 bits */

typedef struct {
    uint32_t base, step, levels; /* weights that can be represented: base + 0 to `levels` steps */
    float share;                 /* of the bits that differ, as expected */
} Rounding;

/* Return the number of steps for weight w. Rounding down loses the rest where the bit differs, up the
 * excess where it does not, because all excesses are subtracted from each sum. */
INLINE uint32_t level_of(Rounding r, uint32_t w) {
    float steps = (float)(w - r.base) * (1.0f / (float)r.step) + r.share + 0.001f;
    return steps < (float)r.levels ? (uint32_t)steps : r.levels;
}

/* Either 16 multiples of a step, or a multiple near the smallest weight and 8 more, if that is much.
 * The step that loses least is chosen. */
static void bound_set(Price *p, uint32_t stride, float share) {
    uint32_t width = stride == 4 ? 4 : 8, base = 8 * p->low > p->high ? p->low : 0;
    Rounding best = {0}, r = {0, 1, base ? 7 : 15, share};
    float least_loss = 1e30f;
    for (uint32_t i = 0; i < 9; i += 3) {
        float loss = 0;
        r.step = (p->high - base) * (16 - i) / (16 * r.levels);
        if (!r.step) r.step = 1;
        r.base = base - base % r.step;
        for (uint32_t b = 0; b < p->bits; b++) {
            int32_t rest = (int32_t)(p->scaled[b] - r.base - r.step * level_of(r, p->scaled[b]));
            loss += (float)rest * (rest > 0 ? share : share - 1);
        }
        if (loss < least_loss) least_loss = loss, best = r;
    }
    p->step = best.step;
    p->factor = base ? best.base / best.step : 8;
    memset(p->masks, 0, (size_t)MASKS * stride);
    p->slack = 0;
    for (uint32_t b = 0; b < p->bits; b++) {
        uint32_t level = level_of(best, p->scaled[b]), rounded = best.base + level * best.step;
        uint32_t byte = b / 8, at = byte / width * width + width - 1 - byte % width;
        if (rounded > p->scaled[b]) p->slack += rounded - p->scaled[b];
        if (base) level |= 8;
        for (uint32_t i = 0; i < MASKS; i++)
            if (level >> i & 1) p->masks[i * stride + at] |= (uint8_t)(128 >> b % 8);
    }
}

INLINE uint32_t bound(const Price *p, const uint8_t *code, const uint8_t *query, uint32_t stride) {
    const uint8_t *m = p->masks;
    uint32_t n[MASKS] = {0};
    if (stride == 4) {
        uint32_t x = word32(code) ^ word32(query);
        for (uint32_t i = 0; i < MASKS; i++)
            n[i] = (uint32_t)__builtin_popcount(x & word32(m + 4 * i));
    } else
        for (uint32_t at = 0; at < stride; at += 8) {
            uint64_t x = word64(code + at) ^ word64(query + at);
            for (uint32_t i = 0; i < MASKS; i++)
                n[i] += (uint32_t)__builtin_popcountll(x & word64(m + i * stride + at));
        }
    return n[0] + 2 * n[1] + 4 * n[2] + p->factor * n[3];
}

/* The largest sum of a code whose cost is at most `worst`. */
INLINE uint32_t most_bound(const Price *p, uint64_t worst) {
    uint64_t most = worst / p->unit;
    return most < INT32_MAX / 2 ? ((uint32_t)most + p->slack) / p->step : INT32_MAX / 2;
}

/* Weight i belongs to bit i of the packed code, whose bytes are in a word highest first. */
static void price_set(Price *p, const int64_t *weights, uint32_t stride) {
    uint32_t width = stride == 4 ? 4 : 8;
    p->weights = weights;
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t b = 0; b < p->bits; b++) {
        uint64_t w = (uint64_t)weights[b];
        if (w < least) least = w;
        if (w > most) most = w;
    }
    p->unit = most / STEPS + 1;
    p->low = (uint32_t)(least / p->unit);
    p->high = (uint32_t)(most / p->unit);
    for (uint32_t b = 0; b < p->bits; b++)
        p->scaled[b] = (uint32_t)((uint64_t)weights[b] / p->unit);
    for (uint32_t at = 0; at < 2 * stride; at++) {
        uint64_t *sums = p->sums + (size_t)at * 16;
        uint32_t byte = at / 2, first = 8 * (byte / width * width + width - 1 - byte % width);
        sums[0] = 0;
        for (uint32_t v = 1; v < 16; v++) {
            uint32_t bit = first + 7 - 4 * (at % 2) - (uint32_t)__builtin_ctz(v);
            sums[v] = sums[v & (v - 1)] + (bit < p->bits ? (uint64_t)weights[bit] : 0);
        }
    }
    p->total = 0;
    for (uint32_t b = 0; b < p->bits; b++) p->total += (uint64_t)weights[b];
}

INLINE uint64_t priced(const uint64_t *sums, const uint8_t *code, const uint8_t *query,
                       uint32_t stride) {
    uint64_t cost = 0;
    for (uint32_t at = 0; at < stride; at++, sums += 32) {
        uint32_t x = code[at] ^ query[at];
        cost += sums[x & 15] + sums[16 + (x >> 4)];
    }
    return cost;
}

static uint64_t price_of(const Price *p, const uint8_t *code, const uint8_t *query,
                         uint32_t stride) {
    if (stride == 4) return priced(p->sums, code, query, 4);
    if (stride == 8) return priced(p->sums, code, query, 8);
    if (stride == 16) return priced(p->sums, code, query, 16);
    if (stride == 32) return priced(p->sums, code, query, 32);
    return priced(p->sums, code, query, stride);
}

/* Return the share of the weights that the cheapest of a few codes costs. */
static double share_of(const Price *p, const Segment *g, const uint8_t *query) {
    uint64_t least = p->total;
    uint32_t step = g->count / SAMPLE + 1;
    for (uint32_t row = 0; row < g->count; row += step) {
        uint64_t cost = price_of(p, g->codes + (size_t)row * g->stride, query, g->stride);
        if (cost < least) least = cost;
    }
    return p->total ? (double)least / (double)p->total : 0;
}

/* ---- filters: rows of a tile whose bound is at most `limit`, written to `rows` --------------- */

#define PRICED_ARGS                                                                               \
    const Price *price, const uint8_t *codes, uint32_t n, const uint8_t *query, uint32_t stride,  \
        uint32_t limit, uint32_t *rows

typedef uint32_t (*PricedFilter)(PRICED_ARGS);

INLINE uint32_t each_priced(const Price *price, const uint8_t *codes, uint32_t from, uint32_t to,
                            const uint8_t *query, uint32_t stride, uint32_t limit, uint32_t *rows,
                            uint32_t found) {
    for (uint32_t i = from; i < to; i++) {
        rows[found] = i;
        found += bound(price, codes + (size_t)i * stride, query, stride) <= limit;
    }
    return found;
}

/* HITS: a mask of the lanes of a block with a hit; lane i belongs to row ORDER(i) of the block. */
#define PRICED_FILTER(NAME, TARGET, STRIDE, BLOCK, PREPARE, HITS, ORDER)                          \
    TARGET static uint32_t NAME(PRICED_ARGS) {                                                    \
        uint32_t i = 0, found = 0;                                                                \
        (void)stride;                                                                             \
        PREPARE;                                                                                  \
        for (; i + (BLOCK) <= n; i += (BLOCK)) {                                                  \
            const uint8_t *p = codes + (size_t)i * (STRIDE);                                      \
            uint32_t hits = (uint32_t)(HITS);                                                     \
            while (__builtin_expect(hits != 0, 0)) {                                              \
                uint32_t lane = (uint32_t)__builtin_ctz(hits);                                    \
                rows[found++] = i + (ORDER);                                                      \
                hits &= hits - 1;                                                                 \
            }                                                                                     \
        }                                                                                         \
        return each_priced(price, codes, i, n, query, STRIDE, limit, rows, found);                \
    }

#define PLAIN_PRICED_FILTER(NAME, TARGET)                                                         \
    TARGET static uint32_t NAME(PRICED_ARGS) {                                                    \
        return each_priced(price, codes, 0, n, query, stride, limit, rows, 0);                    \
    }

PLAIN_PRICED_FILTER(plain_priced, )

#if defined(__x86_64__)
/* The sum for each lane; a popcount is in the lowest 16 bits of its lane. */
#define SUM_OF_POPCOUNTS(BITS, COUNT, x)                                                          \
    n2 = COUNT(x, mask2), n1 = COUNT(x, mask1);                                                   \
    n1 = _mm##BITS##_add_epi32(n1, _mm##BITS##_add_epi32(n2, n2));                                \
    n3 = _mm##BITS##_madd_epi16(COUNT(x, mask3), factor);                                         \
    n0 = _mm##BITS##_add_epi32(COUNT(x, mask0), n3);                                              \
    return _mm##BITS##_add_epi32(n0, _mm##BITS##_add_epi32(n1, n1))
#define MASKS_AND_FACTOR(vector) vector mask0, vector mask1, vector mask2, vector mask3, vector factor
#define PASSED mask0, mask1, mask2, mask3, factor
#define COUNT512(x, mask) _mm512_popcnt_epi64(_mm512_and_si512(x, mask))
#define COUNT512_32(x, mask) _mm512_popcnt_epi32(_mm512_and_si512(x, mask))
AVX512 INLINE __m512i sum512(__m512i x, MASKS_AND_FACTOR(__m512i)) {
    __m512i n0, n1, n2, n3;
    SUM_OF_POPCOUNTS(512, COUNT512, x);
}
AVX512 INLINE __m512i sum512_32(__m512i x, MASKS_AND_FACTOR(__m512i)) {
    __m512i n0, n1, n2, n3;
    SUM_OF_POPCOUNTS(512, COUNT512_32, x);
}
#define SUM512(at) sum512(X512(at), PASSED)
#define SUM512_32(at) sum512_32(X512(at), PASSED)
#define PAIR_SUM512(at) PAIRS512(SUM512(at), SUM512((at) + 64))
#define PREPARE512(SET, LANES)                                                                    \
    __m512i q = SET(query), most = _mm512_set1_##LANES(limit);                                    \
    __m512i mask0 = SET(price->masks), mask1 = SET(price->masks + stride),                        \
            mask2 = SET(price->masks + 2 * stride), mask3 = SET(price->masks + 3 * stride);       \
    __m512i factor = _mm512_set1_##LANES(price->factor)
#define SET512_4(at) _mm512_set1_epi32((int)word32(at))
#define SET512_8(at) _mm512_set1_epi64((long long)word64(at))
#define SET512_16(at) _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(at)))
#define SET512_32(at) _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(at)))

AVX512 INLINE __m512i quads512(__m512i a, __m512i b) {
    return _mm512_add_epi64(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

#define UP_TO_MOST(lanes, x) _mm512_cmple_##lanes##_mask(x, most)
PRICED_FILTER(avx512_priced_4, AVX512, 4, 32, PREPARE512(SET512_4, epi32),
              UP_TO_MOST(epu32, SUM512_32(0)) | (uint32_t)UP_TO_MOST(epu32, SUM512_32(64)) << 16,
              lane)
PRICED_FILTER(avx512_priced_8, AVX512, 8, 16, PREPARE512(SET512_8, epi64),
              UP_TO_MOST(epu64, SUM512(0)) | (uint32_t)UP_TO_MOST(epu64, SUM512(64)) << 8, lane)
PRICED_FILTER(avx512_priced_16, AVX512, 16, 16, PREPARE512(SET512_16, epi64),
              UP_TO_MOST(epu64, PAIR_SUM512(0)) |
                  (uint32_t)UP_TO_MOST(epu64, PAIR_SUM512(128)) << 8,
              (lane & 8) + (lane & 1) * 4 + (lane >> 1 & 3))
PRICED_FILTER(avx512_priced_32, AVX512, 32, 8, PREPARE512(SET512_32, epi64),
              UP_TO_MOST(epu64, quads512(PAIR_SUM512(0), PAIR_SUM512(128))),
              (lane & 4) + (lane & 1) * 2 + (lane >> 1 & 1))

AVX2 INLINE __m256i bytes_of256(__m256i x) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,
                                           0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    return _mm256_add_epi8(
        _mm256_shuffle_epi8(table, _mm256_and_si256(x, low)),
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), low)));
}
#define COUNT256(x, mask)                                                                         \
    _mm256_sad_epu8(bytes_of256(_mm256_and_si256(x, mask)), _mm256_setzero_si256())
AVX2 INLINE __m256i sum256(const uint8_t *p, __m256i q, MASKS_AND_FACTOR(__m256i)) {
    __m256i n0, n1, n2, n3, x = _mm256_xor_si256(_mm256_loadu_si256((const void *)p), q);
    SUM_OF_POPCOUNTS(256, COUNT256, x);
}
#define SUM256(at) sum256(p + (at), q, PASSED)
AVX2 INLINE __m256i pairs256(__m256i a, __m256i b) {
    return _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}
AVX2 INLINE __m256i quads256(__m256i a, __m256i b) {
    return _mm256_add_epi64(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}
#define PREPARE256(SET)                                                                           \
    __m256i q = SET(query), above = _mm256_set1_epi64x((long long)limit + 1);                     \
    __m256i mask0 = SET(price->masks), mask1 = SET(price->masks + stride),                        \
            mask2 = SET(price->masks + 2 * stride), mask3 = SET(price->masks + 3 * stride);       \
    __m256i factor = _mm256_set1_epi64x(price->factor)
#define SET256_8(at) _mm256_set1_epi64x((long long)word64(at))
#define SET256_16(at) _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(at)))
#define SET256_32(at) _mm256_loadu_si256((const void *)(at))
#define UP_TO_256(x) _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(above, x)))
PRICED_FILTER(avx2_priced_8, AVX2, 8, 4, PREPARE256(SET256_8), UP_TO_256(SUM256(0)), lane)
PRICED_FILTER(avx2_priced_16, AVX2, 16, 4, PREPARE256(SET256_16),
              UP_TO_256(pairs256(SUM256(0), SUM256(32))), (lane & 1) * 2 + (lane >> 1))
PRICED_FILTER(avx2_priced_32, AVX2, 32, 4, PREPARE256(SET256_32),
              UP_TO_256(quads256(pairs256(SUM256(0), SUM256(32)),
                                 pairs256(SUM256(64), SUM256(96)))),
              lane)
PLAIN_PRICED_FILTER(popcnt_priced, POPCNT)
#endif

/* ---- counting selection ------------------------------------------------------------------- */

typedef struct {
    uint64_t k;      /* requested items; UINT64_MAX: all within the limit */
    uint32_t limit;  /* rows farther away are not in the result */
    uint64_t total;  /* items at distance <= limit so far */
    uint64_t *seen;  /* items by distance */
    Hit *hits;
    size_t used, room;
    int failed;      /* NO_MEMORY or DAMAGED */
    uint64_t examined; /* rows whose distance was computed */
    /* With weights: */
    const Price *price; /* NULL: rank by distance; the fields below are unused */
    const uint8_t *query;
    uint64_t worst;     /* rows of higher cost are not in the result */
    Priced *priced;     /* used instead of hits */
    size_t settled;     /* number of entries after the last selection */
} Selector;

static void selector_reset(Selector *s, uint32_t most, uint64_t k, uint32_t limit) {
    memset(s->seen, 0, (most + 1) * sizeof *s->seen);
    s->k = k;
    s->limit = limit;
    s->total = 0;
    s->used = s->settled = 0;
}

static void selector_shrink(Selector *s) {
    size_t kept = 0;
    for (size_t i = 0; i < s->used; i++)
        if (s->hits[i].distance <= s->limit) s->hits[kept++] = s->hits[i];
    s->used = kept;
}

/* Return the array with room for `needed` > 0 elements, and twice that if it had to move; NULL if
 * there is no memory, and then the array is unchanged. */
INLINE void *grown(void *array, size_t *room, size_t needed, size_t size) {
    size_t bytes;
    if (needed <= *room) return array;
    if (__builtin_mul_overflow(needed, 2 * size, &bytes)) return NULL;
    void *moved = realloc(array, bytes);
    if (moved) *room = 2 * needed;
    return moved;
}

static int selector_make_room(Selector *s) {
    selector_shrink(s);
    if (s->used * 2 < s->room) return 1;
    Hit *hits = grown(s->hits, &s->room, s->used + 2048, sizeof *hits);
    if (hits) s->hits = hits;
    else s->failed = NO_MEMORY;
    return hits != NULL;
}

/* Items of a row that are not deleted. */
INLINE uint64_t items_of(const Segment *g, uint32_t row) {
    if (!g->offsets) return !g->dead_items || !is_set(g->dead_items, row);
    uint64_t from = g->offsets[row], to = g->offsets[row + 1];
    return to - from - (g->dead_items ? count_set(g->dead_items, from, to) : 0);
}

/* Drop the priced rows that have k cheaper items before them: quicksort of the part with the k-th. */
static void settle(Selector *s) {
    if (s->settled == s->used || s->total < s->k) return;
    Priced *a = s->priced;
    size_t from = 0, to = s->used;
    uint64_t wanted = s->k; /* items in [from, to) */
    for (;;) {
        uint64_t x = a[from].cost, y = a[from + (to - from) / 2].cost, z = a[to - 1].cost;
        uint64_t pivot = x < y ? (y < z ? y : (x < z ? z : x)) : (x < z ? x : (y < z ? z : y));
        size_t low = from, high = to; /* cheaper before low, dearer from high */
        uint64_t cheaper = 0, equal = 0;
        for (size_t i = from; i < high;) {
            Priced entry = a[i];
            if (entry.cost < pivot) {
                cheaper += entry.items;
                a[i++] = a[low];
                a[low++] = entry;
            } else if (entry.cost > pivot) {
                a[i] = a[--high];
                a[high] = entry;
            } else {
                equal += entry.items;
                i++;
            }
        }
        if (cheaper >= wanted) to = low;
        else if (cheaper + equal >= wanted) {
            s->worst = pivot;
            s->used = s->settled = high;
            s->total = s->k - wanted + cheaper + equal;
            return;
        } else {
            wanted -= cheaper + equal;
            from = high;
        }
    }
}

/* Whether enough rows were added since the last selection to make it worthwhile. */
INLINE int settles(const Selector *s) { return s->used - s->settled > 24 + s->settled / 4; }

/* Add a row that is offered once. */
static void add_priced(Selector *s, uint64_t cost, uint64_t items, uint32_t row, uint32_t d) {
    if (s->used == s->room) {
        settle(s);
        if (cost > s->worst) return;
        Priced *moved = grown(s->priced, &s->room, s->used + 128, sizeof *moved);
        if (!moved) {
            s->failed = NO_MEMORY;
            return;
        }
        s->priced = moved;
    }
    s->priced[s->used++] = (Priced){cost, items, row, d};
    s->total += items;
}

/* Return the items of a row that are not deleted; 0 as well if the offsets are corrupt. */
INLINE uint64_t checked_items(Selector *s, const Segment *g, uint32_t row) {
    if (g->offsets && (g->offsets[row] >= g->offsets[row + 1] || g->offsets[row + 1] > g->items)) {
        s->failed = DAMAGED;
        return 0;
    }
    return items_of(g, row);
}

static void offer_priced(Selector *s, const Segment *g, uint32_t row) {
    const uint8_t *code = g->codes + (size_t)row * g->stride;
    uint64_t cost = price_of(s->price, code, s->query, g->stride), items;
    if (cost <= s->worst && (items = checked_items(s, g, row)))
        add_priced(s, cost, items, row, distance(code, s->query, g->stride));
}

INLINE void offer(Selector *s, const Segment *g, uint32_t row, uint32_t d) {
    uint64_t weight = 1;
    if (d > s->limit) return;
    if ((g->offsets || g->dead_items) && !(weight = checked_items(s, g, row))) return;
    if (s->used == s->room && !selector_make_room(s)) return;
    s->hits[s->used].row = row;
    s->hits[s->used++].distance = d;
    s->seen[d] += weight;
    s->total += weight;
    while (s->total - s->seen[s->limit] >= s->k) s->total -= s->seen[s->limit--];
}

/* ---- multi-index hashing ------------------------------------------------------------------ */

static uint16_t flips[CHUNKS];       /* 16-bit values by number of ones */
static uint32_t flips_of[18];        /* values with s ones: [flips_of[s], flips_of[s + 1]) */

static void list_flips(void) {
    uint32_t at = 0;
    for (int ones = 0; ones <= 16; ones++) {
        flips_of[ones] = at;
        for (uint32_t v = 0; v < CHUNKS; v++)
            if (__builtin_popcount(v) == ones) flips[at++] = (uint16_t)v;
    }
    flips_of[17] = at;
}

/* Return whether another table has already yielded the row; saves a mark for every row. */
INLINE int met_before(const Segment *g, const uint8_t *code, const uint8_t *query, uint32_t table,
                      const int32_t *probed) {
    for (uint32_t t = 0; t < g->tables; t++) {
        if (t == table || probed[t] < 0) continue;
        int32_t d = __builtin_popcount(chunk(code, g->stride, t) ^ chunk(query, g->stride, t));
        if (d <= probed[t]) return 1;
    }
    return 0;
}

INLINE void look(Selector *sel, const Segment *g, const uint8_t *query, uint32_t row,
                 uint32_t table, const int32_t *probed) {
    const uint8_t *code = g->codes + (size_t)row * g->stride;
    uint32_t d = distance(code, query, g->stride);
    if (d <= sel->limit && !met_before(g, code, query, table, probed)) offer(sel, g, row, d);
}

/* Estimated ns of a random access to the codes. */
INLINE double jump_of(const Segment *g) {
    double jump = (double)g->count * g->stride / 1e7;
    return jump < 1.5 ? 1.5 : jump > 20 ? 20 : jump;
}

/* Estimated ns to compare the rows of a bucket with the query. Measured: a row in sorted order takes
 * 1, any other 1.5 (cached) to 20; the first ones of a bucket three times that, as they are not
 * fetched ahead. */
INLINE double bucket_cost(const Segment *g, uint32_t t, uint32_t value, double jump) {
    const uint32_t *starts = g->starts + (size_t)t * (CHUNKS + 1);
    uint32_t from = starts[value], to = starts[value + 1];
    double rows = to - from;
    if (g->dead_rows && to <= g->count)
        rows -= (double)count_set(g->dead_rows + t * words_of(g->count), from, to);
    return 12 + 4 * jump + (t ? jump : 1.0) * rows + 2 * jump * (rows < 16 ? rows : 16);
}

/* The same for all rows that differ from the query by exactly s bits in chunk t. */
INLINE double cost_of(const Segment *g, const uint8_t *query, uint32_t t, int32_t s, double left) {
    if (s > 16 || 4.0 * (flips_of[s + 1] - flips_of[s]) > left) return 1e30;
    uint32_t key = chunk(query, g->stride, t);
    double jump = jump_of(g), cost = 0;
    for (uint32_t f = flips_of[s]; f < flips_of[s + 1]; f++)
        cost += bucket_cost(g, t, key ^ flips[f], jump);
    return cost;
}

/* Return 0 if the arrays are corrupt. */
INLINE int probe_table(const Segment *g, const uint8_t *query, Selector *sel, uint32_t t, int32_t s,
                       const int32_t *probed) {
    const uint32_t *starts = g->starts + (size_t)t * (CHUNKS + 1);
    const uint32_t *order = t ? g->orders + (size_t)(t - 1) * g->count : NULL;
    const uint64_t *dead = g->dead_rows ? g->dead_rows + t * words_of(g->count) : NULL;
    uint32_t key = chunk(query, g->stride, t);
    for (uint32_t f = flips_of[s]; f < flips_of[s + 1]; f++) {
        uint32_t from = starts[key ^ flips[f]], to = starts[(key ^ flips[f]) + 1];
        if (from > to || to > g->count) return 0;
        for (uint32_t i = from; i < to; i++) {
            if (dead && (i = (uint32_t)next_clear(dead, i, to)) == to) break;
            sel->examined++;
            uint32_t row = i;
            if (order) {
                if (i + 24 < to) __builtin_prefetch(g->codes + (size_t)order[i + 24] * g->stride);
                row = order[i];
                if (row >= g->count) return 0;
            }
            look(sel, g, query, row, t, probed);
        }
    }
    return 1;
}

/* Return 1 if the result is complete, 0 if the tables would cost more than `budget` (in ns).
 *
 * A code not seen yet differs by more than probed[t] bits in every chunk t, hence by at least their
 * sum + tables. Each step adds one to that bound, so the cheapest step is the best one. */
INLINE int probe_body(const Segment *g, const uint8_t *query, Selector *sel, double budget) {
    int32_t probed[MOST_TABLES];
    double cost[MOST_TABLES], spent = 0;
    for (uint32_t t = 0; t < g->tables; t++) {
        probed[t] = -1;
        cost[t] = cost_of(g, query, t, 0, budget);
    }
    for (uint32_t found_below = 1;; found_below++) {
        uint32_t t = 0;
        for (uint32_t other = 1; other < g->tables; other++)
            if (cost[other] < cost[t]) t = other;
        spent += cost[t];
        /* Later steps cost at least as much as this one, and each adds one. */
        if (sel->total < sel->k && sel->k < UINT64_MAX
                ? spent > BLIND * budget
                : spent + ((double)sel->limit - found_below) * cost[t] > budget)
            return 0;
        if (!probe_table(g, query, sel, t, probed[t] + 1, probed)) sel->failed = DAMAGED;
        probed[t]++;
        if (sel->failed || sel->limit < found_below) return 1;
        if (probed[t] < 16) spent += 4.0 * (flips_of[probed[t] + 2] - flips_of[probed[t] + 1]);
        cost[t] = cost_of(g, query, t, probed[t] + 1, budget - spent);
    }
}

/* ---- multi-index hashing with weights ------------------------------------------------------ */

#define MOST_FLIPS 512  /* of one step */
#define MOST_HEAP 4096

typedef struct {
    uint64_t cost;
    uint16_t flips; /* bits by which the chunk differs from the query's */
    uint16_t last;  /* the dearest of them, by rank */
} Subset;

/* The values of a chunk by the cost of their difference to the query's, in steps. */
typedef struct {
    uint64_t weight[16]; /* ascending */
    uint16_t bit[16];
    uint32_t bits;
    uint32_t waiting;       /* subsets in the heap */
    uint64_t below, beyond; /* all values that cost less were probed; and after the next step */
    uint32_t ready;         /* values of the next step */
    double cost;            /* of the next step, in ns */
    uint16_t step[MOST_FLIPS];
    Subset heap[MOST_HEAP];
} Walk;

static void heap_push(Walk *w, Subset subset) {
    uint32_t at = w->waiting++;
    for (uint32_t up; at && w->heap[up = (at - 1) / 2].cost > subset.cost; at = up)
        w->heap[at] = w->heap[up];
    w->heap[at] = subset;
}

static Subset heap_pop(Walk *w) {
    Subset top = w->heap[0], last = w->heap[--w->waiting];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < w->waiting; at = child) {
        if (child + 1 < w->waiting && w->heap[child + 1].cost < w->heap[child].cost) child++;
        if (w->heap[child].cost >= last.cost) break;
        w->heap[at] = w->heap[child];
    }
    w->heap[at] = last;
    return top;
}

static void walk_begin(Walk *w, const Price *price, uint32_t t) {
    w->bits = 0;
    for (uint32_t i = 0; i < 16 && 16 * t + i < price->bits; i++) {
        uint64_t weight = (uint64_t)price->weights[16 * t + i];
        uint32_t at = w->bits++;
        for (; at && w->weight[at - 1] > weight; at--) {
            w->weight[at] = w->weight[at - 1];
            w->bit[at] = w->bit[at - 1];
        }
        w->weight[at] = weight;
        w->bit[at] = (uint16_t)(0x8000 >> i);
    }
    w->waiting = 0;
    w->below = 0;
    heap_push(w, (Subset){0, 0, UINT16_MAX});
}

/* Collect the values of the next step: those that cost less than `stride` more than all before. Each
 * subset of bits follows from a cheaper one by adding the next bit, or by exchanging the last for it. */
static void walk_plan(Walk *w, const Segment *g, const uint8_t *query, uint32_t t, uint64_t step) {
    uint32_t key = chunk(query, g->stride, t);
    uint64_t limit = w->below + step;
    double jump = jump_of(g);
    w->cost = 0;
    w->ready = 0;
    while (w->waiting && w->heap[0].cost < limit) {
        if (w->ready == MOST_FLIPS || w->waiting + 2 > MOST_HEAP) {
            w->beyond = w->below + 1;
            w->cost = 1e30;
            return;
        }
        Subset s = heap_pop(w);
        uint32_t next = (uint16_t)(s.last + 1);
        if (next < w->bits) {
            uint16_t added = s.flips | w->bit[next];
            heap_push(w, (Subset){s.cost + w->weight[next], added, (uint16_t)next});
            if (next)
                heap_push(w, (Subset){s.cost + w->weight[next] - w->weight[next - 1],
                                      added & (uint16_t)~w->bit[next - 1], (uint16_t)next});
        }
        w->cost += bucket_cost(g, t, key ^ s.flips, jump);
        w->step[w->ready++] = s.flips;
    }
    w->beyond = w->waiting ? w->heap[0].cost : UINT64_MAX;
}

/* Return whether another table has already yielded the row. */
INLINE int walked_before(const Segment *g, const Price *price, const uint8_t *code,
                         const uint8_t *query, const Walk *walks, uint32_t table) {
    for (uint32_t t = 0; t < g->tables; t++) {
        if (t == table || !walks[t].below) continue;
        uint32_t x = chunk(code, g->stride, t) ^ chunk(query, g->stride, t), at;
        if (g->stride == 4) at = 2 - 2 * t;
        else at = 8 * (t >> 2) + 6 - 2 * (t & 3);
        const uint64_t *sums = price->sums + (size_t)at * 32; /* of four half bytes, lowest first */
        if (sums[x & 15] + sums[16 + (x >> 4 & 15)] + sums[32 + (x >> 8 & 15)] +
                sums[48 + (x >> 12)] < walks[t].below)
            return 1;
    }
    return 0;
}

/* Return 0 if the arrays are corrupt. */
INLINE int probe_step(const Segment *g, const uint8_t *query, Selector *sel, const Walk *walks,
                      uint32_t t) {
    const Walk *w = &walks[t];
    const uint32_t *starts = g->starts + (size_t)t * (CHUNKS + 1);
    const uint32_t *order = t ? g->orders + (size_t)(t - 1) * g->count : NULL;
    const uint64_t *dead = g->dead_rows ? g->dead_rows + t * words_of(g->count) : NULL;
    uint32_t key = chunk(query, g->stride, t), most = most_bound(sel->price, sel->worst);
    for (uint32_t f = 0; f < w->ready; f++) {
        uint32_t from = starts[key ^ w->step[f]], to = starts[(key ^ w->step[f]) + 1];
        if (from > to || to > g->count) return 0;
        for (uint32_t i = from; i < to; i++) {
            if (dead && (i = (uint32_t)next_clear(dead, i, to)) == to) break;
            sel->examined++;
            uint32_t row = i;
            if (order) {
                if (i + 24 < to) __builtin_prefetch(g->codes + (size_t)order[i + 24] * g->stride);
                row = order[i];
                if (row >= g->count) return 0;
            }
            const uint8_t *code = g->codes + (size_t)row * g->stride;
            if (bound(sel->price, code, query, g->stride) > most) continue;
            uint64_t cost = price_of(sel->price, code, query, g->stride), items;
            if (cost > sel->worst || walked_before(g, sel->price, code, query, walks, t) ||
                !(items = checked_items(sel, g, row)))
                continue;
            add_priced(sel, cost, items, row, distance(code, query, g->stride));
            if (settles(sel)) {
                settle(sel);
                most = most_bound(sel->price, sel->worst);
            }
        }
    }
    return 1;
}

/* As below: a code not seen yet costs at least walks[t].below in every chunk t, hence their sum. */
INLINE int probe_priced_body(const Segment *g, const uint8_t *query, Selector *sel, double budget,
                             Walk *walks) {
    uint64_t step = sel->price->total / sel->price->bits / 4 + 1;
    uint64_t all = 0; /* no other code costs less */
    double spent = 0;
    for (uint32_t t = 0; t < g->tables; t++) {
        walk_begin(&walks[t], sel->price, t);
        walk_plan(&walks[t], g, query, t, step);
        spent += 20.0 * walks[t].ready;
    }
    for (;;) {
        uint32_t best = 0;
        for (uint32_t t = 1; t < g->tables; t++)
            if (walks[t].cost / (double)(walks[t].beyond - walks[t].below) <
                walks[best].cost / (double)(walks[best].beyond - walks[best].below)) best = t;
        Walk *w = &walks[best];
        spent += w->cost;
        /* Later steps add less per ns. */
        if (sel->total < sel->k ? spent > BLIND * budget
                                : spent + (double)(sel->worst - all) * w->cost /
                                              (double)(w->beyond - w->below) > budget)
            return 0;
        if (!probe_step(g, query, sel, walks, best)) sel->failed = DAMAGED;
        settle(sel);
        if (w->beyond == UINT64_MAX || sel->failed) return 1;
        w->below = w->beyond;
        all = 0;
        for (uint32_t t = 0; t < g->tables; t++) all += walks[t].below;
        if (all > sel->worst) return 1;
        walk_plan(w, g, query, best, step);
        spent += 20.0 * w->ready;
    }
}

typedef int (*PricedProbe)(const Segment *, const uint8_t *, Selector *, double, Walk *);
#define PRICED_PROBE(NAME, TARGET)                                                               \
    TARGET static int NAME(const Segment *g, const uint8_t *query, Selector *s, double budget,   \
                           Walk *walks) {                                                        \
        Segment fixed = *g;                                                                      \
        if (g->stride == 8) return fixed.stride = 8, probe_priced_body(&fixed, query, s, budget, walks);   \
        if (g->stride == 16) return fixed.stride = 16, probe_priced_body(&fixed, query, s, budget, walks); \
        return probe_priced_body(g, query, s, budget, walks);                                    \
    }
PRICED_PROBE(priced_probe_plain, )
#if defined(__x86_64__)
PRICED_PROBE(priced_probe_popcnt, POPCNT)
#endif

typedef int (*Probe)(const Segment *, const uint8_t *, Selector *, double);
/* A copy with a constant stride lets the compiler unroll the distance of common lengths. */
#define PROBE(NAME, TARGET)                                                                      \
    TARGET static int NAME(const Segment *g, const uint8_t *query, Selector *s, double budget) { \
        Segment fixed = *g;                                                                      \
        if (g->stride == 4) return fixed.stride = 4, probe_body(&fixed, query, s, budget);       \
        if (g->stride == 8) return fixed.stride = 8, probe_body(&fixed, query, s, budget);       \
        return probe_body(g, query, s, budget);                                                  \
    }
PROBE(probe_plain, )
#if defined(__x86_64__)
PROBE(probe_popcnt, POPCNT)
#endif

/* ---- counting by distance ----------------------------------------------------------------- */

/* Adjacent rows are counted in separate tables: an increment of the same counter has to wait for the
 * previous one, and codes of one cluster are at the same distance. */
#define LANES 8
#define COUNTED_BYTES 131072 /* codes that are counted for one query after another: fit in the L2 cache */

/* Add row i to counts[lane][2 distance + relevant] if it is known; bit i of the masks. */
INLINE void tally_rows(const uint8_t *codes, uint32_t n, const uint8_t *query, uint32_t stride,
                       uint32_t relevant, uint32_t known, uint32_t *restrict counts) {
    for (uint32_t j = 0; j < n; j++) {
        uint32_t d = distance(codes + (size_t)j * stride, query, stride);
        counts[j * 2 * (stride * 8 + 1) + 2 * d + (relevant >> j & 1)] += known >> j & 1;
    }
}

INLINE void tally_body(const uint8_t *codes, uint32_t n, const uint8_t *query, uint32_t stride,
                       const uint8_t *relevant, const uint8_t *known, uint32_t *restrict counts) {
    uint32_t i = 0;
    if (known)
        for (; i + LANES <= n; i += LANES)
            tally_rows(codes + (size_t)i * stride, LANES, query, stride, relevant[i / LANES],
                       known[i / LANES], counts);
    else
        for (; i + LANES <= n; i += LANES)
            tally_rows(codes + (size_t)i * stride, LANES, query, stride, relevant[i / LANES], 0xff,
                       counts);
    if (i < n)
        tally_rows(codes + (size_t)i * stride, n - i, query, stride, relevant[i / LANES],
                   known ? known[i / LANES] : 0xff, counts);
}

typedef void (*Tally)(const uint8_t *codes, uint32_t n, const uint8_t *query, uint32_t stride,
                      const uint8_t *relevant, const uint8_t *known, uint32_t *counts);
#define TALLY(NAME, TARGET)                                                                      \
    TARGET static void NAME(const uint8_t *codes, uint32_t n, const uint8_t *query,              \
                            uint32_t stride, const uint8_t *relevant, const uint8_t *known,      \
                            uint32_t *counts) {                                                  \
        if (stride == 4) tally_body(codes, n, query, 4, relevant, known, counts);                \
        else if (stride == 8) tally_body(codes, n, query, 8, relevant, known, counts);           \
        else if (stride == 16) tally_body(codes, n, query, 16, relevant, known, counts);         \
        else if (stride == 32) tally_body(codes, n, query, 32, relevant, known, counts);         \
        else tally_body(codes, n, query, stride, relevant, known, counts);                       \
    }
TALLY(tally_plain, )
#if defined(__x86_64__)
TALLY(tally_popcnt, POPCNT)

/* Compute the table cells of 256 rows at a time, then increment them, which alone takes half the time
 * of the loop above. Return how many rows were counted. */
AVX512 INLINE uint32_t tally_vectors(const uint8_t *codes, uint32_t n, const uint8_t *query,
                                     uint32_t stride, const uint8_t *relevant,
                                     uint32_t *restrict counts) {
    uint8_t cells[256];
    const __m128i one = _mm_set1_epi8(1);
    __m512i q = stride == 4 ? _mm512_set1_epi32((int)word32(query))
                            : _mm512_set1_epi64((long long)word64(query));
    uint32_t done = 0;
    for (; done + 256 <= n; done += 256) {
        for (uint32_t i = 0; i < 256; i += 16) {
            const uint8_t *p = codes + (size_t)(done + i) * stride;
            uint16_t mask;
            memcpy(&mask, relevant + (done + i) / 8, 2);
            __m128i d = stride == 4 ? _mm512_cvtepi32_epi8(POP32(0))
                                    : _mm_unpacklo_epi64(_mm512_cvtepi64_epi8(POP64(0)),
                                                         _mm512_cvtepi64_epi8(POP64(64)));
            d = _mm_add_epi8(d, d);
            _mm_storeu_si128((void *)(cells + i), _mm_mask_add_epi8(d, mask, d, one));
        }
        for (uint32_t i = 0; i < 256; i += LANES)
            for (uint32_t j = 0; j < LANES; j++) counts[j * 2 * (stride * 8 + 1) + cells[i + j]]++;
    }
    return done;
}

AVX512 static void tally_avx512(const uint8_t *codes, uint32_t n, const uint8_t *query,
                                uint32_t stride, const uint8_t *relevant, const uint8_t *known,
                                uint32_t *counts) {
    uint32_t done = 0;
    if (stride == 4 && !known) done = tally_vectors(codes, n, query, 4, relevant, counts);
    if (stride == 8 && !known) done = tally_vectors(codes, n, query, 8, relevant, counts);
    tally_popcnt(codes + (size_t)done * stride, n - done, query, stride, relevant + done / 8, known,
                 counts);
}
#endif

/* ---- which kernel ------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    Filter by4, by8, by16, by32, any;
    PricedFilter priced4, priced8, priced16, priced32, priced_any;
    Probe probe;
    PricedProbe priced_probe;
    Tally tally;
} Kernel;

static const Kernel kernels[] = {
#if defined(__x86_64__)
    {"avx512", avx512_4, avx512_8, avx512_16, avx512_32, popcnt_any, avx512_priced_4,
     avx512_priced_8, avx512_priced_16, avx512_priced_32, popcnt_priced, probe_popcnt, priced_probe_popcnt, tally_avx512},
    {"avx2", avx2_4, avx2_8, avx2_16, avx2_32, popcnt_any, popcnt_priced, avx2_priced_8,
     avx2_priced_16, avx2_priced_32, popcnt_priced, probe_popcnt, priced_probe_popcnt, tally_popcnt},
    {"popcnt", popcnt_any, popcnt_any, popcnt_any, popcnt_any, popcnt_any, popcnt_priced,
     popcnt_priced, popcnt_priced, popcnt_priced, popcnt_priced, probe_popcnt, priced_probe_popcnt, tally_popcnt},
#elif defined(__aarch64__)
    {"neon", neon_4, neon_8, neon_16, plain_any, plain_any, plain_priced, plain_priced,
     plain_priced, plain_priced, plain_priced, probe_plain, priced_probe_plain, tally_plain},
#endif
    {"portable", plain_any, plain_any, plain_any, plain_any, plain_any, plain_priced, plain_priced,
     plain_priced, plain_priced, plain_priced, probe_plain, priced_probe_plain, tally_plain},
};
static const Kernel *kernel;

#if defined(__x86_64__)
typedef struct {
    uint32_t a, b, c, d;
} Registers;

static Registers cpuid(uint32_t leaf) {
    Registers r;
    __asm__ volatile("cpuid" : "=a"(r.a), "=b"(r.b), "=c"(r.c), "=d"(r.d) : "a"(leaf), "c"(0));
    return r;
}

/* Vector registers that the system saves; an instruction alone does not make them usable. */
static uint32_t saved_registers(void) {
    uint32_t low = 0, high = 0;
    if (cpuid(1).c >> 27 & 1) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
#endif

/* Uses cpuid: clang for Microsoft's tools has no library for __builtin_cpu_supports. */
static int supported(const char *name) {
#if defined(__x86_64__)
    uint32_t saved = saved_registers();
    int popcnt = cpuid(1).c >> 23 & 1;
    Registers more = {0, 0, 0, 0};
    if (cpuid(0).a >= 7) more = cpuid(7);
    int avx2 = popcnt && (saved & 0x06) == 0x06 && (more.b >> 5 & 1) && (more.b >> 3 & 1); /* bmi */
    if (!strcmp(name, "popcnt")) return popcnt;
    if (!strcmp(name, "avx2")) return avx2;
    if (!strcmp(name, "avx512"))
        return avx2 && (saved & 0xe6) == 0xe6 && (more.b >> 16 & 1) && (more.b >> 30 & 1) && /* f, bw */
               (more.b >> 31 & 1) && (more.c >> 14 & 1);                          /* vl, vpopcntdq */
#endif
    (void)name;
    return 1;
}

static Filter filter_for(uint32_t stride) {
    switch (stride) {
    case 4: return kernel->by4;
    case 8: return kernel->by8;
    case 16: return kernel->by16;
    case 32: return kernel->by32;
    default: return kernel->any;
    }
}

static PricedFilter priced_filter_for(uint32_t stride) {
    switch (stride) {
    case 4: return kernel->priced4;
    case 8: return kernel->priced8;
    case 16: return kernel->priced16;
    case 32: return kernel->priced32;
    default: return kernel->priced_any;
    }
}

/* ---- scan, finish ------------------------------------------------------------------------- */

static void scan(const Segment *g, uint32_t from, uint32_t to, const uint8_t *const *queries,
                 Selector *const *selectors, uint32_t n, Hit *hits) {
    Filter filter = filter_for(g->stride);
    PricedFilter by_bound = priced_filter_for(g->stride);
    uint32_t full = TILE_BYTES / g->stride, tile = full < 64 ? full : 64;
    for (uint32_t at = from; at < to;) {
        uint32_t rows = to - at < tile ? to - at : tile;
        const uint8_t *codes = g->codes + (size_t)at * g->stride;
        for (uint32_t q = 0; q < n; q++) {
            Selector *s = selectors[q];
            s->examined += rows;
            if (s->price) {
                uint32_t *priced = (uint32_t *)hits, most = most_bound(s->price, s->worst);
                uint32_t found = by_bound(s->price, codes, rows, queries[q], g->stride, most, priced);
                for (uint32_t h = 0; h < found; h++) offer_priced(s, g, at + priced[h]);
                if (settles(s)) settle(s);
                continue;
            }
            uint32_t found = filter(codes, rows, queries[q], g->stride, s->limit, hits);
            for (uint32_t h = 0; h < found; h++)
                offer(s, g, at + hits[h].row, hits[h].distance);
        }
        at += rows;
        /* Small tiles first: the limit should fall before many rows pass it. */
        tile = tile * 2 < full ? tile * 2 : full;
    }
}

/* Put `id` into the max-heap at the free position `at`, or below. */
INLINE void sift(int64_t *heap, size_t n, size_t at, int64_t id) {
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= id) break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

/* Move the `wanted` smallest ids to the front, sorted, in n log wanted steps for any order. */
static void smallest_by_heap(int64_t *ids, size_t n, size_t wanted) {
    if (!wanted) return;
    for (size_t at = wanted / 2; at--;) sift(ids, wanted, at, ids[at]);
    for (size_t i = wanted; i < n; i++)
        if (ids[i] < ids[0]) sift(ids, wanted, 0, ids[i]);
    while (--wanted) {
        int64_t id = ids[wanted];
        ids[wanted] = ids[0];
        sift(ids, wanted, 0, id);
    }
}

/* The same by quicksort of the part that matters; after `depth` bad pivots use the heap. */
static void smallest(int64_t *ids, size_t n, size_t wanted, int depth) {
    while (n > 12) {
        if (!depth--) {
            smallest_by_heap(ids, n, wanted);
            return;
        }
        int64_t a = ids[0], b = ids[n / 2], c = ids[n - 1];
        int64_t pivot = a < b ? (b < c ? b : (a < c ? c : a)) : (a < c ? a : (b < c ? c : b));
        size_t i = 0, j = n - 1;
        for (;;) {
            while (ids[i] < pivot) i++;
            while (ids[j] > pivot) j--;
            if (i >= j) break;
            int64_t swap = ids[i];
            ids[i++] = ids[j];
            ids[j--] = swap;
        }
        if (wanted > i) smallest(ids + i, n - i, wanted - i, depth);
        n = i;
        if (wanted > n) wanted = n;
    }
    for (size_t i = 1; i < n; i++) {
        int64_t id = ids[i];
        size_t j = i;
        for (; j && ids[j - 1] > id; j--) ids[j] = ids[j - 1];
        ids[j] = id;
    }
}

typedef struct {
    int64_t *ids; /* of one distance */
    size_t ids_room;
    uint32_t *rows; /* hits by distance */
    size_t rows_room;
    size_t *ends; /* where the rows at each distance end */
} Scratch;

/* Counting sort of the hits by distance. */
static int by_distance(Selector *s, Scratch *scratch) {
    selector_shrink(s);
    uint32_t *rows = grown(scratch->rows, &scratch->rows_room, s->used + 1, sizeof *rows);
    if (!rows) return 0;
    scratch->rows = rows;
    size_t *ends = scratch->ends;
    memset(ends, 0, (s->limit + 2) * sizeof *ends);
    for (size_t h = 0; h < s->used; h++) ends[s->hits[h].distance + 1]++;
    for (uint32_t d = 0; d <= s->limit; d++) ends[d + 1] += ends[d];
    for (size_t h = 0; h < s->used; h++) rows[ends[s->hits[h].distance]++] = s->hits[h].row;
    return 1;
}

/* Append up to `wanted` items of a row; return 0 if out of memory. */
static int gather(const Segment *g, Scratch *scratch, uint32_t row, uint64_t wanted,
                  uint64_t *gathered) {
    uint64_t at = g->offsets ? g->offsets[row] : row, n = items_of(g, row);
    if (n > wanted) n = wanted; /* postings ascend: later ones of this row cannot be in the result */
    int64_t *ids = grown(scratch->ids, &scratch->ids_room, *gathered + n, sizeof *ids);
    if (!ids) return 0;
    scratch->ids = ids;
    for (uint64_t i = 0; i < n; i++, at++) {
        if (g->dead_items) at = next_clear(g->dead_items, at, g->items);
        ids[(*gathered)++] =
            g->wide ? ((const int64_t *)g->ids)[at] : ((const uint32_t *)g->ids)[at];
    }
    return 1;
}

/* Write up to `room` items of the hits by distance, then id; return 0 if out of memory. */
static int finish(const Segment *g, Selector *s, Scratch *scratch, uint64_t room, int64_t *out_ids,
                  int32_t *out_distances) {
    if (!by_distance(s, scratch)) return 0;
    uint64_t written = 0;
    size_t h = 0;
    for (uint32_t d = 0; d <= s->limit && written < room; d++) {
        uint64_t wanted = room - written, gathered = 0;
        for (; h < scratch->ends[d]; h++)
            if (!gather(g, scratch, scratch->rows[h], wanted, &gathered)) return 0;
        uint64_t n = gathered < wanted ? gathered : wanted;
        smallest(scratch->ids, gathered, n, 64);
        for (uint64_t i = 0; i < n; i++) {
            out_ids[written] = scratch->ids[i];
            out_distances[written++] = (int32_t)d;
        }
    }
    return 1;
}

/* The same by cost, then distance, then id. */
static int finish_priced(const Segment *g, Selector *s, Scratch *scratch, uint64_t room,
                         int64_t *out_ids, int32_t *out_distances, int64_t *out_costs) {
    settle(s);
    qsort(s->priced, s->used, sizeof *s->priced, by_cost);
    const Priced *at = s->priced, *end = at + s->used;
    for (uint64_t written = 0; at < end && written < room;) {
        const Priced *first = at;
        uint64_t wanted = room - written, gathered = 0;
        for (; at < end && !by_cost(at, first); at++)
            if (!gather(g, scratch, at->row, wanted, &gathered)) return 0;
        uint64_t n = gathered < wanted ? gathered : wanted;
        smallest(scratch->ids, gathered, n, 64);
        for (uint64_t i = 0; i < n; i++, written++) {
            out_ids[written] = scratch->ids[i];
            out_distances[written] = (int32_t)first->distance;
            out_costs[written] = (int64_t)first->cost;
        }
    }
    return 1;
}

/* ---- jobs and threads --------------------------------------------------------------------- */

typedef struct {
    void *(*body)(void *);
    void *job;
} Work;

#if defined(_WIN32)
typedef HANDLE Thread;

static DWORD WINAPI work_begin(LPVOID given) {
    const Work *work = given;
    work->body(work->job);
    return 0;
}

static int thread_start(Thread *thread, Work *work) {
    *thread = CreateThread(NULL, 0, work_begin, work, 0, NULL);
    return *thread != NULL;
}

static void thread_join(Thread thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}
#else
typedef pthread_t Thread;

static int thread_start(Thread *thread, Work *work) {
    return !pthread_create(thread, NULL, work->body, work->job);
}

static void thread_join(Thread thread) { pthread_join(thread, NULL); }
#endif

/* Run body(job) in this thread and in up to threads - 1 others, which divide the work by counters in
 * the job: a thread that cannot be started is not needed. */
static void together(void *(*body)(void *), void *job, int threads) {
    Thread handles[MOST_THREADS];
    Work work = {body, job};
    int started = 0;
    while (started < threads - 1 && thread_start(&handles[started], &work)) started++;
    body(job);
    while (started) thread_join(handles[--started]);
}

typedef struct {
    int64_t *ids;
    int32_t *distances;
    uint64_t used;
} List; /* result of one query of a range search */

typedef struct {
    const Segment *segment;
    const uint8_t *queries;
    uint32_t count, group; /* queries, queries per group */
    uint64_t k;            /* UINT64_MAX: range search */
    uint32_t limit;
    double patience; /* cost limit of the tables as a fraction of a scan; 0: scan */
    const int64_t *weights; /* (count, bits); NULL: none */
    uint32_t bits;
    const int64_t *limits; /* (count,): greatest distance or cost of each query; NULL: none */
    int64_t *out_ids; /* (count, k) */
    int32_t *out_distances;
    int64_t *out_costs; /* with weights only */
    List *lists;               /* used instead of out_* by a range search */
    _Atomic uint32_t next;     /* first query not taken by a thread */
    _Atomic uint32_t answered; /* queries answered by the tables */
    _Atomic uint64_t examined; /* rows compared with a query */
    _Atomic int failed;
} Job;

typedef struct {
    Selector selectors[GROUP];
    Price prices[GROUP];
    Hit *hits;
    Walk *walks; /* one per table, with weights */
    Scratch scratch;
} Worker;

static void worker_free(Worker *w) {
    if (!w) return;
    for (int i = 0; i < GROUP; i++) {
        free(w->selectors[i].seen);
        free(w->selectors[i].hits);
        free(w->selectors[i].priced);
        free(w->prices[i].sums);
        free(w->prices[i].masks);
        free(w->prices[i].scaled);
    }
    free(w->hits);
    free(w->walks);
    free(w->scratch.ids);
    free(w->scratch.rows);
    free(w->scratch.ends);
    free(w);
}

/* Allocate prices of `bits` weights per query of a group; with 0 none. */
static Worker *worker_new(uint32_t stride, uint32_t group, uint32_t bits, uint32_t tables) {
    Worker *w = calloc(1, sizeof *w);
    if (!w || !(w->hits = malloc((TILE_BYTES / 4 + 1) * sizeof *w->hits)) ||
        !(w->scratch.ends = malloc((stride * 8 + 2) * sizeof *w->scratch.ends)))
        goto fail;
    for (uint32_t i = 0; i < group; i++)
        if (!(w->selectors[i].seen = malloc((stride * 8 + 1) * sizeof(uint64_t)))) goto fail;
    if (bits && tables && !(w->walks = malloc(tables * sizeof *w->walks))) goto fail;
    for (uint32_t i = 0; bits && i < group; i++) {
        Price *p = &w->prices[i];
        p->bits = bits;
        if (!(p->sums = malloc((size_t)stride * 32 * sizeof *p->sums)) ||
            !(p->masks = malloc((size_t)stride * MASKS)) ||
            !(p->scaled = malloc((size_t)bits * sizeof *p->scaled)))
            goto fail;
    }
    return w;
fail:
    worker_free(w);
    return NULL;
}

typedef struct {
    const Segment *segment;
    const uint8_t *const *queries;
    uint32_t n, parts;
    Worker *workers[MOST_THREADS]; /* one per part */
    _Atomic uint32_t next;
} Split; /* ranges of the codes, scanned for a few queries */

static void *scan_parts(void *argument) {
    Split *split = argument;
    uint32_t rows = split->segment->count, step = rows / split->parts;
    for (uint32_t part; (part = split->next++) < split->parts;) {
        Worker *w = split->workers[part];
        Selector *selectors[GROUP];
        for (uint32_t q = 0; q < split->n; q++) selectors[q] = &w->selectors[q];
        scan(split->segment, part * step, part + 1 < split->parts ? (part + 1) * step : rows,
             split->queries, selectors, split->n, w->hits);
    }
    return NULL;
}

/* Few queries, several threads: each scans a range of the codes, then the hits are merged. */
static void scan_split(Job *job, const uint8_t *const *queries, Selector *const *selectors,
                       uint32_t n, int threads) {
    const Segment *g = job->segment;
    Split split = {.segment = g, .queries = queries, .n = n, .parts = (uint32_t)threads};
    for (uint32_t part = 0; part < split.parts; part++) {
        Worker *w = split.workers[part] = worker_new(g->stride, n, 0, 0);
        if (!w) job->failed = NO_MEMORY;
        for (uint32_t q = 0; w && q < n; q++) {
            Selector *s = &w->selectors[q];
            selector_reset(s, g->stride * 8, job->k, selectors[q]->limit);
            s->price = selectors[q]->price;
            s->query = selectors[q]->query;
            s->worst = selectors[q]->worst;
        }
    }
    if (!job->failed) together(scan_parts, &split, threads);
    for (uint32_t part = 0; part < split.parts; part++) {
        for (uint32_t q = 0; !job->failed && q < n; q++) {
            Selector *theirs = &split.workers[part]->selectors[q];
            for (size_t h = 0; h < theirs->used; h++)
                if (theirs->price) offer_priced(selectors[q], g, theirs->priced[h].row);
                else offer(selectors[q], g, theirs->hits[h].row, theirs->hits[h].distance);
            if (theirs->failed) selectors[q]->failed = theirs->failed;
            selectors[q]->examined += theirs->examined;
        }
        worker_free(split.workers[part]);
    }
}

/* Write the result of a query to its row of the output, or to its list. */
static int deliver(Job *job, Selector *s, Scratch *scratch, uint32_t query) {
    uint64_t n = s->total < job->k ? s->total : job->k;
    if (s->price)
        return finish_priced(job->segment, s, scratch, n, job->out_ids + query * job->k,
                             job->out_distances + query * job->k, job->out_costs + query * job->k);
    if (!job->lists)
        return finish(job->segment, s, scratch, n, job->out_ids + query * job->k,
                      job->out_distances + query * job->k);
    List *list = &job->lists[query];
    list->used = n;
    list->ids = malloc((n + 1) * sizeof *list->ids);
    list->distances = malloc((n + 1) * sizeof *list->distances);
    return list->ids && list->distances &&
           finish(job->segment, s, scratch, n, list->ids, list->distances);
}

static void answer_group(Job *job, Worker *w, uint32_t first, uint32_t n, int threads) {
    const Segment *g = job->segment;
    const uint8_t *waiting[GROUP];
    Selector *selectors[GROUP];
    uint32_t left = 0;
    /* Estimated ns of a scan per query: memory speed for one, cache speed if a tile serves many. The
     * tables may use a fraction of it, so giving up is never expensive. */
    double speed = job->count >= 8 ? 95.0 : (double)g->count * g->stride > 2e7 ? 32.0 : 60.0;
    double budget = (double)g->count * g->stride / speed * job->patience;
    for (uint32_t q = 0; q < n; q++) {
        const uint8_t *query = job->queries + (size_t)(first + q) * g->stride;
        Selector *s = &w->selectors[q];
        uint64_t most = job->limits ? (uint64_t)job->limits[first + q] : UINT64_MAX;
        selector_reset(s, g->stride * 8, job->k, job->limit);
        if (!job->weights && most < s->limit) s->limit = (uint32_t)most;
        s->examined = 0;
        if (job->weights) {
            price_set(&w->prices[q], job->weights + (size_t)(first + q) * job->bits, g->stride);
            s->price = &w->prices[q];
            s->query = query;
            s->worst = most;
        }
        if (g->tables && budget > 0) {
            if (s->price) bound_set(&w->prices[q], g->stride, 0);
            if (s->price ? kernel->priced_probe(g, query, s, budget, w->walks)
                         : kernel->probe(g, query, s, budget)) {
                job->answered++;
                continue;
            }
            selector_reset(s, g->stride * 8, job->k, s->limit); /* the limit is still valid */
        }
        if (s->price) bound_set(&w->prices[q], g->stride, (float)share_of(s->price, g, query));
        waiting[left] = query;
        selectors[left++] = s;
    }
    if (left && threads > 1) scan_split(job, waiting, selectors, left, threads);
    else if (left) scan(g, 0, g->count, waiting, selectors, left, w->hits);
    for (uint32_t q = 0; q < n && !job->failed; q++) {
        Selector *s = &w->selectors[q];
        job->examined += s->examined;
        if (s->failed) job->failed = s->failed;
        else if (!deliver(job, s, &w->scratch, first + q)) job->failed = NO_MEMORY;
    }
}

/* Answer groups of queries until none is left; `threads` share the scan of each group. */
static void answer_groups(Job *job, int threads) {
    Worker *w = worker_new(job->segment->stride, job->group, job->bits, job->segment->tables);
    if (!w) job->failed = NO_MEMORY;
    while (!job->failed) {
        uint32_t first = atomic_fetch_add(&job->next, job->group);
        if (first >= job->count) break;
        uint32_t n = job->count - first < job->group ? job->count - first : job->group;
        answer_group(job, w, first, n, threads);
    }
    worker_free(w);
}

static void *answer_alone(void *job) {
    answer_groups(job, 1);
    return NULL;
}

#define SHARED 6.4e7 /* bytes of a scan that several threads share */

/* Starting a thread costs as much as scanning a megabyte. */
static int threads_for(double bytes, int threads) {
    return threads < 1 || bytes < 2e6 ? 1 : threads < MOST_THREADS ? threads : MOST_THREADS;
}

static void run(Job *job, int threads) {
    if (!job->count || !job->segment->count) return;
    double scan = (double)job->segment->count * job->segment->stride;
    threads = threads_for(job->count * scan, threads);
    /* One scan is as fast as the memory; dividing a short one costs more than it saves. */
    if (!job->weights && scan < SHARED && job->count < (uint32_t)threads) threads = (int)job->count;
    uint32_t each_thread = (job->count + (uint32_t)threads - 1) / (uint32_t)threads;
    job->group = each_thread < GROUP ? each_thread : GROUP;
    if (job->count >= (uint32_t)threads) together(answer_alone, job, threads);
    else {
        job->group = job->count;
        answer_groups(job, threads);
    }
}

typedef struct {
    const uint8_t *codes, *queries;
    uint32_t rows, count, group, stride; /* codes, queries, queries per group, bytes per code */
    const uint8_t *labels;               /* (count, classes): not 0 where the query has the class */
    const uint8_t *holders;              /* (classes, mask) bits: the codes that have the class */
    const uint8_t *relevant, *known;     /* (count, mask) bits, instead of labels and holders */
    size_t classes, mask;                /* mask: bytes of a bit for each code */
    size_t width;                        /* number of distances in the output */
    int64_t *items, *hits;               /* (count, width) */
    _Atomic uint32_t next;
    _Atomic int failed;
} Census;

/* Rows that share a class with the query, as bits. */
static void share_class(const Census *c, uint32_t query, size_t from, size_t bytes, uint8_t *out) {
    const uint8_t *labels = c->labels + query * c->classes;
    memset(out, 0, bytes);
    for (size_t k = 0; k < c->classes; k++) {
        if (!labels[k]) continue;
        const uint8_t *holders = c->holders + k * c->mask + from;
        for (size_t i = 0; i < bytes; i++) out[i] |= holders[i];
    }
}

/* Add the counts of the lanes to the rows of the output, and reset them. */
static void collect(Census *c, uint32_t query, uint32_t *counts) {
    size_t cells = 2 * ((size_t)c->stride * 8 + 1);
    int64_t *items = c->items + query * c->width, *hits = c->hits + query * c->width;
    for (size_t lane = 1; lane < LANES; lane++)
        for (size_t i = 0; i < cells; i++) counts[i] += counts[lane * cells + i];
    for (size_t d = 0; d < cells / 2; d++) {
        if (d < c->width) {
            items[d] += (int64_t)counts[2 * d] + counts[2 * d + 1];
            hits[d] += counts[2 * d + 1];
        } else if (counts[2 * d] || counts[2 * d + 1]) c->failed = DAMAGED;
    }
    memset(counts, 0, LANES * cells * sizeof *counts);
}

static void *count_groups(void *argument) {
    Census *c = argument;
    uint32_t tile = COUNTED_BYTES / c->stride / 8 * 8; /* a multiple of the bytes of the masks */
    uint32_t *counts = calloc(LANES * 2 * ((size_t)c->stride * 8 + 1), sizeof *counts);
    uint8_t *shared = malloc(tile / 8);
    if (!counts || !shared) c->failed = NO_MEMORY;
    while (!c->failed) {
        uint32_t first = atomic_fetch_add(&c->next, c->group);
        if (first >= c->count) break;
        uint32_t last = c->count - first < c->group ? c->count : first + c->group;
        for (uint32_t at = 0, rows; at < c->rows; at += rows) {
            rows = c->rows - at < tile ? c->rows - at : tile;
            for (uint32_t q = first; q < last; q++) {
                size_t bits = q * c->mask + at / 8;
                if (c->holders) share_class(c, q, at / 8, (rows + 7) / 8, shared);
                kernel->tally(c->codes + (size_t)at * c->stride, rows,
                              c->queries + (size_t)q * c->stride, c->stride,
                              c->holders ? shared : c->relevant + bits,
                              c->known ? c->known + bits : NULL, counts);
                collect(c, q, counts);
            }
        }
    }
    free(counts);
    free(shared);
    return NULL;
}

/* ---- Python ------------------------------------------------------------------------------- */

/* Get views of the arrays; None stays empty, the last `outputs` are writable. An array that cannot be
 * used is a TypeError; a ValueError means that the contents do not match. */
static int views_take(Py_buffer *views, PyObject *const *objects, const char *const *names,
                      int count, int outputs) {
    for (int i = 0; i < count; i++) {
        if (!objects[i] || objects[i] == Py_None) continue;
        int output = i >= count - outputs;
        if (!PyObject_GetBuffer(objects[i], &views[i], PyBUF_ND | (output ? PyBUF_WRITABLE : 0)))
            continue;
        PyObject *kind = NULL;
        if (!PyErr_ExceptionMatches(PyExc_MemoryError)) {
            PyErr_Clear();
            kind = PyType_GetName(Py_TYPE(objects[i]));
        }
        if (kind)
            PyErr_Format(PyExc_TypeError, "%s must be a C-contiguous%s array, got %.80U%s",
                         names[i], output ? " writable" : "", kind,
                         PyObject_CheckBuffer(objects[i]) ? " that is not" : "");
        Py_XDECREF(kind);
        return 0;
    }
    return 1;
}

static void views_release(Py_buffer *views, int count) {
    for (int i = 0; i < count; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
}

/* Return whether the view has a * b elements of `size` bytes. */
static int holds(const Py_buffer *view, uint64_t a, uint64_t b, uint64_t size) {
    uint64_t bytes;
    return !__builtin_mul_overflow(a, b, &bytes) && !__builtin_mul_overflow(bytes, size, &bytes) &&
           bytes == (uint64_t)view->len;
}

static int stride_fits(Py_ssize_t stride, const Py_buffer *codes, const Py_buffer *queries) {
    return (stride == 4 || (stride > 0 && stride % 8 == 0 && stride <= TILE_BYTES)) &&
           codes->len % stride == 0 && codes->len / stride < UINT32_MAX &&
           queries->len % stride == 0 && queries->len / stride < UINT32_MAX - GROUP * MOST_THREADS;
}

enum {
    CODES, OFFSETS, IDS, STARTS, ORDERS, DEAD_ITEMS, DEAD_ROWS, /* of the segment */
    QUERIES, WEIGHTS, LIMITS, OUT_IDS, OUT_DISTANCES, OUT_COSTS, BUFFERS
};
static const char *const buffer_names[] = {
    "codes", "offsets", "ids", "starts", "orders", "dead_items", "dead_rows",
    "queries", "weights", "limits", "out_ids", "out_distances", "out_costs"};

typedef struct {
    Py_buffer views[BUFFERS];
    Segment segment;
    Job job;
    Py_ssize_t number; /* k or radius */
    int threads;
} Call;

/* Check everything that could make the loops read outside the arrays, except their contents. */
static int segment_take(Segment *g, const Py_buffer *v, Py_ssize_t stride) {
    Py_ssize_t width = v[IDS].itemsize, table = (CHUNKS + 1) * 4;
    if ((stride != 4 && (stride <= 0 || stride % 8 || stride > TILE_BYTES)) ||
        v[CODES].len % stride || v[CODES].len / stride >= UINT32_MAX || (width != 4 && width != 8) ||
        v[STARTS].len % table) {
        PyErr_SetString(PyExc_ValueError, "the arrays of the segment do not match");
        return 0;
    }
    *g = (Segment){
        .codes = v[CODES].buf,
        .count = (uint32_t)(v[CODES].len / stride),
        .stride = (uint32_t)stride,
        .offsets = v[OFFSETS].buf,
        .ids = v[IDS].buf,
        .wide = width == 8,
        .items = (uint64_t)(v[IDS].len / width),
        .tables = (uint32_t)(v[STARTS].len / table),
        .starts = v[STARTS].buf,
        .orders = v[ORDERS].buf,
        .dead_items = v[DEAD_ITEMS].buf,
        .dead_rows = v[DEAD_ROWS].buf,
    };
    if (v[OFFSETS].obj ? !holds(&v[OFFSETS], (uint64_t)g->count + 1, 1, 4) : g->items != g->count) {
        PyErr_SetString(PyExc_ValueError, "the arrays of the segment do not match");
        return 0;
    }
    if (g->tables > MOST_TABLES || g->tables > (stride == 4 ? 2 : (uint32_t)stride / 2) ||
        (g->tables > 1 && !holds(&v[ORDERS], g->tables - 1, g->count, 4))) {
        PyErr_SetString(PyExc_ValueError, "the tables do not match the codes");
        return 0;
    }
    if ((g->dead_items || g->dead_rows) &&
        (!holds(&v[DEAD_ITEMS], words_of(g->items), 1, 8) ||
         !holds(&v[DEAD_ROWS], g->tables ? g->tables : 1, words_of(g->count), 8))) {
        PyErr_SetString(PyExc_ValueError, "the bitmaps do not match the segment");
        return 0;
    }
    return 1;
}

static int call_take(Call *call, PyObject *args) {
    PyObject *o[BUFFERS] = {0};
    Py_ssize_t stride;
    memset(call, 0, sizeof *call);
    if (!PyArg_ParseTuple(args, "OnOOOOOOOndi|OOOOO", &o[CODES], &stride, &o[OFFSETS], &o[IDS],
                          &o[STARTS], &o[ORDERS], &o[DEAD_ITEMS], &o[DEAD_ROWS], &o[QUERIES],
                          &call->number, &call->job.patience, &call->threads, &o[OUT_IDS],
                          &o[OUT_DISTANCES], &o[WEIGHTS], &o[OUT_COSTS],
                          &o[LIMITS]) ||
        !views_take(call->views, o, buffer_names, BUFFERS, 3))
        return 0;
    const Py_buffer *v = call->views;
    Segment *g = &call->segment;
    if (!segment_take(g, v, stride)) return 0;
    if (!stride_fits(stride, &v[CODES], &v[QUERIES])) {
        PyErr_SetString(PyExc_ValueError, "the queries do not match the codes");
        return 0;
    }
    call->job.segment = g;
    call->job.queries = v[QUERIES].buf;
    call->job.count = (uint32_t)(v[QUERIES].len / stride);
    call->job.limit = g->stride * 8;
    return 1;
}

static int call_run(Call *call) {
    Py_BEGIN_ALLOW_THREADS
    run(&call->job, call->threads);
    Py_END_ALLOW_THREADS
    if (call->job.failed == NO_MEMORY) PyErr_NoMemory();
    else if (call->job.failed) PyErr_SetString(PyExc_ValueError, "invalid row, offset or table");
    return !call->job.failed;
}

PyDoc_STRVAR(search_doc,
             "search(codes, stride, offsets, ids, starts, orders, dead_items, dead_rows, queries,\n"
             "       k, probe_budget, threads, out_ids, out_distances, weights=None,\n"
             "       out_costs=None, limits=None)\n"
             "-> (queries answered by the tables, rows compared with queries)\n\n"
             "Fills the rows of out_* with the k nearest items; unused places keep their value.\n"
             "With weights, int64 (queries, bits), items are ranked by the sum of the weights of\n"
             "their differing bits, which is written to out_costs.\n"
             "Items beyond limits, int64 (queries,), may be left out.\n"
             "The tables may cost probe_budget times a scan before they give up; 0: scan.");

static PyObject *py_search(PyObject *self, PyObject *args) {
    (void)self;
    Call call;
    PyObject *result = NULL;
    if (call_take(&call, args)) {
        Job *job = &call.job;
        job->k = call.number > 0 ? (uint64_t)call.number : 0;
        job->out_ids = call.views[OUT_IDS].buf;
        job->out_distances = call.views[OUT_DISTANCES].buf;
        job->out_costs = call.views[OUT_COSTS].buf;
        job->weights = call.views[WEIGHTS].buf;
        if (job->weights && job->count)
            job->bits = (uint32_t)((uint64_t)call.views[WEIGHTS].len / 8 / job->count);
        job->limits = call.views[LIMITS].buf;
        if (job->limits && !holds(&call.views[LIMITS], job->count, 1, 8))
            PyErr_SetString(PyExc_ValueError, "the limits do not match the queries");
        else if (job->weights && (job->bits > job->limit || (job->count && !job->bits) ||
                             !holds(&call.views[WEIGHTS], job->count, job->bits, 8) ||
                             !holds(&call.views[OUT_COSTS], job->count, job->k, 8)))
            PyErr_SetString(PyExc_ValueError, "the weights do not match the queries and k");
        else if (!job->k || !holds(&call.views[OUT_IDS], job->count, job->k, 8) ||
            !holds(&call.views[OUT_DISTANCES], job->count, job->k, 4))
            PyErr_SetString(PyExc_ValueError, "the output does not match the queries and k");
        else if (call_run(&call)) 
            result = Py_BuildValue("(kK)", (unsigned long)job->answered,
                                   (unsigned long long)job->examined);
    }
    views_release(call.views, BUFFERS);
    return result;
}

PyDoc_STRVAR(within_doc,
             "within(codes, stride, offsets, ids, starts, orders, dead_items, dead_rows, queries,\n"
             "       radius, probe_budget, threads)\n"
             "-> (counts, ids, distances) as bytes of int64, int64 and int32");

/* Concatenate the lists of all queries. */
static PyObject *joined(const List *lists, uint32_t count) {
    uint64_t total = 0, at = 0;
    for (uint32_t q = 0; q < count; q++) total += lists[q].used;
    PyObject *counts = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8), *result = NULL;
    PyObject *ids = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total * 8);
    PyObject *distances = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total * 4);
    if (counts && ids && distances) {
        for (uint32_t q = 0; q < count; at += lists[q++].used) {
            memcpy(PyBytes_AsString(counts) + (size_t)q * 8, &lists[q].used, 8);
            if (!lists[q].used) continue;
            memcpy(PyBytes_AsString(ids) + at * 8, lists[q].ids, lists[q].used * 8);
            memcpy(PyBytes_AsString(distances) + at * 4, lists[q].distances, lists[q].used * 4);
        }
        result = PyTuple_Pack(3, counts, ids, distances);
    }
    Py_XDECREF(counts);
    Py_XDECREF(ids);
    Py_XDECREF(distances);
    return result;
}

static PyObject *py_within(PyObject *self, PyObject *args) {
    (void)self;
    Call call;
    PyObject *result = NULL;
    if (call_take(&call, args)) {
        Job *job = &call.job;
        job->k = UINT64_MAX;
        if (call.number < (Py_ssize_t)job->limit) job->limit = (uint32_t)call.number;
        job->lists = calloc((size_t)job->count + 1, sizeof *job->lists);
        if (call.number < 0) PyErr_SetString(PyExc_ValueError, "the radius must be 0 or more");
        else if (!job->lists) PyErr_NoMemory();
        else if (call_run(&call)) result = joined(job->lists, job->count);
        for (uint32_t q = 0; job->lists && q < job->count; q++) {
            free(job->lists[q].ids);
            free(job->lists[q].distances);
        }
        free(job->lists);
    }
    views_release(call.views, BUFFERS);
    return result;
}

PyDoc_STRVAR(bury_doc,
             "bury(codes, stride, offsets, ids, starts, orders, items, dead_items, dead_rows)\n\n"
             "Sets the bits of deleted items, given as uint32 positions in ids, and of the rows that\n"
             "have no other item, in the order of each table.");

/* Return the place of a row among those of table t; UINT64_MAX if the table is corrupt. */
static uint64_t place_of(const Segment *g, uint32_t row, uint32_t t) {
    if (!t) return row;
    const uint32_t *order = g->orders + (size_t)(t - 1) * g->count;
    const uint32_t *starts = g->starts + (size_t)t * (CHUNKS + 1);
    uint32_t key = chunk(g->codes + (size_t)row * g->stride, g->stride, t);
    uint32_t from = starts[key], to = starts[key + 1], end = to;
    if (from > to || to > g->count) return UINT64_MAX;
    while (from < to) { /* rows of a bucket ascend */
        uint32_t middle = from + (to - from) / 2;
        if (order[middle] < row) from = middle + 1;
        else to = middle;
    }
    return from < end && order[from] == row ? from : UINT64_MAX;
}

/* Return 0 if the arrays are corrupt. */
static int bury(const Segment *g, const uint32_t *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (items[i] >= g->items) return 0;
        g->dead_items[items[i] / 64] |= 1ull << items[i] % 64;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t row = items[i];
        if (g->offsets) {
            uint32_t from = 0, to = g->count; /* the row is in [from, to) */
            while (to - from > 1) {
                uint32_t middle = from + (to - from) / 2;
                if (g->offsets[middle] <= items[i]) from = middle;
                else to = middle;
            }
            row = from;
            if (!g->count || g->offsets[row] > items[i] || g->offsets[row + 1] <= items[i] ||
                g->offsets[row + 1] > g->items)
                return 0;
        }
        if (items_of(g, row)) continue;
        for (uint32_t t = 0; t < (g->tables ? g->tables : 1); t++) {
            uint64_t place = place_of(g, row, t);
            if (place == UINT64_MAX) return 0;
            g->dead_rows[t * words_of(g->count) + place / 64] |= 1ull << place % 64;
        }
    }
    return 1;
}

static PyObject *py_bury(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *result = NULL;
    Py_buffer v[BUFFERS];
    memset(v, 0, sizeof v);
    Py_ssize_t stride;
    Segment g;
    int whole = 1;
    /* The positions take the place of queries; the bitmaps are last, where outputs are. */
    static const int places[] = {CODES, OFFSETS, IDS, STARTS, ORDERS, QUERIES, DEAD_ITEMS, DEAD_ROWS};
    PyObject *given[8] = {0};
    Py_buffer views[8];
    static const char *const names[] = {"codes",  "offsets", "ids",        "starts",
                                        "orders", "items",   "dead_items", "dead_rows"};
    memset(views, 0, sizeof views);
    if (!PyArg_ParseTuple(args, "OnOOOOOOO", &given[0], &stride, &given[1], &given[2], &given[3],
                          &given[4], &given[5], &given[6], &given[7]))
        return NULL;
    if (views_take(views, given, names, 8, 2)) {
        for (int i = 0; i < 8; i++) v[places[i]] = views[i];
        if (!segment_take(&g, v, stride)) goto done;
        if (!g.dead_items || !g.dead_rows || v[QUERIES].len % 4)
            PyErr_SetString(PyExc_ValueError, "the bitmaps do not match the segment");
        else {
            Py_BEGIN_ALLOW_THREADS
            whole = bury(&g, v[QUERIES].buf, (size_t)v[QUERIES].len / 4);
            Py_END_ALLOW_THREADS
            if (whole) result = Py_NewRef(Py_None);
            else PyErr_SetString(PyExc_ValueError, "invalid row, offset or table");
        }
    }
done:
    views_release(views, 8);
    return result;
}

PyDoc_STRVAR(count_doc,
             "count(codes, stride, queries, labels, holders, relevant, known, threads, items, hits)\n\n"
             "Adds the number of codes at distance d from query q to items[q, d], and of the relevant\n"
             "ones to hits[q, d]. Codes are relevant if they share a class, by labels (queries,\n"
             "classes) and holders (classes, codes / 8); or, with holders None, by `relevant`\n"
             "(queries, codes / 8), and then only known pairs count unless `known` is None.\n"
             "Eight codes per byte, the first one in the lowest bit.");

static PyObject *py_count(PyObject *self, PyObject *args) {
    (void)self;
    enum { ROWS, ASKED, LABELS, HOLDERS, RELEVANT, KNOWN, ITEMS, HITS, VIEWS };
    static const char *const names[] = {"codes",    "queries", "labels", "holders",
                                        "relevant", "known",   "items",  "hits"};
    PyObject *o[VIEWS] = {0}, *result = NULL;
    Py_buffer v[VIEWS];
    memset(v, 0, sizeof v);
    Py_ssize_t stride;
    int threads;
    if (!PyArg_ParseTuple(args, "OnOOOOOiOO", &o[ROWS], &stride, &o[ASKED], &o[LABELS],
                          &o[HOLDERS], &o[RELEVANT], &o[KNOWN], &threads, &o[ITEMS], &o[HITS]))
        return NULL;
    if (!views_take(v, o, names, VIEWS, 2)) goto done;
    if (!stride_fits(stride, &v[ROWS], &v[ASKED])) {
        PyErr_SetString(PyExc_ValueError, "the codes do not match the code length");
        goto done;
    }
    Census c = {
        .codes = v[ROWS].buf, .rows = (uint32_t)(v[ROWS].len / stride),
        .queries = v[ASKED].buf, .count = (uint32_t)(v[ASKED].len / stride),
        .stride = (uint32_t)stride, .labels = v[LABELS].buf, .holders = v[HOLDERS].buf,
        .relevant = v[RELEVANT].buf, .known = v[KNOWN].buf,
        .items = v[ITEMS].buf, .hits = v[HITS].buf,
    };
    if (!c.rows || !c.count) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    c.mask = ((size_t)c.rows + 7) / 8;
    c.classes = (size_t)v[HOLDERS].len / c.mask;
    c.width = (size_t)v[ITEMS].len / 8 / c.count;
    if (!holds(&v[ITEMS], c.count, c.width, 8) || !holds(&v[HITS], c.count, c.width, 8) ||
        (c.holders ? !holds(&v[HOLDERS], c.classes, c.mask, 1) ||
                         !holds(&v[LABELS], c.count, c.classes, 1)
                   : !holds(&v[RELEVANT], c.count, c.mask, 1)) ||
        (c.known && !holds(&v[KNOWN], c.count, c.mask, 1))) {
        PyErr_SetString(PyExc_ValueError, "the arrays do not match the queries and codes");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    threads = threads_for((double)c.count * c.rows * c.stride, threads);
    /* More groups than threads, so that a slow core does not delay the rest. */
    uint32_t group = c.count / (4 * (uint32_t)threads) + 1;
    c.group = group < GROUP ? group : GROUP;
    together(count_groups, &c, threads);
    Py_END_ALLOW_THREADS
    if (c.failed == NO_MEMORY) PyErr_NoMemory();
    else if (c.failed) PyErr_SetString(PyExc_ValueError, "a distance exceeds the width of the output");
    else result = Py_NewRef(Py_None);
done:
    views_release(v, VIEWS);
    return result;
}

PyDoc_STRVAR(use_doc, "use(name) -> the kernel now in use; \"auto\" selects the fastest, \"\" changes nothing");

static PyObject *py_use(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    int any = !*name || !strcmp(name, "auto");
    for (size_t i = 0; *name && i < sizeof kernels / sizeof *kernels; i++)
        if ((any || !strcmp(name, kernels[i].name)) && supported(kernels[i].name)) {
            kernel = &kernels[i];
            return PyUnicode_FromString(kernel->name);
        }
    if (!*name) return PyUnicode_FromString(kernel->name);
    return PyErr_Format(PyExc_ValueError, "this CPU or build has no kernel %s", name);
}

static PyMethodDef methods[] = {
    {"search", py_search, METH_VARARGS, search_doc},
    {"within", py_within, METH_VARARGS, within_doc},
    {"bury", py_bury, METH_VARARGS, bury_doc},
    {"count", py_count, METH_VARARGS, count_doc},
    {"use", py_use, METH_VARARGS, use_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_hamming",
                                    "Exact Hamming search over one segment.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hamming(void) {
    list_flips();
    for (kernel = kernels; !supported(kernel->name); kernel++) continue;
    return PyModule_Create(&module);
}
