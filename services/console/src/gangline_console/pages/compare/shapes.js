// Arithmetic of curves: smoothing, extents, the nearest point. Nothing of the page.

/**
 * Exponential moving average with weight 0 to 1 of the past, without bias to zero: as the
 * gateway's parameter `smoothing` does it. Values that are no number are gaps.
 */
export function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, share = 1;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    share *= weight;
    return mean / (1 - share);
  });
}

/** Index of the entry of ascending `xs` that is nearest to x; -1 where there is none. */
export function nearest(xs, x) {
  if (!xs.length) return -1;
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return x - xs[low] <= xs[high] - x ? low : high;
}

/** Lowest and highest of the curves' values within [first, last]; null where there is none. */
export function extent(curves, first, last, { band = false, log = false } = {}) {
  let low = Infinity, high = -Infinity;
  for (const { xs, ys, lows, highs } of curves) {
    for (let at = 0; at < xs.length; at += 1) {
      if (xs[at] < first || xs[at] > last) continue;
      for (const value of band ? [ys[at], lows[at], highs[at]] : [ys[at]]) {
        if (!Number.isFinite(value) || (log && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  return low > high ? null : [low, high];
}

/** The range of an axis that shows [low, high] with some room. */
export function roomy([low, high], log) {
  if (log) {
    const room = Math.max(1.05, (high / low) ** 0.05);
    return [low / room, high * room];
  }
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - room, high + room];
}

/** From first to last x of all curves; null where there are none. */
export function span(curves) {
  let first = Infinity, last = -Infinity;
  for (const { xs } of curves) {
    if (!xs.length) continue;
    first = Math.min(first, xs[0]);
    last = Math.max(last, xs[xs.length - 1]);
  }
  return first > last ? null : first === last ? [first - 0.5, last + 0.5] : [first, last];
}

/** Ticks of a log axis: powers of ten, or, where it has fewer than two of them, round numbers. */
export function logTicks(low, high) {
  const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
  if (last - first >= 1) {
    const every = Math.ceil((last - first + 1) / 8);
    return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, at) => 10 ** (first + at * every));
  }
  const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((found) => found >= rough);
  const ticks = [];
  for (let at = Math.ceil(low / step); at * step <= high; at += 1) ticks.push(Number((at * step).toPrecision(12)));
  return ticks;
}
