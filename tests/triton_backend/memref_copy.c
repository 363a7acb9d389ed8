// What MLIR's lowering of memref.copy calls; its runtime library is not packaged.
#include <stdint.h>
#include <string.h>

typedef struct {
  int64_t rank;
  void *descriptor;
} UnrankedMemRef;

// A descriptor holds: allocated, aligned, offset, sizes[rank], strides[rank].
void memrefCopy(int64_t element_size, UnrankedMemRef *source, UnrankedMemRef *target) {
  int64_t rank = source->rank, *s = source->descriptor, *t = target->descriptor;
  int64_t *sizes = s + 3, *source_strides = s + 3 + rank, *target_strides = t + 3 + rank;
  int64_t index[8] = {0};
  for (int64_t d = 0; d < rank; ++d) {
    if (sizes[d] == 0) return;
  }
  for (;;) {
    int64_t from = s[2], to = t[2], d = rank - 1;
    for (int64_t i = 0; i < rank; ++i) {
      from += index[i] * source_strides[i];
      to += index[i] * target_strides[i];
    }
    memcpy((char *)t[1] + to * element_size, (char *)s[1] + from * element_size, element_size);
    while (d >= 0 && ++index[d] == sizes[d]) index[d--] = 0;
    if (d < 0) return;
  }
}
