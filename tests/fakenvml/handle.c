/* Handles are numbers, not addresses: valid in any process, checked at each use.
 *
 * bits 0-31 serial, 32-35 CI, 36-39 GI, 40-47 GPU, 48-51 kind, 52-59 a mark. */
#include "call.h"

#define HANDLE_MARK 0xA5ull

void *handle_pack(handle_t handle)
{
    uint64_t bits = HANDLE_MARK << 52 | (uint64_t)handle.kind << 48 | (uint64_t)(handle.gpu & 0xff) << 40
                    | (uint64_t)(handle.gi & 0xf) << 36 | (uint64_t)(handle.ci & 0xf) << 32 | handle.serial;
    return (void *)(uintptr_t)bits; // NOLINT: opaque by design
}

enum handle_kind handle_kind(const void *opaque)
{
    uint64_t bits = (uintptr_t)opaque;
    return bits >> 52 == HANDLE_MARK ? (enum handle_kind)((bits >> 48) & 0xf) : 0;
}

static bool instance_lives(const node_state_t *state, const handle_t *handle)
{
    if (handle->kind == HANDLE_GPU)
        return true;
    if (handle->gi >= MAX_GI || handle->ci >= MAX_CI)
        return false;
    const gi_t *gi = &state->gpus[handle->gpu].gi[handle->gi];
    uint32_t serial = handle->kind == HANDLE_GI ? gi->serial : gi->ci[handle->ci].serial;
    return gi->serial && serial == handle->serial;
}

bool handle_open(const node_state_t *state, const void *opaque, enum handle_kind kind, handle_t *handle)
{
    uint64_t bits = (uintptr_t)opaque;

    if (handle_kind(opaque) != kind)
        return false;
    *handle = (handle_t){ kind, (int)((bits >> 40) & 0xff), (int)((bits >> 36) & 0xf), (int)((bits >> 32) & 0xf),
                          (uint32_t)bits };
    return handle->gpu < (int)state->gpu_count && instance_lives(state, handle);
}

void *gpu_handle(int gpu)
{
    return handle_pack((handle_t){ HANDLE_GPU, gpu, 0, 0, 0 });
}

void *mig_handle(const node_state_t *state, int gpu, int gi, int ci)
{
    return handle_pack((handle_t){ HANDLE_MIG, gpu, gi, ci, state->gpus[gpu].gi[gi].ci[ci].serial });
}

void *gi_handle(const node_state_t *state, int gpu, int gi)
{
    return handle_pack((handle_t){ HANDLE_GI, gpu, gi, 0, state->gpus[gpu].gi[gi].serial });
}

void *ci_handle(const node_state_t *state, int gpu, int gi, int ci)
{
    return handle_pack((handle_t){ HANDLE_CI, gpu, gi, ci, state->gpus[gpu].gi[gi].ci[ci].serial });
}
