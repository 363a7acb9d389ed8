#include "schemas.h"

TORCH_LIBRARY(specdec, m) { specdec::define_schemas(m); }
