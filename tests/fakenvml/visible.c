#include "visible.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "rules.h"

const char *visible_uuid(const node_state_t *state, const visible_t *device)
{
    const gpu_t *gpu = &state->gpus[device->gpu];
    return device->gi < 0 ? gpu->uuid : gpu->gi[device->gi].ci[device->ci].uuid;
}

/* The MIG device of an index on a GPU; false if the slot is empty. */
static bool mig_at(const gpu_t *gpu, int index, visible_t *device)
{
    for (int gi = 0; gi < MAX_GI; gi++) {
        for (int ci = 0; ci < MAX_CI; ci++) {
            if (gpu->gi[gi].ci[ci].serial && gpu->gi[gi].ci[ci].mig_index == index) {
                device->gi = gi;
                device->ci = ci;
                return true;
            }
        }
    }
    return false;
}

static unsigned int all_of_gpu(const node_state_t *state, int index, visible_t *out)
{
    const gpu_t *gpu = &state->gpus[index];
    unsigned int count = 0;

    if (gpu->lost)
        return 0;
    if (!mig_enabled(gpu)) {
        out[0] = (visible_t){ index, -1, -1 };
        return 1;
    }
    for (int mig = 0; mig < model_of(gpu)->max_instances; mig++) {
        out[count].gpu = index;
        count += mig_at(gpu, mig, &out[count]);
    }
    return count;
}

static bool first_of_gpu(const node_state_t *state, int index, visible_t *out)
{
    visible_t all[MAX_CI];
    if (index < 0 || index >= (int)state->gpu_count || !all_of_gpu(state, index, all))
        return false;
    *out = all[0];
    return true;
}

static bool by_mig_uuid(const node_state_t *state, const char *name, visible_t *out)
{
    visible_t all[MAX_CI];
    for (int gpu = 0; gpu < (int)state->gpu_count; gpu++) {
        unsigned int count = mig_enabled(&state->gpus[gpu]) ? all_of_gpu(state, gpu, all) : 0;
        for (unsigned int i = 0; i < count; i++) {
            if (!strcasecmp(visible_uuid(state, &all[i]), name)) {
                *out = all[i];
                return true;
            }
        }
    }
    return false;
}

/* MIG-GPU-<uuid>/<gi>/<ci>, the form drivers before R470 used. */
static bool by_old_mig_name(const node_state_t *state, const char *name, visible_t *out)
{
    char uuid[UUID_SIZE];
    int gi, ci;
    if (sscanf(name, "MIG-%47[^/]/%d/%d", uuid, &gi, &ci) != 3 || gi < 0 || gi >= MAX_GI || ci < 0 || ci >= MAX_CI)
        return false;
    for (int gpu = 0; gpu < (int)state->gpu_count; gpu++) {
        if (!strcasecmp(state->gpus[gpu].uuid, uuid) && state->gpus[gpu].gi[gi].ci[ci].serial) {
            *out = (visible_t){ gpu, gi, ci };
            return true;
        }
    }
    return false;
}

static bool by_gpu_uuid(const node_state_t *state, const char *name, visible_t *out)
{
    int found = -1;
    for (int gpu = 0; gpu < (int)state->gpu_count; gpu++) {
        if (strncasecmp(state->gpus[gpu].uuid, name, strlen(name)))
            continue;
        if (found >= 0)
            return false; /* an abbreviation must be unique */
        found = gpu;
    }
    return first_of_gpu(state, found, out);
}

static bool find_device(const node_state_t *state, const char *name, visible_t *out)
{
    if (!strncasecmp(name, "MIG-", 4))
        return by_mig_uuid(state, name, out) || by_old_mig_name(state, name, out);
    if (!strncasecmp(name, "GPU-", 4))
        return by_gpu_uuid(state, name, out);
    char *end;
    long index = strtol(name, &end, 10);
    return isdigit((unsigned char)*name) && !*end && index < MAX_GPUS && first_of_gpu(state, (int)index, out);
}

static unsigned int everything(const node_state_t *state, visible_t *out)
{
    unsigned int count = 0;
    for (int gpu = 0; gpu < (int)state->gpu_count; gpu++)
        count += all_of_gpu(state, gpu, &out[count]);
    return count;
}

unsigned int visible_devices(const node_state_t *state, const char *list, visible_t *out, const char **bad)
{
    unsigned int count = 0;

    *bad = NULL;
    if (!list)
        return everything(state, out);
    for (const char *at = list; *at && count < MAX_VISIBLE;) {
        char name[128];
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof(name), "%.*s", (int)length, at);
        if (!find_device(state, name, &out[count])) {
            *bad = at;
            break;
        }
        count++;
        at += length + (at[length] == ',');
    }
    return count;
}
