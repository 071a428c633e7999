// Sums of what is made of an image in several ways: the kernels of `pixels/mixing.py`. Behind what other kernels need,
// the room has sums, float32 (height, width, 3), and the image that is kept, uint8.
namespace mixing {
struct Kept {
  float* sums;
  u8* image;
  MEMBER Kept(const Step& step, i64 at) {
    i64 size = (i64)3 * step.height * step.width;
    u8* sums_of_all = step.room + MIXING_AHEAD + (i64)MIXING_AHEAD_A_COLUMN * step.width;
    sums = (float*)sums_of_all + 3 * at;
    image = sums_of_all + 4 * size + 3 * at;
  }
};

struct begin : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    Kept kept(step, (i64)y * step.width + x);
    Pixel given = step.at(y, x);
    for (int channel = 0; channel < 3; channel++) {
      kept.sums[channel] = (float)level_of(given, channel) * step.number(0);
      kept.image[channel] = level_of(given, channel);
    }
    return given;
  }
};

struct add : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    Kept kept(step, (i64)y * step.width + x);
    Pixel given = step.at(y, x);
    for (int channel = 0; channel < 3; channel++)
      kept.sums[channel] += (float)level_of(given, channel) * step.number(0);
    return pixel_of(kept.image[0], kept.image[1], kept.image[2]);
  }
};

struct end : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    Kept kept(step, (i64)y * step.width + x);
    Pixel given = step.at(y, x);
    return each_channel([&](int channel) {
      return to_level(kept.sums[channel] + (float)level_of(given, channel) * step.number(0));
    });
  }
};
}  // namespace mixing
