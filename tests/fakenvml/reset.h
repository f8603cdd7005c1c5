#ifndef FAKENVML_RESET_H
#define FAKENVML_RESET_H

#include "nvml_abi.h"

/* Plays `nvidia-smi --gpu-reset`: needs the right to configure and an idle GPU, honours
 * faults on the call name "gpuReset".  NVML itself has no such call. */
nvmlReturn_t gpu_reset(int gpu);

#endif
