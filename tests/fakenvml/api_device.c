/* What a device is and has. */
#include "device.h"

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index);
EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor);
EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture);
EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);
EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode);

static nvmlReturn_t name_of(node_state_t *state, nvmlDevice_t handle, char *name, unsigned int length)
{
    char text[NVML_NAME_SIZE * 2];
    device_t device;
    if (!device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    device_name(&device, text, sizeof(text));
    return copy_text(name, length, text);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    CALL(STATE_READ, device, name_of(call.state, device, name, length));
}

static nvmlReturn_t uuid_of(node_state_t *state, nvmlDevice_t handle, char *uuid, unsigned int length)
{
    device_t device;
    if (!device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    return copy_text(uuid, length, device.ci ? device.ci->uuid : device.gpu->uuid);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    CALL(STATE_READ, device, uuid_of(call.state, device, uuid, length));
}

static nvmlReturn_t index_of(node_state_t *state, nvmlDevice_t handle, unsigned int *index)
{
    device_t device;
    if (!index || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = device.ci ? (unsigned int)device.ci->mig_index : (unsigned int)device.at.gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    CALL(STATE_READ, device, index_of(call.state, device, index));
}

static nvmlReturn_t gpu_number(node_state_t *state, nvmlDevice_t handle, unsigned int *out, unsigned int which)
{
    device_t device;
    if (!out || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device.ci && which == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = which == 0 ? device.gpu->minor : which == 1 ? model_of(device.gpu)->architecture : 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    CALL(STATE_READ, device, gpu_number(call.state, device, minor, 0));
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture)
{
    CALL(STATE_READ, device, gpu_number(call.state, device, architecture, 1));
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode)
{
    CALL(STATE_READ, device, gpu_number(call.state, device, mode, 2));
}

static nvmlReturn_t capability(node_state_t *state, nvmlDevice_t handle, int *major, int *minor)
{
    device_t device;
    if (!major || !minor || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = model_of(device.gpu)->capability_major;
    *minor = model_of(device.gpu)->capability_minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    CALL(STATE_READ, device, capability(call.state, device, major, minor));
}

static nvmlReturn_t memory_info(node_state_t *state, nvmlDevice_t handle, nvmlMemory_t *memory)
{
    device_t device;
    if (!memory || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    memory->total = memory_total_mib(&device) << 20;
    memory->used = memory_used_mib(state, &device) << 20;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    CALL(STATE_READ, device, memory_info(call.state, device, memory));
}

static nvmlReturn_t memory_info_v2(node_state_t *state, nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    if (!memory || memory->version != 0x02000028)
        return memory ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t rc = memory_info(state, handle, &plain);
    if (rc == NVML_SUCCESS)
        *memory = (nvmlMemory_v2_t){ memory->version, plain.total, 0, plain.free, plain.used };
    return rc;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    CALL(STATE_READ, device, memory_info_v2(call.state, device, memory));
}

static unsigned int engines(const gi_profile_t *profile, enum engine engine)
{
    return profile->engines[engine] < 0 ? 0 : (unsigned int)profile->engines[engine];
}

static nvmlReturn_t attributes_of(node_state_t *state, nvmlDevice_t handle, nvmlDeviceAttributes_t *out)
{
    device_t device;
    if (!out || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device.ci)
        return NVML_ERROR_NOT_SUPPORTED;
    const gi_profile_t *profile = profile_of(device.gpu, device.gi);
    *out = (nvmlDeviceAttributes_t){ ci_sm_count(profile, device.ci->size), engines(profile, COPY_ENGINE),
                                     engines(profile, DECODER), engines(profile, ENCODER), engines(profile, JPEG),
                                     engines(profile, OFA), profile->slices, device.ci->size,
                                     profile->memory_mib };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    CALL(STATE_READ, device, attributes_of(call.state, device, attributes));
}

static void field_value(const node_state_t *state, const device_t *device, nvmlFieldValue_t *value)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    value->nvmlReturn = NVML_SUCCESS;
    value->value.ullVal = 0;
    if (value->fieldId == NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED) {
        const gpu_model_t *model = model_of(device->gpu);
        value->value.uiVal = model->profile_count && !model->needs_reset;
    } else if (value->fieldId == NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE) {
        value->value.uiVal = state->policy.query_off;
    } else {
        value->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
}

static nvmlReturn_t field_values(node_state_t *state, nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
    device_t device;
    if (!values || count < 1 || !device_open(state, handle, &device))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        field_value(state, &device, &values[i]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    CALL(STATE_READ, device, field_values(call.state, device, count, values));
}
