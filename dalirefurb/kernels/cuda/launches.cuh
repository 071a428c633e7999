// What is launched: for each step what its images prepare, the first of two passes, and pixels; last what comes out.
// `KERNELS` lists the kernels of a recipe with their numbers, from 1 on; 0 is none: the image stays.
struct Work {
  i64 count;        // n
  i64 steps;        // s
  i64 tail;         // steps before the crops and flips at the end, which what comes out does in passing
  i64 fused;        // whether it makes the pixels of the step before these, too
  i64 kernels;      // int32 (s, n)
  i64 numbers;      // float64 (s, n, WIDTH)
  i64 sizes;        // int32 (s + 1, n, 2): heights and widths before, between and after the steps
  i64 images;       // int64 (s + 1, n): addresses of what enters a step, and of what leaves the last one
  i64 results;      // int64 (s, n): addresses of where a step's image goes; 0: it is not made
  i64 rooms;        // memory of each image, `room_bytes` each
  i64 room_bytes;   // a multiple of 64
  i64 targets;      // int64 (n,): addresses of what comes out
  i64 output;       // an `Output`
  i64 means;        // float32 (3,)
  i64 scales;       // float32 (3,)
  i64 halves;       // uint16 (3, 256)
};

enum Output { FLOAT_PLANES, FLOAT_PIXELS, GREY_FLOATS, HALF_PLANES, HALF_PIXELS, GREY_HALVES, LEVELS };

DEVICE i64 place_of(const Work& work, i64 step, int row) { return step * work.count + row; }

DEVICE int kernel_of(const Work& work, i64 step, int row) {
  return ((const int*)work.kernels)[place_of(work, step, row)];
}

DEVICE Step step_of(const Work& work, i64 step, int row) {
  i64 place = place_of(work, step, row);
  const int *before = (const int*)work.sizes + 2 * place, *after = before + 2 * work.count;
  return {(const u8*)((const i64*)work.images)[place],
          before[0],
          before[1],
          after[0],
          after[1],
          (const double*)work.numbers + WIDTH * place,
          (u8*)work.rooms + row * work.room_bytes};
}

DEVICE Pixel pixel(int kernel, const Step& step, int y, int x) {
  switch (kernel) {
#define CASE(number, name) case number: return name::pixel(step, y, x);
    KERNELS(CASE)
#undef CASE
  }
  return step.at(y, x);
}

DEVICE void prepare_image(const Work& work, i64 step, int row, const Block& block) {
  switch (kernel_of(work, step, row)) {
#define CASE(number, name) case number: name::prepare(step_of(work, step, row), block); break;
    KERNELS(CASE)
#undef CASE
  }
}

DEVICE void pass_place(const Work& work, i64 step, int row, i64 at) {
  Step given = step_of(work, step, row);
  switch (kernel_of(work, step, row)) {
#define CASE(number, name) case number: if (at < name::passed(given)) name::pass(given, at); break;
    KERNELS(CASE)
#undef CASE
  }
}

template <class Number> struct alignas(4 * sizeof(Number)) Four { Number of[4]; };

// Writes numbers at consecutive places, at once where all four belong there.
template <class Number> DEVICE void store(Number* target, const Number* numbers, int count) {
  if (count == 4 && (u64)target % sizeof(Four<Number>) == 0) {
    *(Four<Number>*)target = {numbers[0], numbers[1], numbers[2], numbers[3]};
    return;
  }
  for (int place = 0; place < count; place++) target[place] = numbers[place];
}

// Writes up to four pixels, 12 bytes.
DEVICE void store_pixels(u8* target, const Pixel* pixels, int count) {
  if (count == 4 && (u64)target % 4 == 0) {
    u32* words = (u32*)target;
    words[0] = pixels[0] | pixels[1] << 24;
    words[1] = pixels[1] >> 8 | pixels[2] << 16;
    words[2] = pixels[2] >> 16 | pixels[3] << 8;
    return;
  }
  for (int place = 0; place < count; place++)
    for (int channel = 0; channel < 3; channel++) target[3 * place + channel] = level_of(pixels[place], channel);
}

// Four pixels of a step's result, from one on.
DEVICE void make_pixels(const Work& work, i64 step, int row, i64 first) {
  u8* result = (u8*)((const i64*)work.results)[place_of(work, step, row)];
  Step given = step_of(work, step, row);
  i64 all = (i64)given.lines * given.columns;
  if (!result || first >= all) return;
  Pixel pixels[4];
  int kernel = kernel_of(work, step, row), count = (int)smaller(all - first, (i64)4);
  for (int place = 0; place < count; place++)
    pixels[place] = pixel(kernel, given, (int)((first + place) / given.columns), (int)((first + place) % given.columns));
  store_pixels(result + 3 * first, pixels, count);
}

