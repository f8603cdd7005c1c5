/* GPU instances. */
#include <stdio.h>
#include <string.h>

#include "device.h"

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                        nvmlGpuInstanceProfileInfo_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                             nvmlGpuInstanceProfileInfo_v2_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                              unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                               nvmlPlacement_t *placements, unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                                  nvmlPlacement_t *placements, unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gi);
EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                             const nvmlPlacement_t *placement,
                                                             nvmlGpuInstance_t *gi);
EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gi);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instances,
                                              unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gi);
EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *info);

/* A GPU and one of its profiles. */
typedef struct {
    gpu_t *gpu;
    int index, profile;
    const gi_profile_t *facts;
} chosen_t;

/* The common start of all calls that name a profile by id. */
static nvmlReturn_t choose(node_state_t *state, nvmlDevice_t handle, unsigned int id, bool query, chosen_t *chosen)
{
    chosen->gpu = gpu_open(state, handle, &chosen->index);
    if (!chosen->gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    const gpu_model_t *model = model_of(chosen->gpu);
    if (!mig_enabled(chosen->gpu) && !(query && state->policy.query_off && model->profile_count))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!query && !may_configure(state))
        return NVML_ERROR_NO_PERMISSION;
    chosen->profile = gi_profile_by_id(model, id);
    if (chosen->profile < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    chosen->facts = &model->profiles[chosen->profile];
    return NVML_SUCCESS;
}

/* Maps the enumeration constant to an id, with the codes that end an enumeration. */
static nvmlReturn_t id_of_constant(node_state_t *state, nvmlDevice_t handle, unsigned int constant, unsigned int *id)
{
    const gpu_t *gpu = gpu_open(state, handle, NULL);
    if (!gpu || constant >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    int profile = gi_profile_by_constant(model_of(gpu), constant);
    if (profile < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = model_of(gpu)->profiles[profile].id;
    return NVML_SUCCESS;
}

static unsigned int engines(const gi_profile_t *profile, enum engine engine)
{
    return profile->engines[engine] < 0 ? 0 : (unsigned int)profile->engines[engine];
}

static void fill_info(const gi_profile_t *profile, nvmlGpuInstanceProfileInfo_t *info)
{
    *info = (nvmlGpuInstanceProfileInfo_t){
        profile->id, 0, profile->slices, profile->max_instances, profile->sm_count,
        engines(profile, COPY_ENGINE), engines(profile, DECODER), engines(profile, ENCODER),
        engines(profile, JPEG), engines(profile, OFA), profile->memory_mib,
    };
}

static nvmlReturn_t profile_info(node_state_t *state, nvmlDevice_t handle, unsigned int constant,
                                 nvmlGpuInstanceProfileInfo_t *info)
{
    chosen_t chosen;
    unsigned int id;
    nvmlReturn_t rc = info ? id_of_constant(state, handle, constant, &id) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        rc = choose(state, handle, id, true, &chosen);
    if (rc == NVML_SUCCESS)
        fill_info(chosen.facts, info);
    return rc;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    CALL(STATE_READ, device, profile_info(call.state, device, profile, info));
}

static void fill_info_v3(const nvmlGpuInstanceProfileInfo_t *plain, nvmlGpuInstanceProfileInfo_v3_t *info)
{
    info->id = plain->id;
    info->sliceCount = plain->sliceCount;
    info->instanceCount = plain->instanceCount;
    info->multiprocessorCount = plain->multiprocessorCount;
    info->copyEngineCount = plain->copyEngineCount;
    info->decoderCount = plain->decoderCount;
    info->encoderCount = plain->encoderCount;
    info->jpegCount = plain->jpegCount;
    info->ofaCount = plain->ofaCount;
    info->memorySizeMB = plain->memorySizeMB;
    info->capabilities = 0;
}

static nvmlReturn_t profile_info_by_id(node_state_t *state, nvmlDevice_t handle, unsigned int id,
                                       nvmlGpuInstanceProfileInfo_v2_t *info)
{
    nvmlGpuInstanceProfileInfo_t plain;
    nvmlGpuInstanceProfileInfo_v3_t *third = (nvmlGpuInstanceProfileInfo_v3_t *)info;
    chosen_t chosen;

    if (!info || (info->version != 0x02000098 && info->version != 0x03000098))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t rc = choose(state, handle, id, true, &chosen);
    if (rc != NVML_SUCCESS)
        return rc;
    fill_info(chosen.facts, &plain);
    if (info->version == 0x02000098)
        memcpy(&info->id, &plain, sizeof(plain) - sizeof(plain.memorySizeMB));
    else
        fill_info_v3(&plain, third);
    if (info->version == 0x02000098)
        info->memorySizeMB = plain.memorySizeMB;
    char *name = info->version == 0x02000098 ? info->name : third->name;
    snprintf(name, NVML_NAME_SIZE, "MIG %s", chosen.facts->name);
    return NVML_SUCCESS;
}

static nvmlReturn_t profile_info_v(node_state_t *state, nvmlDevice_t handle, unsigned int constant,
                                   nvmlGpuInstanceProfileInfo_v2_t *info)
{
    unsigned int id;
    nvmlReturn_t rc = id_of_constant(state, handle, constant, &id);
    return rc == NVML_SUCCESS ? profile_info_by_id(state, handle, id, info) : rc;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    CALL(STATE_READ, device, profile_info_v(call.state, device, profile, info));
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
    CALL(STATE_READ, device, profile_info_by_id(call.state, device, id, info));
}

static nvmlReturn_t remaining(node_state_t *state, nvmlDevice_t handle, unsigned int id, unsigned int *count)
{
    chosen_t chosen;
    nvmlReturn_t rc = count ? choose(state, handle, id, false, &chosen) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        *count = gi_remaining(chosen.gpu, chosen.profile);
    return rc;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
    CALL(STATE_READ, device, remaining(call.state, device, id, count));
}

/* Every start the profile has, taken or not. */
static nvmlReturn_t possible(node_state_t *state, nvmlDevice_t handle, unsigned int id, nvmlPlacement_t *placements,
                             unsigned int *count)
{
    chosen_t chosen;
    nvmlReturn_t rc = count ? choose(state, handle, id, true, &chosen) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc != NVML_SUCCESS)
        return rc;
    unsigned int room = *count;
    *count = chosen.facts->start_count;
    if (!placements)
        return NVML_SUCCESS;
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++)
        placements[i] = (nvmlPlacement_t){ chosen.facts->starts[i], chosen.facts->size };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                        nvmlPlacement_t *placements, unsigned int *count)
{
    CALL(STATE_READ, device, possible(call.state, device, id, placements, count));
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlPlacement_t *placements, unsigned int *count)
{
    CALL(STATE_READ, device, possible(call.state, device, id, placements, count));
}

static nvmlReturn_t create(node_state_t *state, nvmlDevice_t handle, unsigned int id,
                           const nvmlPlacement_t *placement, nvmlGpuInstance_t *gi)
{
    chosen_t chosen;
    int gi_id;
    nvmlReturn_t rc = gi ? choose(state, handle, id, false, &chosen) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS)
        rc = create_gi(state, chosen.index, chosen.profile, placement, &gi_id);
    if (rc == NVML_SUCCESS)
        *gi = gi_handle(state, chosen.index, gi_id);
    return rc;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gi)
{
    CALL(STATE_WRITE, device, create(call.state, device, id, NO_PLACEMENT, gi));
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlPlacement_t *placement, nvmlGpuInstance_t *gi)
{
    CALL(STATE_WRITE, device,
         placement ? create(call.state, device, id, placement, gi) : NVML_ERROR_INVALID_ARGUMENT);
}

