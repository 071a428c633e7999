// Levels of each channel, whatever lies beside them: the kernels of `pixels/levels.py`.
namespace levels {
DEVICE float shift() { return 255.0f * (float)(-TRUNCATE / 255); }

struct posterize : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    u32 kept = (u8)step.whole(0);
    return step.at(y, x) & pixel_of(kept, kept, kept);
  }
};

struct solarize : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    double number = step.numbers[0];
    int highest = (int)within(-number, 0.0, 255.0);
    Pixel given = step.at(y, x);
    return each_channel([&](int channel) {
      u8 level = level_of(given, channel);
      return number > 0 || level > highest ? (u8)~level : level;
    });
  }
};

DEVICE Pixel scaled(Pixel given, float factor, float added) {
  return each_channel([&](int channel) { return to_level_up((float)level_of(given, channel) * factor + added); });
}

struct brightness : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) { return scaled(step.at(y, x), step.number(0), shift()); }
};

// The room has what is added to levels, float32.
struct contrast : Kernel {
  DEVICE void prepare(const Step& step, const Block& block) {
    i64 pixels = (i64)step.height * step.width;
    if (block.thread == 0) *block.total = 0;
    SYNCHRONISE;
    u64 own = 0;
    for (i64 at = block.thread; at < pixels; at += block.threads) {
      const u8* levels = step.image + 3 * at;
      own += grey_level(pixel_of(levels[0], levels[1], levels[2]));
    }
    add_to(block.total, own);
    SYNCHRONISE;
    if (block.thread == 0) {
      float factor = step.number(0), mean = floor((float)(i64)*block.total / (float)pixels + 0.5f);
      *(float*)step.room = (mean - factor * mean) + shift();
    }
  }
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    return scaled(step.at(y, x), step.number(0), *(const float*)step.room);
  }
};

// The room has a table of each channel's levels, (3, 256).
struct tabled : Kernel {
  DEVICE void count(const Step& step, const Block& block) {
    for (int level = block.thread; level < 3 * 256; level += block.threads) block.counts[level] = 0;
    SYNCHRONISE;
    i64 size = (i64)3 * step.height * step.width;
    for (i64 at = 3 * block.thread; at < size; at += 3 * block.threads)
      for (int channel = 0; channel < 3; channel++) count_one(block.counts + 256 * channel + step.image[at + channel]);
    SYNCHRONISE;
  }
  DEVICE int highest_of(const int* counts) {
    int highest = 255;
    while (highest > 0 && counts[highest] == 0) highest--;
    return highest;
  }
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    Pixel given = step.at(y, x);
    return each_channel([&](int channel) { return step.room[256 * channel + level_of(given, channel)]; });
  }
};

struct auto_contrast : tabled {
  DEVICE void prepare(const Step& step, const Block& block) {
    count(step, block);
    for (int place = block.thread; place < 3 * 256; place += block.threads) {
      const int* counts = block.counts + place / 256 * 256;
      int lowest = 0, highest = highest_of(counts);
      while (lowest < 255 && counts[lowest] == 0) lowest++;
      float black = (float)lowest, extent = (float)(highest - lowest);
      if (extent == 0) black = 0.0f, extent = 255.0f;
      black += extent * ((float)TRUNCATE / 255.0f);
      step.room[place] = to_level_up(((float)(place % 256) - black) * (255.0f / extent));
    }
  }
};

struct equalize : tabled {
  DEVICE void prepare(const Step& step, const Block& block) {
    count(step, block);
    for (int channel = block.thread; channel < 3; channel += block.threads) {
      const int* counts = block.counts + 256 * channel;
      int size = (step.height * step.width - counts[highest_of(counts)]) / 255, below = size / 2;
      for (int level = 0; level < 256; level++) {
        step.room[256 * channel + level] = (u8)(size ? smaller(below / size, 255) : level);
        below += counts[level];
      }
    }
  }
};
}  // namespace levels
