// What every kernel is given. The same text is compiled for a GPU, by NVRTC or nvcc, and for a processor, by a C++
// compiler: there a block has one thread. All arithmetic is IEEE's, in the order that is written; so compilers are told
// not to fuse a product and a sum unless `fused` says so.
#ifdef __CUDACC__
#define MEMBER __device__ __forceinline__
#define DEVICE static MEMBER
#define SYNCHRONISE __syncthreads()
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE void count_one(int* counter) { atomicAdd(counter, 1); }
DEVICE void add_to(unsigned long long* total, unsigned long long number) { atomicAdd(total, number); }
#else
#include <cmath>
#define MEMBER inline
#define DEVICE static MEMBER
#define SYNCHRONISE
using std::ceil, std::exp, std::fabs, std::floor, std::rint, std::sin;
DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE void count_one(int* counter) { ++*counter; }
DEVICE void add_to(unsigned long long* total, unsigned long long number) { *total += number; }
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

template <class Number> DEVICE Number smaller(Number a, Number b) { return b < a ? b : a; }
template <class Number> DEVICE Number larger(Number a, Number b) { return a < b ? b : a; }
template <class Number> DEVICE Number within(Number value, Number least, Number most) {
  return smaller(larger(value, least), most);
}

// Three levels, red lowest.
typedef u32 Pixel;
DEVICE Pixel pixel_of(u32 red, u32 green, u32 blue) { return red | green << 8 | blue << 16; }
DEVICE u8 level_of(Pixel pixel, int channel) { return (u8)(pixel >> 8 * channel); }

// The nearest level; a half goes to the even one, or up.
DEVICE u8 to_level(float value) { return (u8)(int)rint(within(value, 0.0f, 255.0f)); }
DEVICE u8 to_level_up(float value) { return (u8)(int)(within(value, 0.0f, 255.0f) + 0.5f); }

DEVICE int grey_level(Pixel pixel) {
  return (9798 * level_of(pixel, 0) + 19235 * level_of(pixel, 1) + 3735 * level_of(pixel, 2) + (1 << 14)) >> 15;
}

// A pixel each of whose levels a function makes of the channel's number.
template <class Function> DEVICE Pixel each_channel(Function level) { return pixel_of(level(0), level(1), level(2)); }

// One step of one image: a height and width, those of what is made of it, numbers (16,), and memory of its own, which
// begins at a multiple of 64 bytes.
struct Step {
  const u8* image;
  int height, width, lines, columns;
  const double* numbers;
  u8* room;

  MEMBER bool inside(int y, int x) const { return y >= 0 && y < height && x >= 0 && x < width; }
  MEMBER Pixel at(int y, int x) const {
    const u8* levels = image + 3 * ((i64)y * width + x);
    return pixel_of(levels[0], levels[1], levels[2]);
  }
  MEMBER int whole(int place) const { return (int)numbers[place]; }
  MEMBER float number(int place) const { return (float)numbers[place]; }
};

// Which thread of a block this is, of how many, and what they share.
struct Block {
  int thread, threads;
  int* counts;  // (768,)
  u64* total;   // (1,)
};

// What a kernel has unless it says otherwise: `prepare` is called once an image, by all threads of a block, before any
// pixel is made; then `pass` for each of `passed` places, where an image is made in two passes; then `pixel`.
// `from` says which pixel a kernel that moves pixels shows, or that there is none.
struct Kernel {
  DEVICE void prepare(const Step&, const Block&) {}
  DEVICE i64 passed(const Step&) { return 0; }
  DEVICE void pass(const Step&, i64) {}
  DEVICE bool from(const Step&, int&, int&) { return true; }
};

// Pixels that are moved, those that are none black.
template <class Own> struct Mover : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) { return Own::from(step, y, x) ? step.at(y, x) : 0; }
};
