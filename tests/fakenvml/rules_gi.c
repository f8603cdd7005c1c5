/* GPU instances: placement, capacity, identifiers. */
#include "rules.h"

#include <string.h>

const gpu_model_t *model_of(const gpu_t *gpu)
{
    return gpu_model(gpu->model);
}

const gi_profile_t *profile_of(const gpu_t *gpu, const gi_t *gi)
{
    return &model_of(gpu)->profiles[gi->profile];
}

bool mig_enabled(const gpu_t *gpu)
{
    return gpu->mode_current == 1;
}

unsigned int gi_count(const gpu_t *gpu)
{
    unsigned int count = 0;
    for (int i = 0; i < MAX_GI; i++)
        count += gpu->gi[i].serial != 0;
    return count;
}

static uint32_t occupied(const gpu_t *gpu)
{
    uint32_t mask = 0;
    for (int i = 0; i < MAX_GI; i++)
        if (gpu->gi[i].serial)
            mask |= ((1u << profile_of(gpu, &gpu->gi[i])->size) - 1) << gpu->gi[i].start;
    return mask;
}

static unsigned int used_slices(const gpu_t *gpu)
{
    unsigned int used = 0;
    for (int i = 0; i < MAX_GI; i++)
        if (gpu->gi[i].serial)
            used += profile_of(gpu, &gpu->gi[i])->slices;
    return used;
}

static unsigned int used_profile(const gpu_t *gpu, int profile)
{
    unsigned int used = 0;
    for (int i = 0; i < MAX_GI; i++)
        used += gpu->gi[i].serial && gpu->gi[i].profile == (uint32_t)profile;
    return used;
}

static int full_profile(const gpu_model_t *model)
{
    int full = 0;
    for (int i = 1; i < model->profile_count; i++)
        if (model->profiles[i].slices > model->profiles[full].slices)
            full = i;
    return full;
}

/* Media engines are few: a +me profile takes the only OFA, +me.all every decoder. */
static bool engines_left(const gpu_t *gpu, const gi_profile_t *wanted)
{
    const gpu_model_t *model = model_of(gpu);
    const gi_profile_t *full = &model->profiles[full_profile(model)];

    for (int engine = DECODER; engine < ENGINE_KINDS; engine++) {
        int used = wanted->engines[engine];
        if (used <= 0 || full->engines[engine] < 0)
            continue;
        for (int i = 0; i < MAX_GI; i++)
            if (gpu->gi[i].serial && profile_of(gpu, &gpu->gi[i])->engines[engine] > 0)
                used += profile_of(gpu, &gpu->gi[i])->engines[engine];
        if (used > full->engines[engine])
            return false;
    }
    return true;
}

/* Counts slices, as the real call does: positive is no promise that one fits. */
unsigned int gi_remaining(const gpu_t *gpu, int index)
{
    const gpu_model_t *model = model_of(gpu);
    const gi_profile_t *profile = &model->profiles[index];
    unsigned int free_memory = model->memory_slices - (unsigned int)__builtin_popcount(occupied(gpu));
    unsigned int by_memory = free_memory / profile->size;
    unsigned int by_slices = (model->slices - used_slices(gpu)) / profile->slices;
    unsigned int by_number = profile->max_instances - used_profile(gpu, index);
    unsigned int least = by_memory < by_slices ? by_memory : by_slices;

    if (used_profile(gpu, index) >= profile->max_instances || !engines_left(gpu, profile))
        return 0;
    return least < by_number ? least : by_number;
}

static bool is_start(const gi_profile_t *profile, unsigned int start)
{
    for (int i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == start)
            return true;
    return false;
}

/* First free start in the node's order; -1 if there is none. */
static int choose_start(const gpu_t *gpu, const gi_profile_t *profile, enum choice order)
{
    uint32_t taken = occupied(gpu);
    for (int i = 0; i < profile->start_count; i++) {
        int at = order == CHOOSE_LOW ? i : profile->start_count - 1 - i;
        if (!(taken & (((1u << profile->size) - 1) << profile->starts[at])))
            return profile->starts[at];
    }
    return -1;
}

/* Ids by share of the memory: whole 0, half 1-2, quarter 3-6, eighth 7-14. */
static int choose_gi_id(const gpu_t *gpu, const gi_profile_t *profile, enum choice order)
{
    unsigned int total = model_of(gpu)->memory_slices;
    int parts = (int)(total / profile->size);
    int first = parts >= 8 ? 7 : parts >= 4 ? 3 : parts >= 2 ? 1 : 0;
    int last = parts >= 8 ? 14 : parts >= 4 ? 6 : parts >= 2 ? 2 : 0;

    for (int i = 0; i <= last - first; i++) {
        int id = order == CHOOSE_LOW ? first + i : last - i;
        if (!gpu->gi[id].serial)
            return id;
    }
    return -1;
}

nvmlReturn_t create_gi(node_state_t *state, int index, int profile_index, const nvmlPlacement_t *placement,
                       int *gi_id)
{
    gpu_t *gpu = &state->gpus[index];
    const gi_profile_t *profile = &model_of(gpu)->profiles[profile_index];
    int start;

    if (placement) {
        if (placement->size != profile->size || !is_start(profile, placement->start))
            return NVML_ERROR_INVALID_ARGUMENT;
        start = (int)placement->start;
        if (occupied(gpu) & (((1u << profile->size) - 1) << start))
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
    } else {
        start = choose_start(gpu, profile, state->policy.start_order);
    }
    int id = choose_gi_id(gpu, profile, state->policy.gi_id_order);
    if (start < 0 || id < 0 || gi_remaining(gpu, profile_index) == 0)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    gpu->gi[id] = (gi_t){ .serial = ++state->next_serial, .profile = (uint32_t)profile_index,
                          .start = (uint32_t)start };
    *gi_id = id;
    return NVML_SUCCESS;
}

nvmlReturn_t destroy_gi(node_state_t *state, int gpu, int gi_id)
{
    gi_t *gi = &state->gpus[gpu].gi[gi_id];
    if (ci_count(gi) > 0 || ci_busy(state, gpu, gi_id, -1))
        return NVML_ERROR_IN_USE;
    memset(gi, 0, sizeof(*gi));
    return NVML_SUCCESS;
}
