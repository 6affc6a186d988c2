/* Exact Hamming search over one segment: distinct codes, their postings, and chunk tables.
 *
 * Codes are stored as rows of `stride` bytes: one 32-bit word, or 64-bit words. Word order is
 * lexicographic order of the packed bytes, unused low bits are 0 (segment.py does the packing).
 *
 * A query is answered in two ways, both exact:
 *   tables  multi-index hashing: look up the codes that agree with the query in some 16-bit chunk
 *           up to a few flips, cheapest look-up first; given up as soon as it would cost more
 *           than a part of the scan;
 *   scan    all codes, tile by tile; a tile stays in the L1 cache while all queries pass over it.
 * Both feed the same counting selection: candidates are kept with their distance, a histogram
 * counts them, and the threshold falls as soon as k candidates lie below it. Nothing is sorted
 * before the end, and almost all codes fail one vector comparison.
 *
 * Only the inner filters differ between CPUs; they are chosen at run time.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define TILE_BYTES 16384 /* half of a usual L1 data cache: the queries' own state needs the rest */
#define GROUP 64         /* queries that share one pass over the codes */
#define CHUNKS 65536     /* values of a 16-bit chunk */
#define MOST_TABLES 64

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
} Segment;

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

/* Rows [from, to), one by one; branch-free, since it also runs where hits are dense. */
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

/* A vector filter takes the smallest distance of a block; only a block with a hit is looked at
 * again row by row. One comparison and one branch a block, and no order of lanes to restore. */
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
/* Blocks of 256 bytes: at 512 the single scan fell from 97% of the memory's speed to 65%. */
#define MIN4_512(suffix, a, b, c, d) \
    _mm512_min_##suffix(_mm512_min_##suffix(a, b), _mm512_min_##suffix(c, d))
/* sums of neighbouring 64-bit lanes of two vectors; the order does not matter */
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

/* AVX2 has no popcount: two table look-ups give it for each byte, sad sums eight of them. */
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

/* Distances are small, so the 32-bit minimum serves 64-bit lanes too. */
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

