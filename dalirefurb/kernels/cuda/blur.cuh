// Gaussian blur: the kernel of `pixels/blur.py`.
namespace blur {
// The room has the reach, int32; the weights of the middle and of what is beside it, float32; and from number
// BLUR_TABLE on the sums of rows, float32 (height, width, 3).
struct gaussian : Kernel {
  static const int SUMS = BLUR_TABLE;

  DEVICE void prepare(const Step& step, const Block& block) {
    if (block.thread) return;
    double sigma = step.numbers[0], total = 0.0;
    int radius = step.whole(1), reach = 0;
    for (int tap = 0; tap <= radius; tap++) {
      double weight = unnormalised(tap, sigma);
      total += tap == 0 ? weight : 2 * weight;
      if (weight >= LEAST_WEIGHT) reach = tap;
    }
    *(int*)step.room = reach;
    for (int tap = 0; tap <= reach; tap++) ((float*)step.room)[1 + tap] = (float)(unnormalised(tap, sigma) / total);
  }

  DEVICE double unnormalised(int tap, double sigma) { return exp(-0.5 * ((tap / sigma) * (tap / sigma))); }

  DEVICE i64 passed(const Step& step) { return (i64)step.height * step.width; }

  DEVICE void pass(const Step& step, i64 at) {
    const float* weights = (const float*)step.room + 1;
    int y = (int)(at / step.width), x = (int)(at % step.width), reach = *(const int*)step.room;
    Pixel middle = step.at(y, x);
    float sums[3];
    for (int channel = 0; channel < 3; channel++) sums[channel] = (float)level_of(middle, channel) * weights[0];
    for (int tap = 1; tap <= reach; tap++) {
      Pixel upper = step.at(crop_flip::mirrored(y - tap, step.height), x);
      Pixel lower = step.at(crop_flip::mirrored(y + tap, step.height), x);
      for (int channel = 0; channel < 3; channel++)
        sums[channel] += (float)(level_of(upper, channel) + level_of(lower, channel)) * weights[tap];
    }
    for (int channel = 0; channel < 3; channel++) ((float*)step.room)[SUMS + 3 * at + channel] = sums[channel];
  }

  DEVICE Pixel pixel(const Step& step, int y, int x) {
    const float *weights = (const float*)step.room + 1, *row = (const float*)step.room + SUMS + 3 * ((i64)y * step.width);
    int reach = *(const int*)step.room;
    float sums[3];
    for (int channel = 0; channel < 3; channel++) sums[channel] = row[3 * x + channel] * weights[0];
    for (int tap = 1; tap <= reach; tap++) {
      const float* before = row + 3 * crop_flip::mirrored(x - tap, step.width);
      const float* behind = row + 3 * crop_flip::mirrored(x + tap, step.width);
      for (int channel = 0; channel < 3; channel++) sums[channel] += (before[channel] + behind[channel]) * weights[tap];
    }
    return each_channel([&](int channel) { return to_level(sums[channel]); });
  }
};
}  // namespace blur
