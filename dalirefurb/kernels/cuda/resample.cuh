// Resizing with filters that have negative weights: the kernels of `pixels/resample.py`.
namespace resample {
using crop_flip::Window;

// How far a filter reaches, in pixels of the larger image, and its value at a distance from its centre.
struct Cubic {
  static const int RADIUS = 2;
  DEVICE double at(double x) {
    x = fabs(x);
    if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0.0;
  }
};

struct Lanczos {
  static const int RADIUS = 3;
  DEVICE double at(double x) {
    const double pi = 3.141592653589793;
    x = fabs(x);
    if (x == 0.0) return 1.0;
    double sine = sin(x * (pi / 3));
    return x < 3.0 ? (3 - 4 * sine * sine) * sine * sine / (x * x * (pi * pi / 3)) : 0.0;
  }
};

DEVICE int taps(int radius, int source, int target) {
  return 2 * (int)ceil(radius * larger((double)source / target, 1.0)) + 1;
}

template <class Filter> DEVICE void weigh(int place, int source, int target, int* first, int* count, int* weights) {
  double scale = (double)source / target, stretch = larger(scale, 1.0), centre = (place + 0.5) * scale, total = 0.0;
  *first = larger((int)(centre - Filter::RADIUS * stretch + 0.5), 0);
  *count = smaller((int)(centre + Filter::RADIUS * stretch + 0.5), source) - *first;
  for (int tap = 0; tap < *count; tap++) total += Filter::at((*first + tap - centre + 0.5) * (1.0 / stretch));
  for (int tap = 0; tap < *count; tap++) {
    double share = Filter::at((*first + tap - centre + 0.5) * (1.0 / stretch)) / total * (1 << RESAMPLE_WEIGHT_BITS);
    weights[tap] = (int)(share < 0 ? share - 0.5 : share + 0.5);
  }
}

// Levels added up by weights, rounded.
struct Sums {
  int of[3];
  MEMBER Sums() {
    for (int channel = 0; channel < 3; channel++) of[channel] = 1 << (RESAMPLE_WEIGHT_BITS - 1);
  }
  MEMBER void add(const u8* levels, int weight) {
    for (int channel = 0; channel < 3; channel++) of[channel] += levels[channel] * weight;
  }
  MEMBER u8 level(int channel) const { return (u8)within(of[channel] >> RESAMPLE_WEIGHT_BITS, 0, 255); }
};

// The room: for each column the first source, their number, and weights; for each row likewise, all int32; and what the
// first pass makes, uint8: rows of the window, resized; or, where the height shrinks much more than the width, as Pillow
// does it, rows of the result whose columns are the window's.
struct Tables {
  int across, down;
  bool rows_first;
  int *firsts, *counts, *weights, *rows, *reaches, *shares;
  u8* passed;
  MEMBER Tables(const Step& step, const Window& window, int radius)
      : across(taps(radius, window.width, window.columns)), down(taps(radius, window.height, window.lines)),
        rows_first(window.height - window.lines > larger(2 * (window.width - window.columns), 0)) {
    firsts = (int*)step.room;
    counts = firsts + step.columns;
    weights = counts + step.columns;
    rows = weights + (i64)step.columns * across;
    reaches = rows + step.lines;
    shares = reaches + step.lines;
    passed = (u8*)(shares + (i64)step.lines * down);
  }
};

template <class Filter> struct Resample : Kernel {
  DEVICE void prepare(const Step& step, const Block& block) {
    Window window(step);
    Tables tables(step, window, Filter::RADIUS);
    for (int x = block.thread; x < step.columns; x += block.threads)
      weigh<Filter>(window.place(x), window.width, window.columns, tables.firsts + x, tables.counts + x,
                    tables.weights + (i64)x * tables.across);
    for (int y = block.thread; y < step.lines; y += block.threads)
      weigh<Filter>(window.line + y, window.height, window.lines, tables.rows + y, tables.reaches + y,
                    tables.shares + (i64)y * tables.down);
  }

  DEVICE i64 passed(const Step& step) {
    Window window(step);
    Tables tables(step, window, Filter::RADIUS);
    return tables.rows_first ? (i64)step.lines * window.width : (i64)window.height * step.columns;
  }

  DEVICE void pass(const Step& step, i64 at) {
    Window window(step);
    Tables tables(step, window, Filter::RADIUS);
    const u8* corner = step.image + 3 * ((i64)window.top * step.width + window.left);
    Sums sums;
    if (tables.rows_first) {
      int y = (int)(at / window.width), x = (int)(at % window.width);
      for (int tap = 0; tap < tables.reaches[y]; tap++)
        sums.add(corner + 3 * ((i64)(tables.rows[y] + tap) * step.width + x), tables.shares[(i64)y * tables.down + tap]);
    } else {
      int y = (int)(at / step.columns), x = (int)(at % step.columns), last = step.lines - 1;
      if (y < tables.rows[0] || y >= tables.rows[last] + tables.reaches[last]) return;
      for (int tap = 0; tap < tables.counts[x]; tap++)
        sums.add(corner + 3 * ((i64)y * step.width + tables.firsts[x] + tap), tables.weights[(i64)x * tables.across + tap]);
    }
    for (int channel = 0; channel < 3; channel++) tables.passed[3 * at + channel] = sums.level(channel);
  }

  DEVICE Pixel pixel(const Step& step, int y, int x) {
    Window window(step);
    Tables tables(step, window, Filter::RADIUS);
    Sums sums;
    if (tables.rows_first)
      for (int tap = 0; tap < tables.counts[x]; tap++)
        sums.add(tables.passed + 3 * ((i64)y * window.width + tables.firsts[x] + tap),
                 tables.weights[(i64)x * tables.across + tap]);
    else
      for (int tap = 0; tap < tables.reaches[y]; tap++)
        sums.add(tables.passed + 3 * ((i64)(tables.rows[y] + tap) * step.columns + x),
                 tables.shares[(i64)y * tables.down + tap]);
    return each_channel([&](int channel) { return (u32)sums.level(channel); });
  }
};

struct bicubic : Resample<Cubic> {};
struct lanczos : Resample<Lanczos> {};
}  // namespace resample
