/* Numbers in bytes: big endian as in batches, little endian as hashes and sums take them. */

#ifndef KAFKALITE_BYTES_H
#define KAFKALITE_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define bytes_swap32(number) __builtin_bswap32(number)
#define bytes_swap64(number) __builtin_bswap64(number)
#else
#include <stdlib.h>
#define bytes_swap32(number) _byteswap_ulong(number)
#define bytes_swap64(number) _byteswap_uint64(number)
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define bytes_big32(number) (number)
#define bytes_big64(number) (number)
#define bytes_little64(number) bytes_swap64(number)
#else
#define bytes_big32(number) bytes_swap32(number)
#define bytes_big64(number) bytes_swap64(number)
#define bytes_little64(number) (number)
#endif

static inline int32_t get_int32(const uint8_t *at) {
    uint32_t n;
    memcpy(&n, at, 4);
    return (int32_t) bytes_big32(n);
}

static inline int64_t get_int64(const uint8_t *at) {
    uint64_t n;
    memcpy(&n, at, 8);
    return (int64_t) bytes_big64(n);
}

static inline void put_int32(uint8_t *at, int32_t number) {
    uint32_t n = bytes_big32((uint32_t) number);
    memcpy(at, &n, 4);
}

static inline void put_int64(uint8_t *at, int64_t number) {
    uint64_t n = bytes_big64((uint64_t) number);
    memcpy(at, &n, 8);
}

/* Eight bytes, the first of them the lowest. */
static inline uint64_t get_word(const uint8_t *at) {
    uint64_t n;
    memcpy(&n, at, 8);
    return bytes_little64(n);
}

#endif
