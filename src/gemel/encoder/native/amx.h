// AMX: products of whole tiles, 16 rows by 16 outputs, over 64 bytes of each row at once.
//
// A panel of an int8 or bfloat16 matrix is already laid out as the tiles want it: 16 steps of one vector of outputs are
// a tile of weights. Rows past the end are multiplied too and never read.
#pragma once
#include "matmul.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && !defined(GEMEL_EMULATE_AMX)
#define HAS_AMX 1
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#elif defined(GEMEL_EMULATE_AMX)  // the same tiles in plain C++, to test the code around them on any processor
#define HAS_AMX 1
#endif

#if defined(HAS_AMX)
#define AMX_STEPS 16  // a row is padded to whole tiles
#define AMX_ROWS 32   // rows of two tiles, which share the weights that were loaded
#else
#define AMX_STEPS 1
#define AMX_ROWS 1
#endif

#if defined(HAS_AMX) && !defined(GEMEL_EMULATE_AMX)

struct TileShapes {  // the layout that the processor reads
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

// Tiles belong to a thread: each thread that multiplies holds one of these.
class TileScope {
  public:
    TileScope() {
        TileShapes shapes = {};
        shapes.palette = 1;
        for (int tile = 0; tile < 8; tile++) shapes.bytes[tile] = 64, shapes.rows[tile] = 16;
        asm volatile("" : : "r"(&shapes) : "memory");  // as below: the intrinsic names only the first bytes as its input
        _tile_loadconfig(&shapes);
    }
    ~TileScope() { _tile_release(); }
};

// The compiler does not know that a load of a tile reads memory: what was written must be there before the first one.
#define BEFORE_TILES(memory) asm volatile("" : : "r"(memory) : "memory")
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define TILE_INT8(sum, a, b) _tile_dpbusd(sum, a, b)
#define TILE_BFLOAT16(sum, a, b) _tile_dpbf16ps(sum, a, b)

#elif defined(GEMEL_EMULATE_AMX)

struct TileScope {
    ~TileScope() {}
};
struct Tile {
    alignas(64) char row[16][64];
};
static thread_local Tile tiles[8];

static void emulated_load(int tile, const void *from, long stride) {
    for (int r = 0; r < 16; r++) memcpy(tiles[tile].row[r], (const char *)from + r * stride, 64);
}
static void emulated_store(int tile, void *to, long stride) {
    for (int r = 0; r < 16; r++) memcpy((char *)to + r * stride, tiles[tile].row[r], 64);
}
static void emulated_int8(int sum, int a, int b) {
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) {
            int32_t total;
            memcpy(&total, tiles[sum].row[r] + 4 * c, 4);
            for (int k = 0; k < 64; k++)
                total += (int32_t)(uint8_t)tiles[a].row[r][k] * (int32_t)(int8_t)tiles[b].row[k / 4][4 * c + k % 4];
            memcpy(tiles[sum].row[r] + 4 * c, &total, 4);
        }
}
static float from_bfloat16(const char *p) {
    uint32_t bits = 0;
    memcpy((char *)&bits + 2, p, 2);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static void emulated_bfloat16(int sum, int a, int b) {
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) {
            float total, odd = 0, even = 0;
            for (int k = 0; k < 16; k++) {
                even += from_bfloat16(tiles[a].row[r] + 4 * k) * from_bfloat16(tiles[b].row[k] + 4 * c);
                odd += from_bfloat16(tiles[a].row[r] + 4 * k + 2) * from_bfloat16(tiles[b].row[k] + 4 * c + 2);
            }
            memcpy(&total, tiles[sum].row[r] + 4 * c, 4);
            total += even + odd;
            memcpy(tiles[sum].row[r] + 4 * c, &total, 4);
        }
}
#define BEFORE_TILES(memory)
#define TILE_ZERO(tile) memset(&tiles[tile], 0, sizeof(Tile))
#define TILE_LOAD(tile, from, stride) emulated_load(tile, from, stride)
#define TILE_STORE(tile, to, stride) emulated_store(tile, to, stride)
#define TILE_INT8(sum, a, b) emulated_int8(sum, a, b)
#define TILE_BFLOAT16(sum, a, b) emulated_bfloat16(sum, a, b)

#else

struct TileScope {
    ~TileScope() {}
};

#endif

#if defined(HAS_AMX)

// Tiles 0 to 2 are the sums of the first 16 rows, 3 to 5 those of the next, 6 has rows and 7 weights. INTEGERS: int8.
#define TILE_STEP(INTEGERS, sum) \
    if constexpr (INTEGERS) TILE_INT8(sum, 6, 7); else TILE_BFLOAT16(sum, 6, 7)

