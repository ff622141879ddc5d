/* SipHash-2-4 with 128 bits of result (Aumasson, Bernstein), as its reference computes it. */

#ifndef KAFKALITE_SIPHASH_H
#define KAFKALITE_SIPHASH_H

#include "_bytes.h"

#define sip_rotate(word, bits) (((word) << (bits)) | ((word) >> (64 - (bits))))
#define sip_round() do { \
    v0 += v1; v1 = sip_rotate(v1, 13); v1 ^= v0; v0 = sip_rotate(v0, 32); \
    v2 += v3; v3 = sip_rotate(v3, 16); v3 ^= v2; \
    v0 += v3; v3 = sip_rotate(v3, 21); v3 ^= v0; \
    v2 += v1; v1 = sip_rotate(v1, 17); v1 ^= v2; v2 = sip_rotate(v2, 32); \
} while (0)

static inline void siphash(
    const uint64_t *secret, const uint8_t *key, size_t size, uint64_t *hash
) {
    uint64_t v0 = secret[0] ^ 0x736f6d6570736575ull;
    uint64_t v1 = secret[1] ^ 0x646f72616e646f6dull ^ 0xee;
    uint64_t v2 = secret[0] ^ 0x6c7967656e657261ull;
    uint64_t v3 = secret[1] ^ 0x7465646279746573ull;
    uint64_t word, last = (uint64_t) size << 56;
    const uint8_t *whole = key + (size & ~(size_t) 7);
    for (; key != whole; key += 8) {
        word = get_word(key);
        v3 ^= word;
        sip_round(); sip_round();
        v0 ^= word;
    }
    for (size_t i = 0; i < (size & 7); i++)
        last |= (uint64_t) key[i] << (8 * i);
    v3 ^= last;
    sip_round(); sip_round();
    v0 ^= last;
    v2 ^= 0xee;
    sip_round(); sip_round(); sip_round(); sip_round();
    hash[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    sip_round(); sip_round(); sip_round(); sip_round();
    hash[1] = v0 ^ v1 ^ v2 ^ v3;
}

#endif
