/* fake-cuda-hold: what a CUDA program is to MIG, a process that holds instances.
 *
 * Exit status: 0, or CUDA's code of what went wrong. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "caps.h"
#include "clients.h"
#include "rules.h"
#include "visible.h"

enum { CUDA_DEVICES_UNAVAILABLE = 46, CUDA_NO_DEVICE = 100, CUDA_INVALID_DEVICE = 101, CUDA_UNKNOWN = 99 };

typedef struct {
    uint64_t memory_mib;
    int device; /* ordinal, -1: all that are visible */
    int expect; /* number of visible devices, -1: any */
    bool strict;
    double hold_s;
} options_t;

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
    (void)signal;
    stopped = 1;
}

static int fail(int code, const char *reason, const char *detail)
{
    fprintf(stderr, "fake-cuda-hold: CUDA error %d: %s%s%s\n", code, reason, *detail ? ": " : "", detail);
    return code;
}

static int hold_one(node_state_t *state, const options_t *options, const visible_t *device)
{
    const char *job = getenv("SLURM_JOB_ID");
    process_t process = {
        .pid = getpid(), .uid = getuid(), .start_ticks = process_start_ticks(getpid()),
        .gpu = device->gpu, .gi = device->gi, .ci = device->ci, .memory_mib = options->memory_mib,
    };
    int rc = caps_open(state, device->gpu, device->gi, device->ci);

    if (rc)
        return fail(CUDA_DEVICES_UNAVAILABLE, "device busy or not permitted", strerror(rc));
    if (device->gi >= 0)
        process.serial = state->gpus[device->gpu].gi[device->gi].ci[device->ci].serial;
    snprintf(process.job, sizeof(process.job), "%s", job ? job : "");
    if (client_add(state, &process))
        return fail(CUDA_UNKNOWN, "the table of processes is full", "");
    printf("%s\n", visible_uuid(state, device));
    return 0;
}

static int check_visible(const options_t *options, unsigned int count, const char *bad)
{
    char text[16];
    if (options->strict && bad)
        return fail(CUDA_INVALID_DEVICE, "CUDA_VISIBLE_DEVICES names no device here", bad);
    snprintf(text, sizeof(text), "%u", count);
    if (options->expect >= 0 && (unsigned int)options->expect != count)
        return fail(CUDA_INVALID_DEVICE, "another number of devices is visible", text);
    if (!count)
        return fail(CUDA_NO_DEVICE, "no CUDA-capable device is detected", bad ? bad : "");
    if (options->device >= (int)count)
        return fail(CUDA_INVALID_DEVICE, "invalid device ordinal", text);
    return 0;
}

static int hold_all(node_state_t *state, const options_t *options)
{
    visible_t devices[MAX_VISIBLE];
    const char *bad, *list = getenv("CUDA_VISIBLE_DEVICES");
    unsigned int count = visible_devices(state, list, devices, &bad);
    int rc = check_visible(options, count, bad);

    /* Without the variable a program that does not choose gets device 0. */
    int only = options->device >= 0 ? options->device : list ? -1 : 0;
    for (int i = 0; !rc && i < (int)count; i++)
        if (only < 0 || only == i)
            rc = hold_one(state, options, &devices[i]);
    fflush(stdout);
    return rc;
}

static void wait_for(double seconds)
{
    struct timespec left = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    while (!stopped && nanosleep(&left, &left))
        continue;
}

static int usage(void)
{
    fputs("usage: fake-cuda-hold [--mem MIB] [--device N] [--expect N] [--strict] [SECONDS]\n", stderr);
    return 2;
}

static int parse(int argc, char **argv, options_t *options)
{
    static const struct option names[] = { { "mem", 1, NULL, 'm' }, { "device", 1, NULL, 'd' },
                                           { "expect", 1, NULL, 'e' }, { "strict", 0, NULL, 's' },
                                           { NULL, 0, NULL, 0 } };
    for (int c; (c = getopt_long(argc, argv, "m:d:e:s", names, NULL)) != -1;) {
        if (c == 'm')
            options->memory_mib = strtoull(optarg, NULL, 10);
        else if (c == 'd')
            options->device = atoi(optarg);
        else if (c == 'e')
            options->expect = atoi(optarg);
        else if (c == 's')
            options->strict = true;
        else
            return usage();
    }
    if (optind < argc)
        options->hold_s = atof(argv[optind++]);
    return optind < argc ? usage() : 0;
}

int main(int argc, char **argv)
{
    options_t options = { .memory_mib = 256, .device = -1, .expect = -1 };
    int rc = parse(argc, argv, &options);
    if (rc)
        return rc;
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    node_state_t *state = state_lock(STATE_WRITE);
    if (!state)
        return fail(CUDA_NO_DEVICE, "no fake GPUs on this node", state_node());
    rc = hold_all(state, &options);
    if (rc) {
        state_unlock();
        return rc;
    }
    state_commit();
    wait_for(options.hold_s);
    state = state_lock(STATE_WRITE);
    if (state) {
        client_remove(state, getpid());
        state_commit();
    }
    return 0;
}
