// Resizing with a triangular filter: the kernel of `pixels/resize.py`, whose tables make the same sums.
namespace resize {
DEVICE int taps(int source, int target) { return larger((2 * source + target - 1) / target, 2); }

// Weights of consecutive source pixels for a target pixel, whose sum is 1.
struct Triangle {
  double centre, radius, total;
  int first;
  MEMBER Triangle(int place, double scale, int taps)
      : centre((place + 0.5) * scale - 0.5), radius(larger(scale, 1.0)), total(0.0) {
    first = (int)ceil(centre - radius);
    for (int tap = 0; tap < taps; tap++) total += unnormalised(tap);
  }
  MEMBER double unnormalised(int tap) const { return larger(0.0, 1 - fabs(first + tap - centre) / radius); }
  MEMBER double weight(int tap) const { return unnormalised(tap) / total; }
};

// The room: weights of columns, whole or, of many, float64; where they begin; where those of rows begin; and these.
struct Tables {
  int across, down;
  bool many;
  double* parts;
  i64* wholes;
  int *firsts, *rows;
  float* shares;
  MEMBER Tables(const Step& step, const crop_flip::Window& window)
      : across(taps(window.width, window.columns)), down(taps(window.height, window.lines)), many(across > MANY_TAPS) {
    parts = (double*)step.room;
    wholes = (i64*)step.room;
    firsts = (int*)(parts + (i64)step.columns * across);
    rows = firsts + step.columns;
    shares = (float*)(rows + step.lines);
  }
};

struct bilinear : Kernel {
  DEVICE void prepare(const Step& step, const Block& block) {
    crop_flip::Window window(step);
    Tables tables(step, window);
    double scale_x = (double)window.width / window.columns, scale_y = (double)window.height / window.lines;
    for (int x = block.thread; x < step.columns; x += block.threads) {
      Triangle triangle(window.place(x), scale_x, tables.across);
      tables.firsts[x] = triangle.first;
      i64 begin = (i64)x * tables.across, rest = 1 << RESIZE_WEIGHT_BITS;
      int largest = 0;
      for (int tap = 0; tap < tables.across; tap++) {
        double weight = triangle.weight(tap);
        if (tables.many) {
          tables.parts[begin + tap] = weight;
          continue;
        }
        tables.wholes[begin + tap] = (i64)rint(weight * (1 << RESIZE_WEIGHT_BITS));
        rest -= tables.wholes[begin + tap];
        if (weight > triangle.weight(largest)) largest = tap;
      }
      if (!tables.many) tables.wholes[begin + largest] += rest;
    }
    for (int y = block.thread; y < step.lines; y += block.threads) {
      Triangle triangle(window.line + y, scale_y, tables.down);
      tables.rows[y] = triangle.first;
      for (int tap = 0; tap < tables.down; tap++)
        tables.shares[(i64)y * tables.down + tap] = (float)(triangle.weight(tap) / (1 << RESIZE_WEIGHT_BITS));
    }
  }

  // A pixel of a source's row, in levels times 2 ** RESIZE_WEIGHT_BITS.
  DEVICE void across(const Step& step, const crop_flip::Window& window, const Tables& tables, int row, int x, float* sums) {
    const u8* line = step.image + 3 * ((i64)(window.top + row) * step.width + window.left);
    i64 begin = (i64)x * tables.across;
    int whole[3] = {0, 0, 0};
    double parts[3] = {0.0, 0.0, 0.0};
    for (int tap = 0; tap < tables.across; tap++) {
      const u8* source = line + 3 * within(tables.firsts[x] + tap, 0, window.width - 1);
      for (int channel = 0; channel < 3; channel++)
        if (tables.many) parts[channel] += source[channel] * tables.parts[begin + tap];
        else whole[channel] += source[channel] * (int)tables.wholes[begin + tap];
    }
    for (int channel = 0; channel < 3; channel++)
      sums[channel] = tables.many ? (float)(parts[channel] * (1 << RESIZE_WEIGHT_BITS)) : (float)whole[channel];
  }

  DEVICE Pixel pixel(const Step& step, int y, int x) {
    crop_flip::Window window(step);
    Tables tables(step, window);
    float sums[3], row[3];
    for (int tap = 0; tap < tables.down; tap++) {
      float share = tables.shares[(i64)y * tables.down + tap];
      if (tap > 0 && !(share > 0)) continue;
      across(step, window, tables, within(tables.rows[y] + tap, 0, window.height - 1), x, row);
      for (int channel = 0; channel < 3; channel++)
        sums[channel] = (tap == 0 ? 0.5f : sums[channel]) + share * row[channel];
    }
    return each_channel([&](int channel) { return (u32)(u8)(int)smaller(sums[channel], 255.0f); });
  }
};
}  // namespace resize
