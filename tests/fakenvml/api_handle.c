/* Finding devices: by index, UUID, PCI bus id. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "device.h"

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *info);

#define FIRST_BUS 0x07
#define BUS_STEP 0x10

static unsigned int bus_of(int gpu)
{
    return FIRST_BUS + (unsigned int)gpu * BUS_STEP;
}

static nvmlReturn_t device_count(const node_state_t *state, unsigned int *count)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = state->gpu_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    CALL(STATE_READ, NULL, device_count(call.state, count));
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    CALL(STATE_READ, NULL, device_count(call.state, count));
}

static nvmlReturn_t give_gpu(const node_state_t *state, int gpu, nvmlDevice_t *device)
{
    if (state->gpus[gpu].lost)
        return NVML_ERROR_GPU_IS_LOST;
    *device = gpu_handle(gpu);
    return NVML_SUCCESS;
}

static nvmlReturn_t by_index(const node_state_t *state, unsigned int index, nvmlDevice_t *device)
{
    if (!device || index >= state->gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_gpu(state, (int)index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    CALL(STATE_READ, NULL, by_index(call.state, index, device));
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    CALL(STATE_READ, NULL, by_index(call.state, index, device));
}

static bool find_mig(const node_state_t *state, int gpu, const char *uuid, nvmlDevice_t *device)
{
    for (int gi = 0; gi < MAX_GI; gi++) {
        for (int ci = 0; ci < MAX_CI; ci++) {
            const ci_t *instance = &state->gpus[gpu].gi[gi].ci[ci];
            if (instance->serial && !strcasecmp(instance->uuid, uuid)) {
                *device = mig_handle(state, gpu, gi, ci);
                return true;
            }
        }
    }
    return false;
}

static nvmlReturn_t by_uuid(const node_state_t *state, const char *uuid, nvmlDevice_t *device)
{
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int gpu = 0; gpu < (int)state->gpu_count; gpu++) {
        if (!strcasecmp(state->gpus[gpu].uuid, uuid))
            return give_gpu(state, gpu, device);
        if (!state->gpus[gpu].lost && find_mig(state, gpu, uuid, device))
            return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    CALL(STATE_READ, NULL, by_uuid(call.state, uuid, device));
}

static nvmlReturn_t by_uuid_value(const node_state_t *state, const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    char text[42];
    if (!uuid || uuid->type != NVML_UUID_TYPE_ASCII)
        return NVML_ERROR_INVALID_ARGUMENT;
    memcpy(text, uuid->value.str, sizeof(uuid->value.str));
    text[41] = '\0';
    return by_uuid(state, text, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    CALL(STATE_READ, NULL, by_uuid_value(call.state, uuid, device));
}

static nvmlReturn_t by_bus(const node_state_t *state, const char *bus_id, nvmlDevice_t *device)
{
    unsigned int domain, bus, slot;
    if (!bus_id || !device || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int gpu = 0; gpu < (int)state->gpu_count; gpu++)
        if (domain == 0 && slot == 0 && bus == bus_of(gpu))
            return give_gpu(state, gpu, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    CALL(STATE_READ, NULL, by_bus(call.state, bus_id, device));
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    CALL(STATE_READ, NULL, by_bus(call.state, bus_id, device));
}

static nvmlReturn_t pci_info(node_state_t *state, nvmlDevice_t handle, nvmlPciInfo_t *info)
{
    int index;
    const gpu_t *gpu = gpu_open(state, handle, &index);

    if (!info || !gpu)
        return handle_kind(handle) == HANDLE_MIG ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlPciInfo_t){ .bus = bus_of(index),
                             .pciDeviceId = (unsigned int)model_of(gpu)->pci_device << 16 | 0x10DE };
    snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "0000:%02X:00.0", bus_of(index) & 0xff);
    snprintf(info->busId, sizeof(info->busId), "00000000:%02X:00.0", bus_of(index) & 0xff);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    CALL(STATE_READ, device, pci_info(call.state, device, info));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    CALL(STATE_READ, device, pci_info(call.state, device, info));
}

static nvmlReturn_t pci_info_ext(node_state_t *state, nvmlDevice_t handle, nvmlPciInfoExt_t *info)
{
    nvmlPciInfo_t plain;
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != 0x1000040)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t rc = pci_info(state, handle, &plain);
    if (rc != NVML_SUCCESS)
        return rc;
    info->domain = info->device = info->pciSubSystemId = 0;
    info->bus = plain.bus;
    info->pciDeviceId = plain.pciDeviceId;
    info->baseClass = 3;
    info->subClass = 2;
    memcpy(info->busId, plain.busId, sizeof(info->busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *info)
{
    CALL(STATE_READ, device, pci_info_ext(call.state, device, info));
}
