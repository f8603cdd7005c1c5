/* MIG mode and MIG device handles. */
#include <stddef.h>

#include "device.h"

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation);
EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *answer);
EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned int *id);
EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned int *id);

static nvmlReturn_t get_mode(node_state_t *state, nvmlDevice_t handle, unsigned int *current, unsigned int *pending)
{
    const gpu_t *gpu = gpu_open(state, handle, NULL);
    if (!gpu || !current || !pending)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!model_of(gpu)->profile_count)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = gpu->mode_current;
    *pending = gpu->mode_pending;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    CALL(STATE_READ, device, get_mode(call.state, device, current, pending));
}

static nvmlReturn_t set_mode(node_state_t *state, nvmlDevice_t handle, unsigned int mode, nvmlReturn_t *activation)
{
    int index;
    if (!activation || !gpu_open(state, handle, &index))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!may_configure(state))
        return NVML_ERROR_NO_PERMISSION;
    return set_mig_mode(state, index, mode, activation);
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    CALL(STATE_WRITE, device, set_mode(call.state, device, mode, activation));
}

static nvmlReturn_t is_mig(node_state_t *state, nvmlDevice_t handle, unsigned int *answer)
{
    device_t device;
    if (!answer || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *answer = device.ci != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *answer)
{
    CALL(STATE_READ, device, is_mig(call.state, device, answer));
}

static nvmlReturn_t max_count(node_state_t *state, nvmlDevice_t handle, unsigned int *count)
{
    const gpu_t *gpu = gpu_open(state, handle, NULL);
    if (!gpu || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = mig_enabled(gpu) ? model_of(gpu)->max_instances : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    CALL(STATE_READ, device, max_count(call.state, device, count));
}

static nvmlReturn_t mig_by_index(node_state_t *state, nvmlDevice_t handle, unsigned int index, nvmlDevice_t *mig)
{
    int at;
    const gpu_t *gpu = gpu_open(state, handle, &at);
    if (!gpu || !mig)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!mig_enabled(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= model_of(gpu)->max_instances)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int gi = 0; gi < MAX_GI; gi++) {
        for (int ci = 0; ci < MAX_CI; ci++) {
            if (gpu->gi[gi].ci[ci].serial && gpu->gi[gi].ci[ci].mig_index == (int)index) {
                *mig = mig_handle(state, at, gi, ci);
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    CALL(STATE_READ, device, mig_by_index(call.state, device, index, mig));
}

static nvmlReturn_t parent(node_state_t *state, nvmlDevice_t handle, nvmlDevice_t *out)
{
    device_t device;
    if (!out || !device_open(state, handle, &device) || !device.ci)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = gpu_handle(device.at.gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    CALL(STATE_READ, mig, parent(call.state, mig, device));
}

static nvmlReturn_t instance_id(node_state_t *state, nvmlDevice_t handle, unsigned int *id, bool compute)
{
    device_t device;
    if (!id || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device.ci)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = (unsigned int)(compute ? device.at.ci : device.at.gi);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned int *id)
{
    CALL(STATE_READ, mig, instance_id(call.state, mig, id, false));
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned int *id)
{
    CALL(STATE_READ, mig, instance_id(call.state, mig, id, true));
}
