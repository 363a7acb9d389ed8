// What MLIR's lowering of memref.copy calls, whose runtime library is not packaged; and pointers made of integers.
#include <stdint.h>
#include <string.h>

typedef struct {
  int64_t rank;
  void* descriptor;
} UnrankedMemRef;

// A descriptor holds: allocated, aligned, offset, sizes[rank], strides[rank].
void memrefCopy(int64_t element_size, UnrankedMemRef* source, UnrankedMemRef* target) {
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
    memcpy((char*)t[1] + to * element_size, (char*)s[1] + from * element_size, element_size);
    while (d >= 0 && ++index[d] == sizes[d]) index[d--] = 0;
    if (d < 0) return;
  }
}

typedef struct {
  void *allocated, *aligned;
  int64_t offset, size, stride;
} MemRef;

// See _with_pointer_casts in native.py.
#define MEMREF_AT(type)                                                               \
  void _mlir_ciface_memref_at_##type(MemRef* result, int64_t address, int64_t size) { \
    *result = (MemRef){(void*)address, (void*)address, 0, size, 1};                   \
  }

MEMREF_AT(i8)
MEMREF_AT(i16)
MEMREF_AT(i32)
MEMREF_AT(i64)