INLINE uint32x4_t pop64_neon(const uint8_t *p, uint8x16_t q) { /* sums of pairs: two codes a call */
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

/* ---- counting selection ------------------------------------------------------------------- */

typedef struct {
    uint64_t k;      /* wanted items; UINT64_MAX: all within the limit */
    uint32_t limit;  /* farther rows cannot matter any more */
    uint64_t total;  /* items at distance <= limit seen so far */
    uint64_t *seen;  /* items by distance */
    Hit *hits;
    size_t used, room;
    int failed;      /* 1: out of memory, 2: damaged arrays */
} Selector;

static void selector_reset(Selector *s, uint32_t most, uint64_t k, uint32_t limit) {
    memset(s->seen, 0, (most + 1) * sizeof *s->seen);
    s->k = k;
    s->limit = limit;
    s->total = 0;
    s->used = 0;
}

static void selector_shrink(Selector *s) {
    size_t kept = 0;
    for (size_t i = 0; i < s->used; i++)
        if (s->hits[i].distance <= s->limit) s->hits[kept++] = s->hits[i];
    s->used = kept;
}

static int selector_make_room(Selector *s) {
    selector_shrink(s);
    if (s->used * 2 < s->room) return 1;
    size_t room = s->room ? s->room * 2 : 4096;
    Hit *hits = realloc(s->hits, room * sizeof *hits);
    if (!hits) {
        s->failed = 1;
        return 0;
    }
    s->hits = hits;
    s->room = room;
    return 1;
}

INLINE void offer(Selector *s, const Segment *g, uint32_t row, uint32_t d) {
    if (d > s->limit) return;
    uint64_t weight = 1;
    if (g->offsets) {
        uint32_t from = g->offsets[row], to = g->offsets[row + 1];
        if (from >= to || to > g->items) {
            s->failed = 2;
            return;
        }
        weight = to - from;
    }
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

/* Found before, through another table? Saves a mark for every row. */
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

/* ns to look at all rows that differ from the query by exactly s bits in chunk t, from counts.
 * Measured: a row in sorted order 1, a row anywhere 1.5 (cached) to 20, a bucket a few of those. */
INLINE double cost_of(const Segment *g, const uint8_t *query, uint32_t t, int32_t s, double left) {
    if (s > 16 || 2.0 * (flips_of[s + 1] - flips_of[s]) > left) return 1e30;
    const uint32_t *starts = g->starts + (size_t)t * (CHUNKS + 1);
    uint32_t key = chunk(query, g->stride, t);
    uint64_t rows = 0;
    for (uint32_t f = flips_of[s]; f < flips_of[s + 1]; f++)
        rows += starts[(key ^ flips[f]) + 1] - starts[key ^ flips[f]];
    double far = (double)g->count * g->stride / 1e7;
    far = far < 1.5 ? 1.5 : far > 20 ? 20 : far;
    return 4 * far * (flips_of[s + 1] - flips_of[s]) + (t ? far : 1.0) * (double)rows;
}

/* 0 when the arrays are damaged. */
INLINE int probe_table(const Segment *g, const uint8_t *query, Selector *sel, uint32_t t, int32_t s,
                       const int32_t *probed) {
    const uint32_t *starts = g->starts + (size_t)t * (CHUNKS + 1);
    const uint32_t *order = t ? g->orders + (size_t)(t - 1) * g->count : NULL;
    uint32_t key = chunk(query, g->stride, t);
    for (uint32_t f = flips_of[s]; f < flips_of[s + 1]; f++) {
        uint32_t from = starts[key ^ flips[f]], to = starts[(key ^ flips[f]) + 1];
        if (from > to || to > g->count) return 0;
        for (uint32_t i = from; i < to; i++) {
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

/* 1 when the answer is complete; 0 when the tables would cost more than `budget` (in ns).
 *
 * A code not met differs by more than probed[t] bits in every chunk t, hence by their sum + tables
 * or more. Each step adds one to that bound, so the cheapest step is the best one. */
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
        if (spent > budget) return 0;
        if (!probe_table(g, query, sel, t, probed[t] + 1, probed)) sel->failed = 2;
        probed[t]++;
        if (sel->failed || sel->limit < found_below) return 1;
        if (probed[t] < 16) spent += 2.0 * (flips_of[probed[t] + 2] - flips_of[probed[t] + 1]);
        cost[t] = cost_of(g, query, t, probed[t] + 1, budget - spent);
    }
}

typedef int (*Probe)(const Segment *, const uint8_t *, Selector *, double);
/* A copy with a constant stride lets the compiler unroll the distance of the usual lengths. */
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

/* ---- which kernel ------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    Filter by4, by8, by16, by32, any;
    Probe probe;
} Kernel;

static const Kernel kernels[] = {
#if defined(__x86_64__)
    {"avx512", avx512_4, avx512_8, avx512_16, avx512_32, popcnt_any, probe_popcnt},
    {"avx2", avx2_4, avx2_8, avx2_16, avx2_32, popcnt_any, probe_popcnt},
    {"popcnt", popcnt_any, popcnt_any, popcnt_any, popcnt_any, popcnt_any, probe_popcnt},
#elif defined(__aarch64__)
    {"neon", neon_4, neon_8, neon_16, plain_any, plain_any, probe_plain},
#endif
    {"portable", plain_any, plain_any, plain_any, plain_any, plain_any, probe_plain},
};
static const Kernel *kernel;

static int supported(const char *name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!strcmp(name, "avx512"))
        return __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl");
    if (!strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") != 0;
    if (!strcmp(name, "popcnt")) return __builtin_cpu_supports("popcnt") != 0;
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

/* ---- scan, finish ------------------------------------------------------------------------- */

static void scan(const Segment *g, uint32_t from, uint32_t to, const uint8_t *const *queries,
                 Selector *const *selectors, uint32_t n, Hit *hits) {
    Filter filter = filter_for(g->stride);
    uint32_t full = TILE_BYTES / g->stride, tile = full < 256 ? full : 256;
    for (uint32_t at = from; at < to;) {
        uint32_t rows = to - at < tile ? to - at : tile;
        const uint8_t *codes = g->codes + (size_t)at * g->stride;
        for (uint32_t q = 0; q < n; q++) {
            uint32_t found = filter(codes, rows, queries[q], g->stride, selectors[q]->limit, hits);
            for (uint32_t h = 0; h < found; h++)
                offer(selectors[q], g, at + hits[h].row, hits[h].distance);
        }
        at += rows;
        /* Small tiles first: the limit must fall before many rows have passed it. */
        tile = tile * 2 < full ? tile * 2 : full;
    }
}

/* The `wanted` smallest ids to the front, in order: quicksort of the part that counts. */
static void smallest(int64_t *ids, size_t n, size_t wanted) {
    while (n > 12) {
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
        if (wanted > i) smallest(ids + i, n - i, wanted - i);
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
    int64_t *ids;
    int32_t *distances;
    size_t used, room;
} List; /* the answer of one query to a range search */

typedef struct {
    int64_t *ids;
    size_t room;
    uint32_t *rows; /* hits by distance */
    size_t rows_room;
} Scratch;

/* Counting sort of the hits by distance; ends[d] is where the rows at distance d end. */
static int by_distance(Selector *s, Scratch *scratch, size_t *ends) {
    selector_shrink(s);
    if (s->used > scratch->rows_room) {
        uint32_t *rows = realloc(scratch->rows, s->used * sizeof *rows);
        if (!rows) return 0;
        scratch->rows = rows;
        scratch->rows_room = s->used;
    }
    memset(ends, 0, (s->limit + 2) * sizeof *ends);
    for (size_t h = 0; h < s->used; h++) ends[s->hits[h].distance + 1]++;
    for (uint32_t d = 0; d <= s->limit; d++) ends[d + 1] += ends[d];
    for (size_t h = 0; h < s->used; h++) scratch->rows[ends[s->hits[h].distance]++] = s->hits[h].row;
    return 1;
}

/* Turns hits into ids by distance, then id. Rows of `out_*` hold k items, or `list` grows. */
static int finish(const Segment *g, Selector *s, Scratch *scratch, int64_t *out_ids,
                  int32_t *out_distances, List *list) {
    size_t written = 0, *ends = malloc((s->limit + 2) * sizeof *ends);
    if (!ends || !by_distance(s, scratch, ends)) {
        free(ends);
        return 0;
    }
    size_t h = 0;
    for (uint32_t d = 0; d <= s->limit && written < s->k; d++) {
        uint64_t wanted = s->k - written, gathered = 0;
        for (; h < ends[d]; h++) {
            uint32_t row = scratch->rows[h];
            uint64_t from = g->offsets ? g->offsets[row] : row;
            uint64_t n = g->offsets ? g->offsets[row + 1] - from : 1;
            if (n > wanted) n = wanted; /* postings ascend: later ones of this row cannot win */
            if (gathered + n > scratch->room) {
                size_t room = (gathered + n) * 2;
                int64_t *ids = realloc(scratch->ids, room * sizeof *ids);
                if (!ids) goto fail;
                scratch->ids = ids;
                scratch->room = room;
            }
            for (uint64_t i = 0; i < n; i++)
                scratch->ids[gathered++] = g->wide ? ((const int64_t *)g->ids)[from + i]
                                                   : ((const uint32_t *)g->ids)[from + i];
        }
        uint64_t n = gathered < wanted ? gathered : wanted;
        smallest(scratch->ids, gathered, n);
        if (list) {
            if (list->used + n > list->room) {
                size_t room = (list->used + n) * 2;
                int64_t *ids = realloc(list->ids, room * sizeof *ids);
                if (ids) list->ids = ids;
                int32_t *distances = realloc(list->distances, room * sizeof *distances);
                if (distances) list->distances = distances;
                if (!ids || !distances) goto fail;
                list->room = room;
            }
            out_ids = list->ids;
            out_distances = list->distances;
        }
        for (uint64_t i = 0; i < n; i++) {
            out_ids[written] = scratch->ids[i];
            out_distances[written++] = (int32_t)d;
        }
        if (list) list->used = written;
    }
    free(ends);
    return 1;
fail:
    free(ends);
    return 0;
}

/* ---- jobs and threads --------------------------------------------------------------------- */

typedef struct {
    const Segment *segment;
    const uint8_t *queries;
    uint32_t count, group; /* queries, queries a group */
    uint64_t k;            /* UINT64_MAX: range search */
    uint32_t limit;
    double patience; /* part of a scan the tables may cost before giving up; 0: scan at once */
    int64_t *out_ids;
    int32_t *out_distances;
    List *lists;
    uint32_t next;     /* first query nobody has taken yet */
    uint32_t answered; /* queries answered by the tables */
    int failed;
} Job;

typedef struct {
    Selector selectors[GROUP];
    Hit *hits;
    Scratch scratch;
} Worker;

static void worker_free(Worker *w) {
    if (!w) return;
    for (int i = 0; i < GROUP; i++) {
        free(w->selectors[i].seen);
        free(w->selectors[i].hits);
    }
    free(w->hits);
    free(w->scratch.ids);
    free(w->scratch.rows);
    free(w);
}

static Worker *worker_new(uint32_t stride, uint32_t group) {
    Worker *w = calloc(1, sizeof *w);
    if (!w || !(w->hits = malloc((TILE_BYTES / 4 + 1) * sizeof *w->hits))) goto fail;
    for (uint32_t i = 0; i < group; i++)
        if (!(w->selectors[i].seen = malloc((stride * 8 + 1) * sizeof(uint64_t)))) goto fail;
    return w;
fail:
    worker_free(w);
    return NULL;
}

typedef struct {
    Job *job;
    Worker *worker;
    uint32_t from, to, n;
    const uint8_t *const *queries;
} Part; /* a range of codes scanned by one thread for a few queries */

static void *scan_part(void *argument) {
    Part *part = argument;
    Selector *selectors[GROUP];
    for (uint32_t q = 0; q < part->n; q++) selectors[q] = &part->worker->selectors[q];
    scan(part->job->segment, part->from, part->to, part->queries, selectors, part->n,
         part->worker->hits);
    return NULL;
}

/* Few queries, several threads: each scans a range of the codes, then the hits are put together. */
static void scan_split(Job *job, const uint8_t *const *queries, Selector **selectors, uint32_t n,
                       int threads, Hit *hits) {
    const Segment *g = job->segment;
    Part parts[64];
    pthread_t handles[64];
    int started[64] = {0};
    uint32_t step = g->count / (uint32_t)threads;
    for (int t = 1; t < threads; t++) {
        Worker *w = worker_new(g->stride, n);
        if (!w) {
            job->failed = 1;
            threads = t;
            break;
        }
        for (uint32_t q = 0; q < n; q++)
            selector_reset(&w->selectors[q], g->stride * 8, job->k, selectors[q]->limit);
        parts[t] = (Part){job, w, step * (uint32_t)t,
                          t == threads - 1 ? g->count : step * (uint32_t)(t + 1), n, queries};
        started[t] = !pthread_create(&handles[t], NULL, scan_part, &parts[t]);
    }
    scan(g, 0, threads > 1 ? step : g->count, queries, selectors, n, hits);
    for (int t = 1; t < threads; t++) {
        if (started[t]) pthread_join(handles[t], NULL);
        else scan_part(&parts[t]);
        for (uint32_t q = 0; q < n; q++) {
            Selector *theirs = &parts[t].worker->selectors[q];
            for (size_t h = 0; h < theirs->used; h++)
                offer(selectors[q], g, theirs->hits[h].row, theirs->hits[h].distance);
            if (theirs->failed) selectors[q]->failed = theirs->failed;
        }
        worker_free(parts[t].worker);
    }
}

static void answer_group(Job *job, Worker *w, uint32_t first, uint32_t n, int threads) {
    const Segment *g = job->segment;
    const uint8_t *waiting[GROUP];
    Selector *selectors[GROUP];
    uint32_t left = 0;
    /* ns of a scan a query: memory speed for one, cache speed when a tile serves many. The tables
     * may cost a part of it before they give up, so giving up is never dear. */
    double speed = job->count >= 8 ? 95.0 : (double)g->count * g->stride > 2e7 ? 32.0 : 60.0;
    double budget = (double)g->count * g->stride / speed * job->patience;
    for (uint32_t q = 0; q < n; q++) {
        const uint8_t *query = job->queries + (size_t)(first + q) * g->stride;
        Selector *s = &w->selectors[q];
        selector_reset(s, g->stride * 8, job->k, job->limit);
        if (g->tables && budget > 0) {
            if (kernel->probe(g, query, s, budget)) {
                __atomic_fetch_add(&job->answered, 1, __ATOMIC_RELAXED);
                continue;
            }
            selector_reset(s, g->stride * 8, job->k, s->limit); /* the limit found still holds */
        }
        waiting[left] = query;
        selectors[left++] = s;
    }
    if (left && threads > 1) scan_split(job, waiting, selectors, left, threads, w->hits);
    else if (left) scan(g, 0, g->count, waiting, selectors, left, w->hits);
    for (uint32_t q = 0; q < n; q++) {
        Selector *s = &w->selectors[q];
        int done = !s->failed;
        if (done && job->lists) done = finish(g, s, &w->scratch, NULL, NULL, &job->lists[first + q]);
        else if (done)
            done = finish(g, s, &w->scratch, job->out_ids + (size_t)(first + q) * job->k,
                          job->out_distances + (size_t)(first + q) * job->k, NULL);
        if (!done) {
            job->failed = s->failed ? s->failed : 1;
            s->failed = 0;
        }
    }
}

static void *work(void *argument) {
    Job *job = argument;
    Worker *w = worker_new(job->segment->stride, job->group);
    if (!w) {
        job->failed = 1;
        return NULL;
    }
    for (;;) {
        uint32_t first = __atomic_fetch_add(&job->next, job->group, __ATOMIC_RELAXED);
        if (first >= job->count || job->failed) break;
        uint32_t n = job->count - first < job->group ? job->count - first : job->group;
        answer_group(job, w, first, n, 1);
    }
    worker_free(w);
    return NULL;
}

static void run(Job *job, int threads) {
    if (threads > 64) threads = 64;
    if (threads < 1) threads = 1;
    if (!job->count || !job->segment->count) return;
    /* Starting a thread costs as much as scanning a megabyte. */
    if ((double)job->count * job->segment->count * job->segment->stride < 2e6) threads = 1;
    uint32_t each_thread = (job->count + (uint32_t)threads - 1) / (uint32_t)threads;
    job->group = each_thread < GROUP ? each_thread : GROUP;
    if (job->count < (uint32_t)threads || threads == 1) {
        if (threads > 1) job->group = job->count;
        Worker *w = worker_new(job->segment->stride, job->group);
        if (!w) {
            job->failed = 1;
            return;
        }
        for (uint32_t first = 0; first < job->count && !job->failed; first += job->group)
            answer_group(job, w, first,
                         job->count - first < job->group ? job->count - first : job->group, threads);
        worker_free(w);
        return;
    }
    pthread_t handles[64];
    int started[64] = {0};
    for (int t = 1; t < threads; t++) started[t] = !pthread_create(&handles[t], NULL, work, job);
    work(job);
    for (int t = 1; t < threads; t++)
        if (started[t]) pthread_join(handles[t], NULL);
}

/* ---- Python ------------------------------------------------------------------------------- */

enum { CODES, OFFSETS, IDS, STARTS, ORDERS, QUERIES, OUT_IDS, OUT_DISTANCES, BUFFERS };

typedef struct {
    Py_buffer views[BUFFERS];
    Segment segment;
    Job job;
    int threads;
} Call;

static void call_release(Call *call) {
    for (int i = 0; i < BUFFERS; i++)
        if (call->views[i].obj) PyBuffer_Release(&call->views[i]);
}

/* Checks what would make the loops read outside the arrays; damaged contents are met later. */
static int call_take(Call *call, PyObject *const *objects, Py_ssize_t stride) {
    memset(call->views, 0, sizeof call->views);
    for (int i = 0; i < BUFFERS; i++) {
        if (!objects[i] || objects[i] == Py_None) continue;
        int flags = PyBUF_ND | (i >= OUT_IDS ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[i], &call->views[i], flags)) return 0;
    }
    Py_buffer *v = call->views;
    Segment *g = &call->segment;
    memset(g, 0, sizeof *g);
    uint64_t rows = stride > 0 ? (uint64_t)(v[CODES].len / stride) : 0;
    Py_ssize_t width = v[IDS].itemsize;
    if (!(stride == 4 || (stride > 0 && stride % 8 == 0 && stride <= TILE_BYTES)) ||
        v[CODES].len % stride || v[QUERIES].len % stride || rows >= UINT32_MAX ||
        v[QUERIES].len / stride >= UINT32_MAX - GROUP * 64 || (width != 4 && width != 8) ||
        (v[OFFSETS].obj && v[OFFSETS].len != (Py_ssize_t)(rows + 1) * 4) ||
        (!v[OFFSETS].obj && v[IDS].len / width != (Py_ssize_t)rows) ||
        v[STARTS].len % ((CHUNKS + 1) * 4)) {
        PyErr_SetString(PyExc_ValueError, "the arrays of the segment do not fit together");
        return 0;
    }
    g->codes = v[CODES].buf;
    g->count = (uint32_t)rows;
    g->stride = (uint32_t)stride;
    g->offsets = v[OFFSETS].buf;
    g->ids = v[IDS].buf;
    g->wide = width == 8;
    g->items = (uint64_t)(v[IDS].len / width);
    g->tables = (uint32_t)(v[STARTS].len / ((CHUNKS + 1) * 4));
    g->starts = v[STARTS].buf;
    g->orders = v[ORDERS].buf;
    if ((g->tables > 1 && v[ORDERS].len != (Py_ssize_t)((g->tables - 1) * rows * 4)) ||
        g->tables > MOST_TABLES || g->tables > (stride == 4 ? 2 : (uint32_t)stride / 2)) {
        PyErr_SetString(PyExc_ValueError, "the tables do not fit the codes");
        return 0;
    }
    memset(&call->job, 0, sizeof call->job);
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
    if (call->job.failed == 1) PyErr_NoMemory();
    else if (call->job.failed) PyErr_SetString(PyExc_ValueError, "damaged");
    return !call->job.failed;
}

PyDoc_STRVAR(search_doc,
             "search(codes, stride, offsets, ids, starts, orders, queries, k, patience, threads,\n"
             "       out_ids, out_distances) -> queries answered by the tables\n\n"
             "Fills the rows of out_* with the k nearest items; places left over keep their value.\n"
             "The tables may cost `patience` times a scan before they give up; 0: scan at once.");

static PyObject *py_search(PyObject *self, PyObject *args) {
    (void)self;
    Call call;
    PyObject *o[BUFFERS] = {0};
    Py_ssize_t stride;
    unsigned long long k;
    double patience;
    if (!PyArg_ParseTuple(args, "OnOOOOOKdiOO", &o[CODES], &stride, &o[OFFSETS], &o[IDS],
                          &o[STARTS], &o[ORDERS], &o[QUERIES], &k, &patience, &call.threads,
                          &o[OUT_IDS], &o[OUT_DISTANCES]))
        return NULL;
    PyObject *result = NULL;
    if (call_take(&call, o, stride)) {
        Job *job = &call.job;
        job->patience = patience;
        job->k = k;
        job->out_ids = call.views[OUT_IDS].buf;
        job->out_distances = call.views[OUT_DISTANCES].buf;
        if (!k || call.views[OUT_IDS].len != (Py_ssize_t)(job->count * k * 8) ||
            call.views[OUT_DISTANCES].len != (Py_ssize_t)(job->count * k * 4))
            PyErr_SetString(PyExc_ValueError, "the output does not fit the queries and k");
        else if (call_run(&call)) result = PyLong_FromUnsignedLong(job->answered);
    }
    call_release(&call);
    return result;
}

PyDoc_STRVAR(within_doc,
             "within(codes, stride, offsets, ids, starts, orders, queries, radius, patience,\n"
             "       threads)\n"
             "-> (counts, ids, distances) as bytes of int64, int64 and int32");

static PyObject *py_within(PyObject *self, PyObject *args) {
    (void)self;
    Call call;
    PyObject *o[BUFFERS] = {0}, *result = NULL, *counts = NULL, *ids = NULL, *distances = NULL;
    Py_ssize_t stride;
    unsigned int radius;
    double patience;
    if (!PyArg_ParseTuple(args, "OnOOOOOIdi", &o[CODES], &stride, &o[OFFSETS], &o[IDS], &o[STARTS],
                          &o[ORDERS], &o[QUERIES], &radius, &patience, &call.threads))
        return NULL;
    if (!call_take(&call, o, stride)) {
        call_release(&call);
        return NULL;
    }
    Job *job = &call.job;
    job->patience = patience;
    job->k = UINT64_MAX;
    if (radius < job->limit) job->limit = radius;
    job->lists = calloc(job->count + 1, sizeof *job->lists);
    if (!job->lists) PyErr_NoMemory();
    else if (call_run(&call)) {
        size_t total = 0;
        for (uint32_t q = 0; q < job->count; q++) total += job->lists[q].used;
        counts = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)job->count * 8);
        ids = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total * 8);
        distances = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total * 4);
        if (counts && ids && distances) {
            size_t at = 0;
            for (uint32_t q = 0; q < job->count; q++) {
                List *list = &job->lists[q];
                ((int64_t *)PyBytes_AS_STRING(counts))[q] = (int64_t)list->used;
                if (list->used) {
                    memcpy(PyBytes_AS_STRING(ids) + at * 8, list->ids, list->used * 8);
                    memcpy(PyBytes_AS_STRING(distances) + at * 4, list->distances, list->used * 4);
                }
                at += list->used;
            }
            result = PyTuple_Pack(3, counts, ids, distances);
        }
        Py_XDECREF(counts);
        Py_XDECREF(ids);
        Py_XDECREF(distances);
    }
    if (job->lists)
        for (uint32_t q = 0; q < job->count; q++) {
            free(job->lists[q].ids);
            free(job->lists[q].distances);
        }
    free(job->lists);
    call_release(&call);
    return result;
}

