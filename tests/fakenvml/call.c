#include "call.h"

#include <errno.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "caps.h"
#include "clients.h"
#include "rules.h"

/* The code that the log shows for a call whose caller was killed in it. */
#define KILLED (-9)

static atomic_int references;

int initialized_add(int change)
{
    return atomic_fetch_add(&references, change) + change;
}

bool may_configure(const node_state_t *state)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2] = { { 0, 0, 0 }, { 0, 0, 0 } };

    if (state->policy.permission != PERMISSION_AUTO)
        return state->policy.permission == PERMISSION_ALLOW;
    return !syscall(SYS_capget, &header, data) && (data[0].effective & (1u << CAP_SYS_ADMIN));
}

nvmlReturn_t copy_text(char *out, unsigned int length, const char *text)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

static void sleep_us(uint64_t us)
{
    struct timespec left = { (time_t)(us / 1000000), (long)(us % 1000000) * 1000 };
    while (us && nanosleep(&left, &left) && errno == EINTR)
        continue;
}

static uint64_t latency_us(const policy_t *policy, const char *name)
{
    if (strstr(name, "Init"))
        return policy->latency_init_us;
    if (strstr(name, "Create"))
        return policy->latency_create_us;
    if (strstr(name, "Destroy"))
        return policy->latency_destroy_us;
    if (!strcmp(name, "nvmlDeviceSetMigMode"))
        return policy->latency_mode_us;
    return policy->latency_other_us;
}

static bool fault_matches(const fault_t *fault, const call_t *call)
{
    if (!fault->call[0] || (fault->gpu >= 0 && fault->gpu != call->gpu))
        return false;
    return !strcmp(fault->call, "*") || !strcmp(fault->call, call->name);
}

/* Takes the first fault that is due, counting down those not due yet. */
static bool take_fault(node_state_t *state, const call_t *call, fault_t *taken)
{
    for (int i = 0; i < MAX_FAULTS; i++) {
        fault_t *fault = &state->faults[i];
        if (!fault_matches(fault, call))
            continue;
        if (fault->skip) {
            fault->skip--;
            continue;
        }
        *taken = *fault;
        if (--fault->count == 0) {
            fault->call[0] = '\0';
            state->fault_count--;
        }
        return true;
    }
    return false;
}

static void log_call(const call_t *call)
{
    struct timespec now;
    if (!call->log)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t took_us = (monotonic_ns() - call->start_ns) / 1000;
    state_append("calls", "%lld.%06ld %d %u %s %d %d %llu\n", (long long)now.tv_sec, now.tv_nsec / 1000, (int)getpid(),
                 (unsigned int)geteuid(), call->name, call->gpu, call->rc, (unsigned long long)took_us);
}

static void die_now(call_t *call)
{
    call->rc = KILLED;
    log_call(call);
    kill(getpid(), SIGKILL);
}

/* False if the body must not run: the fault has answered in its place. */
static bool apply_fault(call_t *call, const fault_t *fault)
{
    sleep_us((uint64_t)fault->stall_ms * 1000);
    switch (fault->action) {
    case FAULT_FAIL:
        call->rc = fault->code;
        return false;
    case FAULT_LOSE:
        call->rc = NVML_ERROR_GPU_IS_LOST;
        return false;
    case FAULT_NOOP:
        call->rc = NVML_SUCCESS;
        return false;
    case FAULT_KILL_BEFORE:
        die_now(call);
        return false;
    case FAULT_KILL_AFTER:
        call->kill_after = true;
        return true;
    default:
        return true;
    }
}

/* A stall must not hold up other processes, so faults run before the lock is taken. */
static bool run_faults(call_t *call)
{
    fault_t fault;
    uint64_t delay_us;
    node_state_t *state = state_lock(STATE_READ);

    if (!state) {
        call->rc = errno == ENOENT ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_ERROR_UNKNOWN;
        return false;
    }
    delay_us = latency_us(&state->policy, call->name);
    call->log = state->policy.log_calls;
    bool faulty = state->fault_count > 0;
    state_unlock();
    sleep_us(delay_us);
    if (!faulty || !(state = state_lock(STATE_WRITE)))
        return true;
    bool taken = take_fault(state, call, &fault);
    if (taken && fault.action == FAULT_LOSE && call->gpu >= 0 && call->gpu < MAX_GPUS)
        state->gpus[call->gpu].lost = 1;
    state_commit();
    return !taken || apply_fault(call, &fault);
}

static bool gpu_lost(const call_t *call)
{
    return call->gpu >= 0 && call->gpu < (int)call->state->gpu_count && call->state->gpus[call->gpu].lost;
}

bool call_enter(call_t *call, const char *name, enum lock lock, const void *handle)
{
    *call = (call_t){ .name = name, .lock = lock, .gpu = -1, .rc = NVML_ERROR_UNKNOWN, .start_ns = monotonic_ns() };
    if (!atomic_load(&references) && !strstr(name, "Init")) {
        call->rc = NVML_ERROR_UNINITIALIZED;
        return false;
    }
    if (handle)
        call->gpu = (int)(((uintptr_t)handle >> 40) & 0xff);
    if (!run_faults(call))
        return false;
    call->state = state_lock(lock);
    if (!call->state) {
        call->rc = errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
        return false;
    }
    if (gpu_lost(call)) {
        call->rc = NVML_ERROR_GPU_IS_LOST;
        return false;
    }
    return true;
}

nvmlReturn_t call_leave(call_t *call)
{
    if (call->state) {
        if (call->lock == STATE_WRITE && call->rc == NVML_SUCCESS) {
            state_publish();
            caps_sync(call->state);
        }
        state_unlock();
    }
    if (call->kill_after)
        die_now(call);
    log_call(call);
    return call->rc;
}
