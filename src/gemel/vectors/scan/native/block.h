// The packed side: rows laid out by panels, so that a tile reads them from end to end; and the limits of their sums.
#pragma once
#include <algorithm>
#include <vector>

#include "tile.h"

static inline long round_up(long n, long step) { return (n + step - 1) / step * step; }
static inline long padded_dim(long dim) { return round_up(dim, 16); }

// How the score that a pair must reach becomes a limit for its sum. `slack` covers all rounding.
struct Bounds {
    int64_t kind, form;
    double scale;  // product: of both factors; distances: the factor
    double slack;  // of sums of rows no longer than 1
    double relative;  // of the limit itself

    float limit(float floor) const {
        double t = (floor - 0x1p-149) * scale;  // below the smallest float32, scores round by as much
        if (kind != PRODUCT && floor > 0) return INFINITY;  // distances are never negative
        if (kind == EUCLIDEAN) t = -t * t / 2;
        return (float)(t - std::fabs(t) * relative - slack);
    }
};

struct Block {
    const Rows *rows;
    int64_t begin, count;
    void *packed;
    float *own;      // per lane: added to its sums
    float *step;     // per lane, int8
    int32_t *start;  // per lane, int8
    float *widest;   // one number: the largest rounding error of a lane

    long lanes(long panel) const { return std::min<long>(TILE_COLUMNS, count - panel * TILE_COLUMNS); }
    long panels() const { return (count + TILE_COLUMNS - 1) / TILE_COLUMNS; }

    Panel panel(long number, int form, const float *bias) const {
        long at = number * TILE_COLUMNS, bytes = form == INT8 ? 1 : sizeof(float);
        const char *start_of_panel = (const char *)packed + at * padded_dim(rows->dim) * bytes;
        return {start_of_panel, bias + at, step + at, start + at, (int)((lanes(number) + LANES - 1) / LANES)};
    }
};

// Upper bounds of what the length of a row and its rounding error add to its sums.
static inline float row_bias(const Bounds &bounds, const float *scaled, long padded, float error) {
    return (bounds.kind == EUCLIDEAN ? -0.5f * square_sum(scaled, padded) : 0.0f) + error;
}

static void pack(const Block &block, const Bounds &bounds) {
    const long padded = padded_dim(block.rows->dim);
    std::vector<float> scaled(padded);
    std::vector<uint8_t> small(padded);
    *block.widest = 0;
    for (long lane = 0; lane < round_up(block.count, TILE_COLUMNS); lane++) {
        long number = lane / TILE_COLUMNS, within = lane % TILE_COLUMNS;
        Panel panel = block.panel(number, (int)bounds.form, block.own);
        long width = panel.vectors * LANES;
        block.own[lane] = block.step[lane] = 0;
        block.start[lane] = 0;
        if (within >= width) continue;
        if (lane < block.count)
            scale_row(*block.rows, block.rows->position(block.begin + lane), scaled.data(), padded);
        else
            std::fill(scaled.begin(), scaled.end(), 0.0f);
        float error = 0;
        if (bounds.form == INT8) {
            error = to_int8(scaled.data(), padded, small.data(), block.step + lane);
            int8_t *out = (int8_t *)panel.packed + within * 4;
            for (long k = 0; k < padded; k++) {
                int value = (int)small[k] - 128;
                out[k / 4 * width * 4 + k % 4] = (int8_t)value;
                block.start[lane] -= 128 * value;
            }
        } else {
            float *out = (float *)panel.packed + within;
            for (long k = 0; k < padded; k++) out[k * width] = scaled[k];
        }
        *block.widest = std::max(*block.widest, error);
        block.own[lane] = row_bias(bounds, scaled.data(), padded, error);
    }
}