PyDoc_STRVAR(use_doc, "use(name) -> the kernel now in use; \"\" or \"auto\" takes the fastest here");

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

/* What the memory gives: a plain sum, for the benchmark to compare with. */
static uint64_t sum_body(const uint64_t *words, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += words[i];
    return sum;
}
#if defined(__x86_64__)
AVX512 static uint64_t sum_avx512(const uint8_t *p, size_t n) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= n; i += 256) {
        a = _mm512_add_epi64(a, _mm512_loadu_si512(p + i));
        b = _mm512_add_epi64(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_add_epi64(c, _mm512_loadu_si512(p + i + 128));
        d = _mm512_add_epi64(d, _mm512_loadu_si512(p + i + 192));
    }
    a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}
#endif

static PyObject *py_read_sum(PyObject *self, PyObject *object) {
    (void)self;
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE)) return NULL;
    uint64_t sum;
    Py_BEGIN_ALLOW_THREADS
#if defined(__x86_64__)
    if (supported("avx512")) sum = sum_avx512(view.buf, (size_t)view.len);
    else
#endif
        sum = sum_body(view.buf, (size_t)view.len / 8);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(sum);
}

static PyMethodDef methods[] = {
    {"search", py_search, METH_VARARGS, search_doc},
    {"within", py_within, METH_VARARGS, within_doc},
    {"use", py_use, METH_VARARGS, use_doc},
    {"read_sum", py_read_sum, METH_O, "read_sum(buffer) -> the sum of its 64-bit words"},
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
