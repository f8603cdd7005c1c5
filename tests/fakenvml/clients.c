#include "clients.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rules.h"

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static double wall_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

uint64_t process_start_ticks(pid_t pid)
{
    char path[64], line[1024];
    unsigned long long ticks = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t length = fread(line, 1, sizeof(line) - 1, file);
    fclose(file);
    line[length] = '\0';
    /* The name in parentheses may hold anything: count fields from its end. */
    const char *at = strrchr(line, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (!at || sscanf(at, " %llu", &ticks) != 1)
        return 0;
    return ticks;
}

static const char *uuid_of(const node_state_t *state, const process_t *process)
{
    const gpu_t *gpu = &state->gpus[process->gpu];
    return process->gi < 0 || process->ci < 0 ? gpu->uuid : gpu->gi[process->gi].ci[process->ci].uuid;
}

static void remember(const node_state_t *state, const char *what, const process_t *process)
{
    const char *job = process->job[0] ? process->job : "-";
    state_append("uses", "%.6f %s %d %u %s %d %d %d %u %s\n", wall_s(), what, process->pid, process->uid, job,
                 process->gpu, process->gi, process->ci, process->serial, uuid_of(state, process));
}

static bool same_instance(const process_t *one, const process_t *other)
{
    return one->gpu == other->gpu && one->gi == other->gi && one->ci == other->ci && one->serial == other->serial;
}

static void drop_dead(node_state_t *state)
{
    for (int i = 0; i < MAX_PROCESSES; i++) {
        process_t *process = &state->processes[i];
        if (!process->pid || process_alive(process))
            continue;
        remember(state, "gone", process);
        process->pid = 0;
    }
}

int client_add(node_state_t *state, const process_t *process)
{
    drop_dead(state);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const process_t *other = &state->processes[i];
        if (other->pid && same_instance(process, other) && strcmp(process->job, other->job))
            remember(state, "conflict", process);
    }
    for (int i = 0; i < MAX_PROCESSES; i++) {
        if (!state->processes[i].pid) {
            state->processes[i] = *process;
            remember(state, "open", process);
            return 0;
        }
    }
    return -1;
}

void client_remove(node_state_t *state, pid_t pid)
{
    for (int i = 0; i < MAX_PROCESSES; i++) {
        process_t *process = &state->processes[i];
        if (process->pid && (!pid || process->pid == pid)) {
            remember(state, "close", process);
            process->pid = 0;
        }
    }
}
