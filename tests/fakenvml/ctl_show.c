/* show: the node as JSON. */
#include <stdio.h>

#include "ctl.h"
#include "device.h"

static const char *comma(bool *first)
{
    const char *text = *first ? "" : ",";
    *first = false;
    return text;
}

static void show_compute_instances(const gpu_t *gpu, const gi_t *gi)
{
    bool first = true;
    char name[NVML_NAME_SIZE];
    for (int i = 0; i < MAX_CI; i++) {
        const ci_t *ci = &gi->ci[i];
        if (!ci->serial)
            continue;
        mig_name(profile_of(gpu, gi), ci->size, name, sizeof(name));
        printf("%s{\"ci\":%d,\"serial\":%u,\"profile_id\":%u,\"name\":\"%s\",\"start\":%u,\"size\":%u,"
               "\"mig_index\":%d,\"uuid\":\"%s\"}",
               comma(&first), i, ci->serial, ci->profile, name, ci->start, ci->size, ci->mig_index, ci->uuid);
    }
}

static void show_instances(const gpu_t *gpu)
{
    bool first = true;
    for (int i = 0; i < MAX_GI; i++) {
        const gi_t *gi = &gpu->gi[i];
        if (!gi->serial)
            continue;
        const gi_profile_t *profile = profile_of(gpu, gi);
        printf("%s{\"gi\":%d,\"serial\":%u,\"profile\":\"%s\",\"profile_id\":%u,\"start\":%u,\"size\":%u,"
               "\"compute_instances\":[",
               comma(&first), i, gi->serial, profile->name, profile->id, gi->start, profile->size);
        show_compute_instances(gpu, gi);
        printf("]}");
    }
}

static void show_gpus(const node_state_t *state)
{
    bool first = true;
    for (unsigned int i = 0; i < state->gpu_count; i++) {
        const gpu_t *gpu = &state->gpus[i];
        printf("%s{\"index\":%u,\"model\":\"%s\",\"name\":\"%s\",\"uuid\":\"%s\",\"minor\":%u,\"mig_capable\":%s,"
               "\"mode\":%u,\"pending\":%u,\"lost\":%s,\"utilization\":%u,\"instances\":[",
               comma(&first), i, model_of(gpu)->key, model_of(gpu)->name, gpu->uuid, gpu->minor,
               model_of(gpu)->profile_count ? "true" : "false", gpu->mode_current, gpu->mode_pending,
               gpu->lost ? "true" : "false", gpu->utilization);
        show_instances(gpu);
        printf("]}");
    }
}

static void show_processes(const node_state_t *state)
{
    bool first = true;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const process_t *process = &state->processes[i];
        if (!process->pid || !process_alive(process))
            continue;
        printf("%s{\"pid\":%d,\"uid\":%u,\"job\":\"%s\",\"gpu\":%d,\"gi\":%d,\"ci\":%d,\"serial\":%u,"
               "\"memory_mib\":%llu,\"hidden\":%s}",
               comma(&first), process->pid, process->uid, process->job, process->gpu, process->gi, process->ci,
               process->serial, (unsigned long long)process->memory_mib,
               process->flags & PROCESS_HIDDEN ? "true" : "false");
    }
}

static void show_faults(const node_state_t *state)
{
    static const char *const actions[] = { "", "fail", "stall", "kill-before", "kill-after", "noop", "lose" };
    bool first = true;
    for (int i = 0; i < MAX_FAULTS; i++) {
        const fault_t *fault = &state->faults[i];
        if (!fault->call[0])
            continue;
        printf("%s{\"call\":\"%s\",\"gpu\":%d,\"action\":\"%s\",\"code\":%d,\"stall_ms\":%u,\"skip\":%u,\"count\":%u}",
               comma(&first), fault->call, fault->gpu, actions[fault->action], fault->code, fault->stall_ms,
               fault->skip, fault->count);
    }
}

void verb_show(words_t *words)
{
    expect_no_more(words);
    node_state_t *state = lock_or_die(STATE_READ);
    printf("{\"node\":\"%s\",\"driver\":\"%s\",\"boots\":%u,\"caps_root\":\"%s\",\"gpus\":[", state->node,
           state->driver, state->boots, state->caps_root);
    show_gpus(state);
    printf("],\"processes\":[");
    show_processes(state);
    printf("],\"faults\":[");
    show_faults(state);
    printf("]}\n");
    state_unlock();
}
