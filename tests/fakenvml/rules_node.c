/* MIG mode, resets, reboots, and the processes that stand in their way. */
#include "rules.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "clients.h"

static bool process_expired(const process_t *process)
{
    return process->expires_ns && monotonic_ns() >= process->expires_ns;
}

bool process_alive(const process_t *process)
{
    if (!process->pid || process_expired(process))
        return false;
    if (process->flags & PROCESS_STICKY)
        return true;
    if (kill(process->pid, 0) && errno == ESRCH)
        return false;
    uint64_t ticks = process_start_ticks(process->pid);
    return !ticks || ticks == process->start_ticks;
}

bool gpu_busy(const node_state_t *state, int gpu)
{
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (state->processes[i].pid && state->processes[i].gpu == gpu && process_alive(&state->processes[i]))
            return true;
    return false;
}

bool ci_busy(const node_state_t *state, int gpu, int gi, int ci)
{
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const process_t *process = &state->processes[i];
        if (process->pid && process->gpu == gpu && process->gi == gi && process->ci == ci && process_alive(process))
            return true;
    }
    return false;
}

static void activate(node_state_t *state, gpu_t *gpu)
{
    gpu->mode_current = gpu->mode_pending;
    if (state->policy.shift_minor)
        gpu->minor = (gpu->minor + MAX_GPUS) % (2 * MAX_GPUS);
}

nvmlReturn_t set_mig_mode(node_state_t *state, int index, unsigned int mode, nvmlReturn_t *activation)
{
    gpu_t *gpu = &state->gpus[index];
    const gpu_model_t *model = model_of(gpu);

    *activation = NVML_SUCCESS;
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!model->profile_count)
        return *activation = NVML_ERROR_NOT_SUPPORTED;
    if (mode == 0 && gi_count(gpu))
        return *activation = NVML_ERROR_IN_USE;
    gpu->mode_pending = mode;
    if (gpu->mode_current == mode)
        return NVML_SUCCESS;
    /* The call succeeds, what it asked for does not: callers must read both codes. */
    if (gpu_busy(state, index))
        *activation = NVML_ERROR_IN_USE;
    else if (model->needs_reset && !state->policy.self_reset)
        *activation = NVML_ERROR_RESET_REQUIRED;
    else
        activate(state, gpu);
    return NVML_SUCCESS;
}

static void forget_instances(gpu_t *gpu)
{
    memset(gpu->gi, 0, sizeof(gpu->gi));
}

nvmlReturn_t reset_gpu(node_state_t *state, int index)
{
    gpu_t *gpu = &state->gpus[index];
    if (gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    if (gpu_busy(state, index))
        return NVML_ERROR_IN_USE;
    forget_instances(gpu);
    if (gpu->mode_current != gpu->mode_pending)
        activate(state, gpu);
    return NVML_SUCCESS;
}

void reboot_node(node_state_t *state)
{
    memset(state->processes, 0, sizeof(state->processes));
    for (unsigned int i = 0; i < state->gpu_count; i++) {
        gpu_t *gpu = &state->gpus[i];
        forget_instances(gpu);
        gpu->lost = 0;
        if (!model_of(gpu)->mode_persists)
            gpu->mode_pending = 0;
        gpu->mode_current = gpu->mode_pending;
    }
    state->boots++;
}
