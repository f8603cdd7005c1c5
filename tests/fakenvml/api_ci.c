/* Compute instances. */
#include <stdio.h>
#include <string.h>

#include "device.h"

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gi, unsigned int profile,
                                                                 unsigned int engine,
                                                                 nvmlComputeInstanceProfileInfo_t *info);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gi, unsigned int profile,
                                                                  unsigned int engine,
                                                                  nvmlComputeInstanceProfileInfo_v2_t *info);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gi, unsigned int id,
                                                                       unsigned int *count);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t gi, unsigned int id,
                                                                        nvmlPlacement_t *placements,
                                                                        unsigned int *count);
EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gi, unsigned int id,
                                                         nvmlComputeInstance_t *ci);
EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gi, unsigned int id,
                                                                      const nvmlPlacement_t *placement,
                                                                      nvmlComputeInstance_t *ci);
EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t ci);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gi, unsigned int id,
                                                       nvmlComputeInstance_t *instances, unsigned int *count);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, unsigned int id,
                                                          nvmlComputeInstance_t *ci);
EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *info);
EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *info);

/* A GPU instance and one of the CI profiles it offers. */
typedef struct {
    handle_t at;
    gpu_t *gpu;
    gi_t *gi;
    const gi_profile_t *gi_facts;
    ci_profile_t profile;
} chosen_t;

static nvmlReturn_t choose(node_state_t *state, nvmlGpuInstance_t handle, unsigned int id, chosen_t *chosen)
{
    if (!handle_open(state, handle, HANDLE_GI, &chosen->at))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!may_configure(state))
        return NVML_ERROR_NO_PERMISSION;
    chosen->gpu = &state->gpus[chosen->at.gpu];
    chosen->gi = &chosen->gpu->gi[chosen->at.gi];
    chosen->gi_facts = profile_of(chosen->gpu, chosen->gi);
    return ci_profile(chosen->gi_facts, id, &chosen->profile) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static unsigned int engines(const gi_profile_t *profile, enum engine engine)
{
    return profile->engines[engine] < 0 ? 0 : (unsigned int)profile->engines[engine];
}

static nvmlReturn_t profile_info(node_state_t *state, nvmlGpuInstance_t gi, unsigned int constant,
                                 unsigned int engine, nvmlComputeInstanceProfileInfo_t *info, char *name)
{
    chosen_t chosen;
    char text[NVML_NAME_SIZE - 4];

    if (!info || constant >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t rc = choose(state, gi, constant, &chosen);
    if (rc != NVML_SUCCESS)
        return rc;
    const gi_profile_t *facts = chosen.gi_facts;
    *info = (nvmlComputeInstanceProfileInfo_t){
        chosen.profile.id, chosen.profile.slices, chosen.profile.max_instances,
        ci_sm_count(facts, chosen.profile.slices), engines(facts, COPY_ENGINE), engines(facts, DECODER),
        engines(facts, ENCODER), engines(facts, JPEG), engines(facts, OFA),
    };
    mig_name(facts, chosen.profile.slices, text, sizeof(text));
    if (name)
        snprintf(name, NVML_NAME_SIZE, "MIG %s", text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gi, unsigned int profile,
                                                          unsigned int engine,
                                                          nvmlComputeInstanceProfileInfo_t *info)
{
    CALL(STATE_READ, gi, profile_info(call.state, gi, profile, engine, info, NULL));
}

static nvmlReturn_t profile_info_v(node_state_t *state, nvmlGpuInstance_t gi, unsigned int profile,
                                   unsigned int engine, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    if (!info || (info->version != 0x02000088 && info->version != 0x0300008c))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version == 0x0300008c)
        ((nvmlComputeInstanceProfileInfo_v3_t *)info)->capabilities = 0;
    return profile_info(state, gi, profile, engine, &info->info, info->name);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gi, unsigned int profile,
                                                           unsigned int engine,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info)
{
    CALL(STATE_READ, gi, profile_info_v(call.state, gi, profile, engine, info));
}

static nvmlReturn_t remaining(node_state_t *state, nvmlGpuInstance_t gi, unsigned int id, unsigned int *count)
{
    chosen_t chosen;
    nvmlReturn_t rc = count ? choose(state, gi, id, &chosen) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        *count = ci_remaining(chosen.gpu, chosen.gi, &chosen.profile);
    return rc;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gi, unsigned int id,
                                                                unsigned int *count)
{
    CALL(STATE_READ, gi, remaining(call.state, gi, id, count));
}

static nvmlReturn_t possible(node_state_t *state, nvmlGpuInstance_t gi, unsigned int id,
                             nvmlPlacement_t *placements, unsigned int *count)
{
    chosen_t chosen;
    nvmlPlacement_t legal[MAX_CI];
    nvmlReturn_t rc = count ? choose(state, gi, id, &chosen) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc != NVML_SUCCESS)
        return rc;
    unsigned int room = *count;
    *count = ci_placements(chosen.gi_facts, &chosen.profile, legal);
    if (!placements)
        return NVML_SUCCESS;
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(placements, legal, *count * sizeof(*legal));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t gi, unsigned int id,
                                                                 nvmlPlacement_t *placements, unsigned int *count)
{
    CALL(STATE_READ, gi, possible(call.state, gi, id, placements, count));
}

