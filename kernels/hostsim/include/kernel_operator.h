// The Ascend C interface on the host simulator: what a kernel source includes.
#pragma once

#include "ascendc/compare.h"
#include "ascendc/cube.h"
#include "ascendc/data_copy.h"
#include "ascendc/enums.h"
#include "ascendc/index.h"
#include "ascendc/params.h"
#include "ascendc/reduce.h"
#include "ascendc/scalar.h"
#include "ascendc/sync.h"
#include "ascendc/tensor.h"
#include "ascendc/tpipe.h"
#include "ascendc/vector.h"
