// Windows that are painted over: the kernels of `pixels/erasing.py`.
namespace erasing {
// Whether a pixel is in the window of the first four numbers; it is counted from there then.
DEVICE bool inside(const Step& step, int& y, int& x) {
  y -= step.whole(0);
  x -= step.whole(1);
  return y >= 0 && y < step.whole(2) && x >= 0 && x < step.whole(3);
}

struct paint : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    Pixel given = step.at(y, x);
    return inside(step, y, x) ? pixel_of((u8)step.numbers[4], (u8)step.numbers[5], (u8)step.numbers[6]) : given;
  }
};

// The sum of eight random bytes, see `augment.stages.erasing.byte_sums`.
DEVICE u32 byte_sum(u32 bits) {
  bits = (bits ^ bits >> 16) * NOISE_FIRST;
  bits = (bits ^ bits >> 13) * NOISE_SECOND;
  bits = bits ^ bits >> 16;
  u32 more = (bits ^ bits >> 15) * NOISE_THIRD, pair = 0x00FF00FF;
  more = more ^ more >> 13;
  u32 pairs = (bits & pair) + (bits >> 8 & pair) + (more & pair) + (more >> 8 & pair);
  return (pairs & 0xFFFF) + (pairs >> 16);
}

struct noise : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    Pixel given = step.at(y, x);
    if (!inside(step, y, x)) return given;
    u32 start = (u32)(i64)step.numbers[4] * NOISE_THIRD + (u32)y * NOISE_ROW + 3 * (u32)x;
    return each_channel([&](int channel) {
      return to_level((float)byte_sum(start + channel) * step.number(5 + channel) + step.number(8 + channel));
    });
  }
};
}  // namespace erasing