static nvmlReturn_t create(node_state_t *state, nvmlGpuInstance_t gi, unsigned int id,
                           const nvmlPlacement_t *placement, nvmlComputeInstance_t *ci)
{
    chosen_t chosen;
    int ci_id;
    nvmlReturn_t rc = ci ? choose(state, gi, id, &chosen) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        rc = create_ci(state, chosen.at.gpu, chosen.at.gi, id, placement, &ci_id);
    if (rc == NVML_SUCCESS)
        *ci = ci_handle(state, chosen.at.gpu, chosen.at.gi, ci_id);
    return rc;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gi, unsigned int id, nvmlComputeInstance_t *ci)
{
    CALL(STATE_WRITE, gi, create(call.state, gi, id, NO_PLACEMENT, ci));
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gi, unsigned int id,
                                                               const nvmlPlacement_t *placement,
                                                               nvmlComputeInstance_t *ci)
{
    CALL(STATE_WRITE, gi, placement ? create(call.state, gi, id, placement, ci) : NVML_ERROR_INVALID_ARGUMENT);
}

static nvmlReturn_t destroy(node_state_t *state, nvmlComputeInstance_t ci)
{
    handle_t at;
    if (!handle_open(state, ci, HANDLE_CI, &at))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!may_configure(state))
        return NVML_ERROR_NO_PERMISSION;
    return destroy_ci(state, at.gpu, at.gi, at.ci);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t ci)
{
    CALL(STATE_WRITE, ci, destroy(call.state, ci));
}

static nvmlReturn_t list(node_state_t *state, nvmlGpuInstance_t gi, unsigned int id,
                         nvmlComputeInstance_t *instances, unsigned int *count)
{
    chosen_t chosen;
    nvmlReturn_t rc = count && instances ? choose(state, gi, id, &chosen) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc != NVML_SUCCESS)
        return rc;
    *count = 0;
    for (int ci = 0; ci < MAX_CI; ci++)
        if (chosen.gi->ci[ci].serial && chosen.gi->ci[ci].profile == id)
            instances[(*count)++] = ci_handle(state, chosen.at.gpu, chosen.at.gi, ci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gi, unsigned int id,
                                                nvmlComputeInstance_t *instances, unsigned int *count)
{
    CALL(STATE_READ, gi, list(call.state, gi, id, instances, count));
}

static nvmlReturn_t by_id(node_state_t *state, nvmlGpuInstance_t gi, unsigned int id, nvmlComputeInstance_t *ci)
{
    handle_t at;
    if (!ci || !handle_open(state, gi, HANDLE_GI, &at))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!may_configure(state))
        return NVML_ERROR_NO_PERMISSION;
    if (id >= MAX_CI || !state->gpus[at.gpu].gi[at.gi].ci[id].serial)
        return NVML_ERROR_NOT_FOUND;
    *ci = ci_handle(state, at.gpu, at.gi, (int)id);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, unsigned int id,
                                                   nvmlComputeInstance_t *ci)
{
    CALL(STATE_READ, gi, by_id(call.state, gi, id, ci));
}

static nvmlReturn_t get_info(node_state_t *state, nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info)
{
    handle_t at;
    if (!info || !handle_open(state, handle, HANDLE_CI, &at))
        return NVML_ERROR_INVALID_ARGUMENT;
    const ci_t *ci = &state->gpus[at.gpu].gi[at.gi].ci[at.ci];
    *info = (nvmlComputeInstanceInfo_t){ gpu_handle(at.gpu), gi_handle(state, at.gpu, at.gi), (unsigned int)at.ci,
                                         ci->profile, { ci->start, ci->size } };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *info)
{
    CALL(STATE_READ, ci, get_info(call.state, ci, info));
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *info)
{
    CALL(STATE_READ, ci, get_info(call.state, ci, info));
}
