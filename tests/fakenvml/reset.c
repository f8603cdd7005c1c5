#include "reset.h"

#include "call.h"
#include "rules.h"

static nvmlReturn_t reset(node_state_t *state, int gpu)
{
    if (gpu < 0 || gpu >= (int)state->gpu_count)
        return NVML_ERROR_NOT_FOUND;
    if (!may_configure(state))
        return NVML_ERROR_NO_PERMISSION;
    return reset_gpu(state, gpu);
}

static nvmlReturn_t gpuReset(int gpu)
{
    CALL(STATE_WRITE, gpu_handle(gpu), reset(call.state, gpu));
}

nvmlReturn_t gpu_reset(int gpu)
{
    initialized_add(1);
    nvmlReturn_t rc = gpuReset(gpu);
    initialized_add(-1);
    return rc;
}