static nvmlReturn_t destroy(node_state_t *state, nvmlGpuInstance_t gi)
{
    handle_t at;
    if (!handle_open(state, gi, HANDLE_GI, &at))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!may_configure(state))
        return NVML_ERROR_NO_PERMISSION;
    return destroy_gi(state, at.gpu, at.gi);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gi)
{
    CALL(STATE_WRITE, gi, destroy(call.state, gi));
}

/* The caller's array must hold the profile's instanceCount entries: `count` is output only. */
static nvmlReturn_t list(node_state_t *state, nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *instances,
                         unsigned int *count)
{
    chosen_t chosen;
    nvmlReturn_t rc = count && instances ? choose(state, handle, id, false, &chosen) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc != NVML_SUCCESS)
        return rc;
    *count = 0;
    for (int gi = 0; gi < MAX_GI; gi++)
        if (chosen.gpu->gi[gi].serial && chosen.gpu->gi[gi].profile == (uint32_t)chosen.profile)
            instances[(*count)++] = gi_handle(state, chosen.index, gi);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instances,
                                       unsigned int *count)
{
    CALL(STATE_READ, device, list(call.state, device, id, instances, count));
}

static nvmlReturn_t by_id(node_state_t *state, nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *gi)
{
    int index;
    const gpu_t *gpu = gpu_open(state, handle, &index);
    if (!gpu || !gi)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!mig_enabled(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!may_configure(state))
        return NVML_ERROR_NO_PERMISSION;
    if (id >= MAX_GI || !gpu->gi[id].serial)
        return NVML_ERROR_NOT_FOUND;
    *gi = gi_handle(state, index, (int)id);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gi)
{
    CALL(STATE_READ, device, by_id(call.state, device, id, gi));
}

static nvmlReturn_t get_info(node_state_t *state, nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
    handle_t at;
    if (!info || !handle_open(state, handle, HANDLE_GI, &at))
        return NVML_ERROR_INVALID_ARGUMENT;
    const gi_t *gi = &state->gpus[at.gpu].gi[at.gi];
    const gi_profile_t *profile = profile_of(&state->gpus[at.gpu], gi);
    *info = (nvmlGpuInstanceInfo_t){ gpu_handle(at.gpu), (unsigned int)at.gi, profile->id,
                                     { gi->start, profile->size } };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *info)
{
    CALL(STATE_READ, gi, get_info(call.state, gi, info));
}
