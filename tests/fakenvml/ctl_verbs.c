/* The verbs that make things happen to a node. */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "caps.h"
#include "clients.h"
#include "ctl.h"
#include "reset.h"
#include "rules.h"
#include "visible.h"

static void fault_action(words_t *words, fault_t *fault)
{
    const char *fail = take_option(words, "--fail"), *stall = take_option(words, "--stall");
    const char *kill = take_option(words, "--kill");

    if (fail) {
        fault->action = FAULT_FAIL;
        fault->code = atoi(fail);
    } else if (kill && !strcmp(kill, "before")) {
        fault->action = FAULT_KILL_BEFORE;
    } else if (kill && !strcmp(kill, "after")) {
        fault->action = FAULT_KILL_AFTER;
    } else if (!kill && take_flag(words, "--noop")) {
        fault->action = FAULT_NOOP;
    } else if (!kill && take_flag(words, "--lose")) {
        fault->action = FAULT_LOSE;
    } else if (!kill && stall) {
        fault->action = FAULT_STALL;
    } else {
        die("fault add needs --fail CODE, --kill before|after, --noop, --lose or --stall S");
    }
    if (stall)
        fault->stall_ms = (uint32_t)(atof(stall) * 1000);
}

static void add_fault(words_t *words)
{
    fault_t fault = { .gpu = take_number(words, "--gpu", -1) };
    const char *name = take_option(words, "--call");
    int count = take_number(words, "--count", 1), skip = take_number(words, "--skip", 0);

    if (!name)
        die("fault add needs --call NAME, such as nvmlGpuInstanceDestroy or '*'");
    snprintf(fault.call, sizeof(fault.call), "%s", name);
    fault.count = count > 0 ? (uint32_t)count : UINT_MAX;
    fault.skip = (uint32_t)skip;
    fault_action(words, &fault);
    expect_no_more(words);
    node_state_t *state = lock_or_die(STATE_WRITE);
    for (int i = 0; i < MAX_FAULTS; i++) {
        if (!state->faults[i].call[0]) {
            state->faults[i] = fault;
            state->fault_count++;
            state_commit();
            return;
        }
    }
    die("at most %d faults can wait", MAX_FAULTS);
}

void verb_fault(words_t *words)
{
    if (take_flag(words, "add")) {
        add_fault(words);
        return;
    }
    if (!take_flag(words, "clear"))
        die("fault takes add or clear; show lists them");
    expect_no_more(words);
    node_state_t *state = lock_or_die(STATE_WRITE);
    memset(state->faults, 0, sizeof(state->faults));
    state->fault_count = 0;
    state_commit();
}

static void publish_all(const node_state_t *state)
{
    state_publish();
    caps_sync(state);
    state_unlock();
}

void verb_reboot(words_t *words)
{
    expect_no_more(words);
    node_state_t *state = lock_or_die(STATE_WRITE);
    reboot_node(state);
    publish_all(state);
}

void verb_reset(words_t *words)
{
    int gpu = take_number(words, "--gpu", -1);
    expect_no_more(words);
    gpu_or_die(lock_or_die(STATE_READ), gpu);
    state_unlock();
    nvmlReturn_t rc = gpu_reset(gpu);
    if (rc != NVML_SUCCESS)
        die("GPU %d could not be reset: %s", gpu, nvmlErrorString(rc));
}

/* Sets the mode as if it had always been so: no reset, no permission, instances gone. */
void verb_mode(words_t *words)
{
    int gpu = take_number(words, "--gpu", -1);
    bool on = take_flag(words, "on");
    if (!on && !take_flag(words, "off"))
        die("mode takes on or off");
    expect_no_more(words);
    node_state_t *state = lock_or_die(STATE_WRITE);
    gpu_t *target = &state->gpus[gpu_or_die(state, gpu)];
    if (on && !model_of(target)->profile_count)
        die("a %s has no MIG", model_of(target)->key);
    memset(target->gi, 0, sizeof(target->gi));
    target->mode_current = target->mode_pending = on;
    publish_all(state);
}

void verb_lost(words_t *words)
{
    int gpu = take_number(words, "--gpu", -1);
    bool clear = take_flag(words, "--clear");
    expect_no_more(words);
    node_state_t *state = lock_or_die(STATE_WRITE);
    state->gpus[gpu_or_die(state, gpu)].lost = !clear;
    state_commit();
}

void verb_util(words_t *words)
{
    int gpu = take_number(words, "--gpu", -1);
    node_state_t *state = lock_or_die(STATE_WRITE);
    if (words->count != 1)
        die("util takes one percentage");
    state->gpus[gpu_or_die(state, gpu)].utilization = (uint32_t)atoi(words->words[0]);
    state_commit();
}

/* Where --uuid or --gpu, --gi, --ci point. */
static void find_target(const node_state_t *state, words_t *words, process_t *process)
{
    const char *uuid = take_option(words, "--uuid"), *bad;
    visible_t device[MAX_VISIBLE];

    process->gpu = take_number(words, "--gpu", -1);
    process->gi = take_number(words, "--gi", -1);
    process->ci = take_number(words, "--ci", process->gi < 0 ? -1 : 0);
    if (uuid) {
        if (visible_devices(state, uuid, device, &bad) != 1)
            die("no device has the UUID %s", uuid);
        process->gpu = device[0].gpu;
        process->gi = device[0].gi;
        process->ci = device[0].ci;
    }
    gpu_or_die(state, process->gpu);
    if (process->gi >= MAX_GI || process->ci >= MAX_CI)
        die("GI ids end at %d, CI ids at %d", MAX_GI - 1, MAX_CI - 1);
    if (process->gi >= 0 && process->ci >= 0)
        process->serial = state->gpus[process->gpu].gi[process->gi].ci[process->ci].serial;
    if (process->gi >= 0 && process->ci >= 0 && !process->serial)
        die("GPU %d has no instance %d/%d", process->gpu, process->gi, process->ci);
}

/* --ci -1 holds the GPU instance itself, as a leaked handle does. */
void verb_hold(words_t *words)
{
    node_state_t *state = lock_or_die(STATE_WRITE);
    process_t process = { .pid = take_number(words, "--pid", 0) };
    const char *seconds = take_option(words, "--for"), *job = take_option(words, "--job");

    find_target(state, words, &process);
    process.memory_mib = (uint64_t)take_number(words, "--mem", 256);
    process.flags = take_flag(words, "--hidden") ? PROCESS_HIDDEN : 0;
    expect_no_more(words);
    if (seconds)
        process.expires_ns = monotonic_ns() + (uint64_t)(atof(seconds) * 1e9);
    snprintf(process.job, sizeof(process.job), "%s", job ? job : "");
    if (process.pid)
        process.start_ticks = process_start_ticks(process.pid);
    if (!process.start_ticks)
        process.flags |= PROCESS_STICKY; /* a pid that only has to look like one */
    if (!process.pid)
        process.pid = 900000 + (int)++state->next_serial;
    if (client_add(state, &process))
        die("the table of processes is full");
    int pid = process.pid;
    state_commit();
    printf("%d\n", pid);
}

void verb_unhold(words_t *words)
{
    int pid = take_number(words, "--pid", 0);
    if (!take_flag(words, "--all") && !pid)
        die("unhold takes --pid N or --all");
    expect_no_more(words);
    node_state_t *state = lock_or_die(STATE_WRITE);
    client_remove(state, pid);
    state_commit();
}
