#include "device.h"

#include <stdio.h>

bool device_open(node_state_t *state, nvmlDevice_t handle, device_t *device)
{
    enum handle_kind kind = handle_kind(handle);

    *device = (device_t){ 0 };
    if ((kind != HANDLE_GPU && kind != HANDLE_MIG) || !handle_open(state, handle, kind, &device->at))
        return false;
    device->gpu = &state->gpus[device->at.gpu];
    if (kind == HANDLE_MIG) {
        device->gi = &device->gpu->gi[device->at.gi];
        device->ci = &device->gi->ci[device->at.ci];
    }
    return true;
}

gpu_t *gpu_open(node_state_t *state, nvmlDevice_t handle, int *index)
{
    handle_t at;
    if (!handle_open(state, handle, HANDLE_GPU, &at))
        return NULL;
    if (index)
        *index = at.gpu;
    return &state->gpus[at.gpu];
}

bool process_on(const process_t *process, const device_t *device)
{
    if (!process->pid || process->gpu != device->at.gpu || (process->flags & PROCESS_HIDDEN))
        return false;
    if (device->ci && (process->gi != device->at.gi || process->ci != device->at.ci))
        return false;
    return process_alive(process);
}

uint64_t memory_used_mib(const node_state_t *state, const device_t *device)
{
    uint64_t used = 0;
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (process_on(&state->processes[i], device))
            used += state->processes[i].memory_mib;
    uint64_t total = memory_total_mib(device);
    return used < total ? used : total;
}

uint64_t memory_total_mib(const device_t *device)
{
    return device->gi ? profile_of(device->gpu, device->gi)->memory_mib : model_of(device->gpu)->memory_mib;
}

void mig_name(const gi_profile_t *profile, unsigned int ci_slices, char *name, size_t size)
{
    if (ci_slices < profile->slices)
        snprintf(name, size, "%uc.%s", ci_slices, profile->name);
    else
        snprintf(name, size, "%s", profile->name);
}

void device_name(const device_t *device, char *name, size_t size)
{
    char instance[NVML_NAME_SIZE];
    if (!device->ci) {
        snprintf(name, size, "%s", model_of(device->gpu)->name);
        return;
    }
    mig_name(profile_of(device->gpu, device->gi), device->ci->size, instance, sizeof(instance));
    snprintf(name, size, "%s MIG %s", model_of(device->gpu)->name, instance);
}
