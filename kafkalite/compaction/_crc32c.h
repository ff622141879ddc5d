/* CRC-32C: eight bytes at a time by tables, or by the processor's own instruction. That takes three
   cycles and may begin in each, so three stretches are summed at once; a sum is moved on by a
   stretch of zeros with a table, as a CRC is linear. `crc32c_begin` comes before all. */

#ifndef KAFKALITE_CRC32C_H
#define KAFKALITE_CRC32C_H

#include "_bytes.h"

#define CRC_STRETCH 512
static uint32_t crc_tables[8][256];
static uint32_t crc_moves[4][256];
static int crc_is_native;

static uint32_t crc_by_tables(uint32_t crc, const uint8_t *at, size_t size) {
    while (size >= 8) {
        uint64_t word = get_word(at) ^ crc;
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= crc_tables[7 - i][(word >> (8 * i)) & 0xFF];
        at += 8;
        size -= 8;
    }
    while (size--)
        crc = crc_tables[0][(crc ^ *at++) & 0xFF] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

static uint32_t crc_moved(uint32_t crc) {
    return crc_moves[0][crc & 0xFF] ^ crc_moves[1][crc >> 8 & 0xFF]
        ^ crc_moves[2][crc >> 16 & 0xFF] ^ crc_moves[3][crc >> 24];
}

__attribute__((target("sse4.2")))
static uint32_t crc_by_processor(uint32_t start, const uint8_t *at, size_t size) {
    uint64_t crc = start;
    while (size >= 3 * CRC_STRETCH) {
        uint64_t second = 0, third = 0;
        for (const uint8_t *end = at + CRC_STRETCH; at != end; at += 8) {
            crc = __builtin_ia32_crc32di(crc, get_word(at));
            second = __builtin_ia32_crc32di(second, get_word(at + CRC_STRETCH));
            third = __builtin_ia32_crc32di(third, get_word(at + 2 * CRC_STRETCH));
        }
        crc = crc_moved((uint32_t) crc) ^ second;
        crc = crc_moved((uint32_t) crc) ^ third;
        at += 2 * CRC_STRETCH;
        size -= 3 * CRC_STRETCH;
    }
    while (size >= 8) {
        crc = __builtin_ia32_crc32di(crc, get_word(at));
        at += 8;
        size -= 8;
    }
    while (size--)
        crc = __builtin_ia32_crc32qi((uint32_t) crc, *at++);
    return (uint32_t) crc;
}

#define crc_detect() __builtin_cpu_supports("sse4.2")
#else
#define crc_by_processor crc_by_tables
#define crc_detect() 0
#endif

static void crc32c_begin(void) {
    static const uint8_t zeros[CRC_STRETCH];
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
        crc_tables[0][byte] = crc;
    }
    for (int i = 1; i < 8; i++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t before = crc_tables[i - 1][byte];
            crc_tables[i][byte] = crc_tables[0][before & 0xFF] ^ (before >> 8);
        }
    for (int i = 0; i < 4; i++)
        for (uint32_t byte = 0; byte < 256; byte++)
            crc_moves[i][byte] = crc_by_tables(byte << (8 * i), zeros, CRC_STRETCH);
    crc_is_native = crc_detect();
}

static uint32_t crc32c(const uint8_t *at, size_t size) {
    return ~(crc_is_native ? crc_by_processor(~0u, at, size) : crc_by_tables(~0u, at, size));
}

#endif
