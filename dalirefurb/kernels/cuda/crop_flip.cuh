// Pixels that move unchanged: the kernels of `pixels/crop_flip.py`.
namespace crop_flip {
struct flip : Mover<flip> {
  DEVICE bool from(const Step& step, int&, int& x) {
    x = step.width - 1 - x;
    return true;
  }
};

struct flip_over : Mover<flip_over> {
  DEVICE bool from(const Step& step, int& y, int&) {
    y = step.height - 1 - y;
    return true;
  }
};

struct crop : Mover<crop> {
  DEVICE bool from(const Step& step, int& y, int& x) {
    y += step.whole(0);
    x += step.whole(1);
    return step.inside(y, x);
  }
};

// Which pixel of a row lies at a place, if the row is mirrored at its first pixel and at its last one.
DEVICE int mirrored(int place, int count) {
  int period = larger(2 * (count - 1), 1);
  place = (place < 0 ? -place : place) % period;
  return count > 1 ? smaller(place, period - place) : 0;
}

struct crop_reflected : Mover<crop_reflected> {
  DEVICE bool from(const Step& step, int& y, int& x) {
    y = mirrored(y + step.whole(0), step.height);
    x = mirrored(x + step.whole(1), step.width);
    return true;
  }
};

// A resize: its window, the part of its result that is made, and the size of all of it.
struct Window {
  int top, left, height, width, line, column, lines, columns;
  bool mirror;
  MEMBER explicit Window(const Step& step)
      : top(step.whole(0)), left(step.whole(1)), height(step.whole(2)), width(step.whole(3)), line(step.whole(START)),
        column(step.whole(START + 1)), lines(step.whole(FULL)), columns(step.whole(FULL + 1)),
        mirror(step.numbers[MIRROR] > 0) {}
  // The place, in all of the result before it is mirrored, of one of its columns.
  MEMBER int place(int x) const { return mirror ? columns - column - 1 - x : column + x; }
};

// The room has a source's row for each of the result's, int32, and its column for each of the result's.
struct pick : Kernel {
  DEVICE void prepare(const Step& step, const Block& block) {
    Window window(step);
    int *rows = (int*)step.room, *columns = rows + step.lines;
    bool large = (i64)window.lines * window.columns > WHOLE_PIXELS;
    float scale = (float)window.width / (float)window.columns;
    double exact_scale = (double)window.width / window.columns;
    for (int x = block.thread; x < step.columns; x += block.threads) {
      int place = window.place(x), column = (int)floor(((float)place + 0.5f) * scale);
      if (large) column = (int)floor((place + 0.5) * exact_scale);
      columns[x] = window.left + within(column, 0, window.width - 1);
    }
    if (block.thread) return;
    // DALI adds the step up in single precision, which decides where two rows are as near.
    scale = (float)window.height / (float)window.lines;
    exact_scale = (double)window.height / window.lines;
    float source = 0.5f * scale;
    bool exact = large || (i64)window.height * window.lines > LONG_ROWS;
    for (int y = 0; y < (exact ? 0 : window.line); y++) source += scale;
    for (int y = 0; y < step.lines; y++, source += scale) {
      int row = exact ? (int)floor((window.line + y + 0.5) * exact_scale) : (int)floor(source);
      rows[y] = window.top + within(row, 0, window.height - 1);
    }
  }
  DEVICE Pixel pixel(const Step& step, int y, int x) {
    const int* rows = (const int*)step.room;
    return step.at(rows[y], rows[step.lines + x]);
  }
};
}  // namespace crop_flip
