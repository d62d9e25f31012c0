// An array of indices, int32_t or int64_t: which of the two is known when the program runs, so that kernels are compiled
// once for both. All arrays of a call have one width, and the branch on it is always predicted; a loop that does little
// more than read indices takes a pointer of their type instead. No torch header.
#pragma once

#include <cstdint>

#include "common/numeric.h"

namespace gnnagg::cpu {

struct IndexArray {
  const void* data;  // null for an array that there is not
  bool is_wide;      // int64_t

  GNNAGG_HOST_DEVICE int64_t operator[](int64_t i) const {
    if (__builtin_expect(is_wide, false)) return static_cast<const int64_t*>(data)[i];
    return static_cast<const int32_t*>(data)[i];
  }
  // Elements [i, i + count).
  GNNAGG_HOST_DEVICE void read(int64_t i, int64_t count, int64_t* to) const {
    if (__builtin_expect(is_wide, false)) {
      for (int64_t k = 0; k < count; ++k) to[k] = static_cast<const int64_t*>(data)[i + k];
    } else {
      for (int64_t k = 0; k < count; ++k) to[k] = static_cast<const int32_t*>(data)[i + k];
    }
  }
  GNNAGG_HOST_DEVICE explicit operator bool() const { return data != nullptr; }

  // Calls body(elements) with a pointer of their type.
  template <typename Body>
  GNNAGG_HOST_DEVICE void with_type(const Body& body) const {
    if (is_wide) {
      body(static_cast<const int64_t*>(data));
    } else {
      body(static_cast<const int32_t*>(data));
    }
  }

  // The array from element i on.
  GNNAGG_HOST_DEVICE IndexArray from(int64_t i) const {
    return {static_cast<const char*>(data) + i * int64_t(is_wide ? sizeof(int64_t) : sizeof(int32_t)), is_wide};
  }
};

// One that is written to.
struct IndexOutput {
  void* data;
  bool is_wide;

  GNNAGG_HOST_DEVICE int64_t operator[](int64_t i) const { return IndexArray{data, is_wide}[i]; }

  GNNAGG_HOST_DEVICE void set(int64_t i, int64_t value) const {
    if (__builtin_expect(is_wide, false)) {
      static_cast<int64_t*>(data)[i] = value;
    } else {
      static_cast<int32_t*>(data)[i] = int32_t(value);
    }
  }
  GNNAGG_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  GNNAGG_HOST_DEVICE IndexOutput from(int64_t i) const {
    return {static_cast<char*>(data) + i * int64_t(is_wide ? sizeof(int64_t) : sizeof(int32_t)), is_wide};
  }
};

}  // namespace gnnagg::cpu
