// Resized images in a frame: the kernels of `pixels/frame.py`.
namespace frame {
// The tables are those of a resize that begins with what is seen of the image, and is as large as the frame.
template <class Resize> struct Framed : Resize {
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    y -= step.whole(FRAME_START);
    x -= step.whole(FRAME_START + 1);
    int row = y + step.whole(START), column = x + step.whole(START + 1);
    if (y < 0 || x < 0 || row >= step.whole(FULL) || column >= step.whole(FULL + 1))
      return each_channel([&](int channel) { return (u32)(u8)step.numbers[FRAME_FILL + channel]; });
    return Resize::pixel(step, y, x);
  }
};

struct pick : Framed<crop_flip::pick> {};
struct bilinear : Framed<resize::bilinear> {};
struct bicubic : Framed<resample::bicubic> {};
struct lanczos : Framed<resample::lanczos> {};
}  // namespace frame
