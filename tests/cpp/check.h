// The least a test program needs: CHECK reports and counts, `finish` prints and returns the status.
#pragma once

#include <cstdio>

namespace check {

inline long checked = 0;
inline long failed = 0;

inline int finish(const char* name) {
  std::printf("%s: %ld checked, %ld failed\n", name, checked, failed);
  return failed == 0 && checked > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition, ...)                                       \
  do {                                                              \
    ++check::checked;                                               \
    if (!(condition)) {                                             \
      ++check::failed;                                              \
      std::printf("%s:%d: %s\n  ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                     \
      std::printf("\n");                                            \
    }                                                               \
  } while (false)
