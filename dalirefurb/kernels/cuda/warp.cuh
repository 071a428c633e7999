// Warps: the kernels of `pixels/warp.py`.
namespace warp {
// A map of coordinates from the centre of the first pixel, in single precision.
struct Place {
  float column, row;
};

DEVICE Place affine(const Step& step, int y, int x) {
  float half = 0.5f;
  float xx = step.number(0), xy = step.number(1), x0 = step.number(2);
  float yx = step.number(3), yy = step.number(4), y0 = step.number(5);
  x0 = (half * xx + half * xy + x0) - half;
  y0 = (half * yx + half * yy + y0) - half;
  return {fused((float)x, xx, xy * (float)y + x0), fused((float)x, yx, yy * (float)y + y0)};
}

// The same in a window of the result.
DEVICE Place cropped(const Step& step, int y, int x) {
  return affine(step, y + step.whole(WARP_START), x + step.whole(WARP_START + 1));
}

// The same of a map that divides, as OpenCV does, by a number that depends on the pixel.
DEVICE Place divided(const Step& step, int y, int x) {
  float half = 0.5f;
  float xx = step.number(0), xy = step.number(1), x0 = step.number(2);
  float yx = step.number(3), yy = step.number(4), y0 = step.number(5);
  float wx = step.number(6), wy = step.number(7), w0 = step.number(8);
  x0 = half * xx + half * xy + x0;
  y0 = half * yx + half * yy + y0;
  w0 = half * wx + half * wy + w0;
  xx = xx - half * wx;
  xy = xy - half * wy;
  x0 = x0 - half * w0;
  yx = yx - half * wx;
  yy = yy - half * wy;
  y0 = y0 - half * w0;
  float divisor = fused((float)x, wx, wy * (float)y + w0);
  return {fused((float)x, xx, xy * (float)y + x0) / divisor, fused((float)x, yx, yy * (float)y + y0) / divisor};
}

DEVICE Pixel filled(const Step& step) {
  return pixel_of((u8)step.whole(FILL), (u8)step.whole(FILL + 1), (u8)step.whole(FILL + 2));
}

DEVICE Pixel nearest_to(const Step& step, Place place) {
  float column = rint(place.column), row = rint(place.row);
  bool hit = column >= 0 && column <= (float)(step.width - 1) && row >= 0 && row <= (float)(step.height - 1);
  return hit ? step.at((int)row, (int)column) : filled(step);
}

DEVICE float between(float one, float other, float share) { return fused(share, other - one, one); }

DEVICE Pixel blended(const Step& step, Place place) {
  float column = floor(place.column), row = floor(place.row);
  bool near = column >= -1 && column <= (float)(step.width - 1) && row >= -1 && row <= (float)(step.height - 1);
  Pixel outside = filled(step), four[4];
  if (!near) return outside;
  for (int corner = 0; corner < 4; corner++) {
    int y = (int)row + corner / 2, x = (int)column + corner % 2;
    four[corner] = step.inside(y, x) ? step.at(y, x) : outside;
  }
  float across = place.column - column, down = place.row - row;
  return each_channel([&](int channel) {
    float above = between((float)level_of(four[0], channel), (float)level_of(four[1], channel), across);
    float below = between((float)level_of(four[2], channel), (float)level_of(four[3], channel), across);
    return (u32)(int)rint(between(above, below, down));
  });
}

struct nearest : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) { return nearest_to(step, cropped(step, y, x)); }
};

struct bilinear : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) { return blended(step, cropped(step, y, x)); }
};

struct perspective_nearest : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) { return nearest_to(step, divided(step, y, x)); }
};

struct perspective_bilinear : Kernel {
  DEVICE Pixel pixel(const Step& step, int y, int x) { return blended(step, divided(step, y, x)); }
};
}  // namespace warp
