// Colours, and what is made of a pixel's neighbours: the kernels of `pixels/color.py`.
namespace color {
// How much of the chroma a channel lacks, of its distance in hue, 6 to a full turn.
DEVICE float share(float distance) {
  distance -= floor(distance * (float)(1.0 / 6)) * 6.0f;
  return within(smaller(distance, 4.0f - distance), 0.0f, 1.0f);
}

struct hue : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    float turn = step.number(0) * 6.0f;
    Pixel given = step.at(y, x);
    float red = level_of(given, 0), green = level_of(given, 1), blue = level_of(given, 2);
    float value = larger(red, larger(green, blue)), chroma = value - smaller(red, smaller(green, blue));
    float scale = 1.0f / larger(chroma, 1.0f);
    float of_green = green == value ? (blue - red) * scale + 2.0f : (red - green) * scale + 4.0f;
    float angle = (red == value ? (green - blue) * scale : of_green) + turn;
    return pixel_of(to_level(value - chroma * share(angle + 5.0f)), to_level(value - chroma * share(angle + 3.0f)),
                    to_level(value - chroma * share(angle + 1.0f)));
  }
};

struct grayscale : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    u32 shown = grey_level(step.at(y, x));
    return pixel_of(shown, shown, shown);
  }
};

struct solarize_add : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    int addition = step.whole(0), threshold = step.whole(1);
    Pixel given = step.at(y, x);
    return each_channel([&](int channel) {
      int level = level_of(given, channel);
      return level < threshold ? within(level + addition, 0, 255) : level;
    });
  }
};

struct blend : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    float share = step.number(0), grey_share = step.number(3);
    Pixel given = step.at(y, x);
    float added = (float)grey_level(given);
    return each_channel(
        [&](int channel) { return to_level(fused(added, grey_share, (float)level_of(given, channel) * share)); });
  }
};

struct sharpness : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    if (y == 0 || x == 0 || y == step.height - 1 || x == step.width - 1) return step.at(y, x);
    const u8* middle = step.image + 3 * ((i64)y * step.width + x);
    const u8 *upper = middle - 3 * step.width, *lower = middle + 3 * step.width;
    return each_channel([&](int channel) {
      // The first product is rounded, like all sums.
      float total = (float)upper[channel - 3] * step.number(0);
      total = fused((float)upper[channel], step.number(1), total);
      total = fused((float)upper[channel + 3], step.number(2), total);
      total = fused((float)middle[channel - 3], step.number(3), total);
      total = fused((float)middle[channel], step.number(4), total);
      total = fused((float)middle[channel + 3], step.number(5), total);
      total = fused((float)lower[channel - 3], step.number(6), total);
      total = fused((float)lower[channel], step.number(7), total);
      return to_level(fused((float)lower[channel + 3], step.number(8), total));
    });
  }
};
}  // namespace color
