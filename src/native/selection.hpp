// The best elements of rows, and boxes that no better one overlaps.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace tilewright {

namespace nb = nanobind;

// Writes where the `count` best elements of every row are, the best first and of equals the first,
// into `places`, int64 [rows, count]. `rows` is [rows, length], row-major, of floats or integers of
// the machine; the best are the largest or the least, and what is not a number is the greatest.
void best_places(nb::handle rows, nb::handle places, bool largest);

struct Suppression {
  std::int64_t most;  // boxes of a class
  float overlap;      // of what two boxes cover together, from which on the worse one is left out
  bool has_least;
  float least;  // what a score has to exceed, if anything
  bool centred;  // boxes are centres and sizes, not two corners
};

// Boxes of all images and classes as the bytes of int64 [found, 3]: image, class, box. `boxes` is
// float32 [images, boxes, 4], `scores` float32 [images, classes, boxes]. Of equal scores the first
// box comes first; boxes without area, or with a coordinate that is not a number, suppress none.
nb::bytes suppressed_boxes(nb::handle boxes, nb::handle scores, const Suppression& how);

}  // namespace tilewright