// A pixel of the last image, whose last crops and flips, and step before these, are done in passing.
DEVICE Pixel shown(const Work& work, int row, int y, int x) {
  for (i64 step = work.steps - 1; step >= work.tail; step--) {
    Step given = step_of(work, step, row);
    bool there = true;
    switch (kernel_of(work, step, row)) {
#define CASE(number, name) case number: there = name::from(given, y, x); break;
      KERNELS(CASE)
#undef CASE
    }
    if (!there) return 0;
  }
  i64 step = work.fused ? work.tail - 1 : work.tail;
  const int* size = (const int*)work.sizes + 2 * place_of(work, step, row);
  Step last = {(const u8*)((const i64*)work.images)[place_of(work, step, row)], size[0], size[1], 0, 0, nullptr, nullptr};
  return work.fused ? pixel(kernel_of(work, step, row), step_of(work, step, row), y, x) : last.at(y, x);
}

// Four pixels of what comes out, from one on.
DEVICE void put_out(const Work& work, int row, i64 first) {
  const int* size = (const int*)work.sizes + 2 * place_of(work, work.steps, row);
  int columns = size[1], count;
  i64 all = (i64)size[0] * columns, target = ((const i64*)work.targets)[row];
  if (first >= all) return;
  count = (int)smaller(all - first, (i64)4);
  Pixel pixels[4];
  for (int place = 0; place < count; place++)
    pixels[place] = shown(work, row, (int)((first + place) / columns), (int)((first + place) % columns));
  const float *means = (const float*)work.means, *scales = (const float*)work.scales;
  const u16* halves = (const u16*)work.halves;
  float floats[4];
  u16 shorts[4];
  switch (work.output) {
    case LEVELS: store_pixels((u8*)target + 3 * first, pixels, count); break;
    case GREY_FLOATS:
      for (int place = 0; place < count; place++) floats[place] = ((float)grey_level(pixels[place]) - means[0]) * scales[0];
      store((float*)target + first, floats, count);
      break;
    case GREY_HALVES:
      for (int place = 0; place < count; place++) shorts[place] = halves[grey_level(pixels[place])];
      store((u16*)target + first, shorts, count);
      break;
    case FLOAT_PLANES:
      for (int channel = 0; channel < 3; channel++) {
        for (int place = 0; place < count; place++)
          floats[place] = ((float)level_of(pixels[place], channel) - means[channel]) * scales[channel];
        store((float*)target + channel * all + first, floats, count);
      }
      break;
    case HALF_PLANES:
      for (int channel = 0; channel < 3; channel++) {
        for (int place = 0; place < count; place++) shorts[place] = halves[256 * channel + level_of(pixels[place], channel)];
        store((u16*)target + channel * all + first, shorts, count);
      }
      break;
    case FLOAT_PIXELS:
      for (int place = 0; place < count; place++)
        for (int channel = 0; channel < 3; channel++)
          ((float*)target)[3 * (first + place) + channel] =
              ((float)level_of(pixels[place], channel) - means[channel]) * scales[channel];
      break;
    case HALF_PIXELS:
      for (int place = 0; place < count; place++)
        for (int channel = 0; channel < 3; channel++)
          ((u16*)target)[3 * (first + place) + channel] = halves[256 * channel + level_of(pixels[place], channel)];
      break;
  }
}

// Launched with a grid (blocks, n) of THREADS threads a block; `prepare` with one of (1, n).
#ifdef __CUDACC__
#define LAUNCHED extern "C" __global__ void __launch_bounds__(THREADS)
LAUNCHED prepare(const Work* work, i64 step) {
  __shared__ int counts[3 * 256];
  __shared__ u64 total;
  prepare_image(*work, step, blockIdx.y, {(int)threadIdx.x, THREADS, counts, &total});
}
LAUNCHED pass(const Work* work, i64 step) { pass_place(*work, step, blockIdx.y, (i64)blockIdx.x * THREADS + threadIdx.x); }
LAUNCHED pixels(const Work* work, i64 step) {
  make_pixels(*work, step, blockIdx.y, 4 * ((i64)blockIdx.x * THREADS + threadIdx.x));
}
LAUNCHED output(const Work* work, i64) { put_out(*work, blockIdx.y, 4 * ((i64)blockIdx.x * THREADS + threadIdx.x)); }
#else
#define LAUNCHED extern "C" void
template <class Function> static void everywhere(i64 blocks, i64 rows, Function function) {
  for (int row = 0; row < rows; row++)
    for (i64 thread = 0; thread < blocks * THREADS; thread++) function(row, thread);
}
LAUNCHED prepare(const Work* work, i64 step, i64, i64 rows) {
  int counts[3 * 256];
  u64 total;
  for (int row = 0; row < rows; row++) prepare_image(*work, step, row, {0, 1, counts, &total});
}
LAUNCHED pass(const Work* work, i64 step, i64 blocks, i64 rows) {
  everywhere(blocks, rows, [&](int row, i64 thread) { pass_place(*work, step, row, thread); });
}
LAUNCHED pixels(const Work* work, i64 step, i64 blocks, i64 rows) {
  everywhere(blocks, rows, [&](int row, i64 thread) { make_pixels(*work, step, row, 4 * thread); });
}
LAUNCHED output(const Work* work, i64, i64 blocks, i64 rows) {
  everywhere(blocks, rows, [&](int row, i64 thread) { put_out(*work, row, 4 * thread); });
}
#endif
