/* Compute instances and the MIG devices they make. */
#include "rules.h"

#include <stdio.h>
#include <string.h>

unsigned int ci_count(const gi_t *gi)
{
    unsigned int count = 0;
    for (int i = 0; i < MAX_CI; i++)
        count += gi->ci[i].serial != 0;
    return count;
}

/* Slices by profile id; the double-memory 1g has an id of its own for its only CI. */
static unsigned int slices_of(unsigned int id)
{
    static const unsigned char slices[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = { 1, 2, 3, 4, 7, 8, 6, 1, 7 };
    return id < NVML_COMPUTE_INSTANCE_PROFILE_COUNT ? slices[id] : 0;
}

bool ci_profile(const gi_profile_t *gi_profile, unsigned int id, ci_profile_t *profile)
{
    bool double_memory = gi_profile->constant == NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2;
    unsigned int slices = slices_of(id);
    bool known = double_memory ? id == NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 : id <= 4;

    if (!known || slices > gi_profile->slices || (slices == 3 && gi_profile->slices == 4))
        return false;
    *profile = (ci_profile_t){ id, slices, gi_profile->slices / slices };
    return true;
}

unsigned int ci_placements(const gi_profile_t *gi_profile, const ci_profile_t *profile, nvmlPlacement_t *out)
{
    unsigned int count = 0;
    for (unsigned int start = 0; start + profile->slices <= gi_profile->slices; start += profile->slices)
        out[count++] = (nvmlPlacement_t){ start, profile->slices };
    return count;
}

static uint32_t occupied(const gi_t *gi)
{
    uint32_t mask = 0;
    for (int i = 0; i < MAX_CI; i++)
        if (gi->ci[i].serial)
            mask |= ((1u << gi->ci[i].size) - 1) << gi->ci[i].start;
    return mask;
}

unsigned int ci_remaining(const gpu_t *gpu, const gi_t *gi, const ci_profile_t *profile)
{
    unsigned int used = (unsigned int)__builtin_popcount(occupied(gi));
    return (profile_of(gpu, gi)->slices - used) / profile->slices;
}

unsigned int ci_sm_count(const gi_profile_t *gi_profile, unsigned int slices)
{
    return gi_profile->sm_count * slices / gi_profile->slices;
}

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *byte = data;
    while (size--)
        hash = (hash ^ *byte++) * 0x100000001b3ull;
    return hash ^ (hash >> 29);
}

void make_uuid(char *uuid, const char *prefix, const char *seed, int gi, int ci, uint32_t nonce)
{
    int32_t numbers[3] = { gi, ci, (int32_t)nonce };
    uint64_t high = mix(mix(0xcbf29ce484222325ull, seed, strlen(seed)), numbers, sizeof(numbers));
    uint64_t low = mix(mix(high, numbers, sizeof(numbers)), seed, strlen(seed));

    snprintf(uuid, UUID_SIZE, "%s-%08x-%04x-5%03x-%04x-%012llx", prefix, (unsigned int)(high >> 32),
             (unsigned int)(high >> 16) & 0xffff, (unsigned int)high & 0xfff,
             ((unsigned int)(low >> 48) & 0x3fff) | 0x8000, (unsigned long long)low & 0xffffffffffffull);
}

/* A MIG device keeps its index for life, so indexes have holes after a destroy. */
static int free_mig_index(const gpu_t *gpu)
{
    uint32_t taken = 0;
    for (int i = 0; i < MAX_GI; i++)
        for (int j = 0; j < MAX_CI && gpu->gi[i].serial; j++)
            if (gpu->gi[i].ci[j].serial)
                taken |= 1u << gpu->gi[i].ci[j].mig_index;
    return __builtin_ctz(~taken);
}

static bool fits(const gi_t *gi, nvmlPlacement_t place)
{
    return !(occupied(gi) & (((1u << place.size) - 1) << place.start));
}

static nvmlReturn_t choose_place(const gi_t *gi, const nvmlPlacement_t *legal, unsigned int count,
                                 const nvmlPlacement_t *wanted, nvmlPlacement_t *place)
{
    for (unsigned int i = 0; i < count; i++) {
        if (wanted && (wanted->start != legal[i].start || wanted->size != legal[i].size))
            continue;
        *place = legal[i];
        if (fits(gi, *place))
            return NVML_SUCCESS;
        if (wanted)
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    return wanted ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t create_ci(node_state_t *state, int index, int gi_id, unsigned int id, const nvmlPlacement_t *wanted,
                       int *ci_id)
{
    gpu_t *gpu = &state->gpus[index];
    gi_t *gi = &gpu->gi[gi_id];
    const gi_profile_t *gi_profile = profile_of(gpu, gi);
    nvmlPlacement_t legal[MAX_CI], place;
    ci_profile_t profile;
    int slot = 0;

    if (!ci_profile(gi_profile, id, &profile))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t rc = choose_place(gi, legal, ci_placements(gi_profile, &profile, legal), wanted, &place);
    if (rc != NVML_SUCCESS)
        return rc;
    while (slot < MAX_CI && gi->ci[slot].serial)
        slot++;
    if (slot == MAX_CI)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    ci_t *ci = &gi->ci[slot];
    int mig_index = free_mig_index(gpu);
    *ci = (ci_t){ ++state->next_serial, id, place.start, place.size, mig_index, "" };
    uint32_t kind = (gi_profile->id << 16) | (gi->start << 8) | (id << 4) | place.start;
    make_uuid(ci->uuid, "MIG", gpu->uuid, gi_id, slot, state->policy.fresh_uuids ? ~ci->serial : kind);
    *ci_id = slot;
    return NVML_SUCCESS;
}

nvmlReturn_t destroy_ci(node_state_t *state, int gpu, int gi_id, int ci_id)
{
    ci_t *ci = &state->gpus[gpu].gi[gi_id].ci[ci_id];
    if (ci_busy(state, gpu, gi_id, ci_id))
        return NVML_ERROR_IN_USE;
    memset(ci, 0, sizeof(*ci));
    return NVML_SUCCESS;
}