template <bool INTEGERS, int HALVES, int VECTORS>
static inline void multiply_tiles(const char *a, long a_stride, const char *panel, long steps, char *sums) {
    const long stride = VECTORS * 64;
    BEFORE_TILES(a);
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2);
    TILE_ZERO(3); TILE_ZERO(4); TILE_ZERO(5);
    for (long s = 0; s < steps; s += 16, a += 64, panel += 16 * stride) {
        TILE_LOAD(6, a, a_stride);
        TILE_LOAD(7, panel, stride);
        TILE_STEP(INTEGERS, 0);
        if constexpr (VECTORS > 1) {
            TILE_LOAD(7, panel + 64, stride);
            TILE_STEP(INTEGERS, 1);
        }
        if constexpr (VECTORS > 2) {
            TILE_LOAD(7, panel + 128, stride);
            TILE_STEP(INTEGERS, 2);
        }
        if constexpr (HALVES > 1) {  // backwards: the weights that were used last are still there
            TILE_LOAD(6, a + 16 * a_stride, a_stride);
            if constexpr (VECTORS > 2) {
                TILE_STEP(INTEGERS, 5);
                TILE_LOAD(7, panel + 64, stride);
            }
            if constexpr (VECTORS > 1) {
                TILE_STEP(INTEGERS, 4);
                TILE_LOAD(7, panel, stride);
            }
            TILE_STEP(INTEGERS, 3);
        }
    }
    TILE_STORE(0, sums, stride);
    if constexpr (VECTORS > 1) TILE_STORE(1, sums + 64, stride);
    if constexpr (VECTORS > 2) TILE_STORE(2, sums + 128, stride);
    if constexpr (HALVES > 1) {
        sums += 16 * stride;
        TILE_STORE(3, sums, stride);
        if constexpr (VECTORS > 1) TILE_STORE(4, sums + 64, stride);
        if constexpr (VECTORS > 2) TILE_STORE(5, sums + 128, stride);
    }
}

template <class Form, int ROWS, int VECTORS>
static void finish_tile(const Product &p, const char *sums, long row, long column, long columns) {
    typename Form::Sum sum[ROWS][VECTORS];
    Vec value[ROWS][VECTORS];
    memcpy(sum, sums, sizeof(sum));
    Form::template values<ROWS, VECTORS>(p, sum, value, row, column);
    activate_and_store<ROWS, VECTORS>(p, value, row, column, columns);
}
#define FINISH_TILE(ROWS, VECTORS) finish_tile<Form, ROWS, VECTORS>

// As grouped_panel. The rows of p.a_small go on to a whole number of AMX_ROWS.
template <class Form>
static void amx_panel(const Product &p, const char *panel, long steps, long rows, long column, long columns) {
    constexpr bool integers = Form::INPUTS == 4;
    const int vectors = vectors_in(columns);
    alignas(64) char sums[AMX_ROWS * TILE_COLUMNS * 4];
    for (long start = 0; start < rows; start += AMX_ROWS) {
        const char *a = p.a_small + start * p.a_stride;
        long here = rows - start < AMX_ROWS ? rows - start : AMX_ROWS;
        switch (vectors * 2 + (here > 16)) {
            case 2: multiply_tiles<integers, 1, 1>(a, p.a_stride, panel, steps, sums); break;
            case 3: multiply_tiles<integers, 2, 1>(a, p.a_stride, panel, steps, sums); break;
            case 4: multiply_tiles<integers, 1, 2>(a, p.a_stride, panel, steps, sums); break;
            case 5: multiply_tiles<integers, 2, 2>(a, p.a_stride, panel, steps, sums); break;
            case 6: multiply_tiles<integers, 1, 3>(a, p.a_stride, panel, steps, sums); break;
            default: multiply_tiles<integers, 2, 3>(a, p.a_stride, panel, steps, sums); break;
        }
        for (long row = 0; row < here; row += TILE_ROWS) {
            int some = (int)(here - row < TILE_ROWS ? here - row : TILE_ROWS);
            FOR_TILE(FINISH_TILE, some, vectors, p, sums + row * vectors * 64, start + row, column, columns)
        }
    }
}
#endif

// One panel by whatever this level has; see grouped_panel and amx_panel.
template <class Form>
static inline void narrow_panel(const Product &p, const char *panel, long steps, long rows, long column, long columns) {
#if defined(HAS_AMX)
    amx_panel<Form>(p, panel, steps, rows, column, columns);
#else
    grouped_panel<Form>(p, panel, steps, rows, column, columns);
#endif
}

// Whether tiles work here. The kernel must permit them, and they are tried in a child process: a hypervisor may announce
// them without letting them run, or let them run without announcing their shapes.
#if defined(HAS_AMX) && !defined(GEMEL_EMULATE_AMX)
static bool permit_tiles() {
    const long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

static bool tiles_multiply() {
    TileScope scope;
    alignas(64) uint8_t a[16][64];
    alignas(64) int8_t b[16][64];
    alignas(64) int32_t sum[16][16];
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 64; k++) a[r][k] = (uint8_t)(r + k), b[r][k] = (int8_t)(r - k);
    BEFORE_TILES(a);
    BEFORE_TILES(b);
    TILE_ZERO(0);
    TILE_LOAD(6, a, 64);
    TILE_LOAD(7, b, 64);
    TILE_INT8(0, 6, 7);
    TILE_STORE(0, sum, 64);
    TILE_ZERO(1);
    TILE_BFLOAT16(1, 6, 7);  // only whether it runs
    int32_t expected = 0;
    for (int k = 0; k < 64; k++) expected += (int32_t)a[15][k] * (int32_t)b[k / 4][4 * 15 + k % 4];
    return sum[15][15] == expected;
}

static bool amx_works() {
    if (!permit_tiles()) return false;
    int *answer = (int *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (answer == MAP_FAILED) return false;
    *answer = 0;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_DUMPABLE, 0);
        signal(SIGILL, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        *answer = tiles_multiply();
        _exit(0);
    }
    if (child > 0) {
        int status;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    }
    bool works = *answer == 1;
    munmap(answer, 4096);
    return works;
}
#endif
