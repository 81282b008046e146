// Included before every C++ file of llama.cpp. GCC's _tile_loadconfig (amxtileintrin.h) tells the optimizer of 8 of the
// 64 bytes that the instruction reads, so the stores of the others may be left out; llama.cpp's AMX kernels then load
// what the stack held before, and die with a general protection fault (seen with GCC 12 on a Xeon with AMX).
#if defined(__GNUC__) && !defined(__clang__) && defined(__AMX_TILE__)
#include <immintrin.h>
struct outpost_tile_config { char bytes[64]; };
static inline __attribute__((always_inline)) void outpost_tile_loadconfig(const void *config) {
    __asm__ volatile("ldtilecfg\t%X0" : : "m"(*(const struct outpost_tile_config *)config) : "memory");
}
static inline __attribute__((always_inline)) void outpost_tile_storeconfig(void *config) {
    __asm__ volatile("sttilecfg\t%X0" : "=m"(*(struct outpost_tile_config *)config) : : "memory");
}
#define _tile_loadconfig outpost_tile_loadconfig
#define _tile_storeconfig outpost_tile_storeconfig
#endif
