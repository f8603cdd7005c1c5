/* fake-nvidia-smi: -L as a job sees it, and --gpu-reset. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "device.h"
#include "reset.h"
#include "visible.h"

static void print_gpu(const node_state_t *state, int index)
{
    const gpu_t *gpu = &state->gpus[index];
    printf("GPU %d: %s (UUID: %s)\n", index, model_of(gpu)->name, gpu->uuid);
}

static void print_mig(const node_state_t *state, const visible_t *device)
{
    const gpu_t *gpu = &state->gpus[device->gpu];
    const gi_t *gi = &gpu->gi[device->gi];
    const ci_t *ci = &gi->ci[device->ci];
    char name[NVML_NAME_SIZE];

    mig_name(profile_of(gpu, gi), ci->size, name, sizeof(name));
    printf("  MIG %-12sDevice %2d: (UUID: %s)\n", name, ci->mig_index, ci->uuid);
}

/* The real tool shows a GPU in MIG mode that has no instance; a job does not see it. */
static int list_devices(const node_state_t *state)
{
    visible_t devices[MAX_VISIBLE];
    const char *bad, *list = getenv("CUDA_VISIBLE_DEVICES");
    unsigned int count = visible_devices(state, list, devices, &bad);
    int shown = 0;

    for (int gpu = 0; gpu < (int)state->gpu_count; gpu++) {
        bool head = false;
        for (unsigned int i = 0; i < count; i++) {
            if (devices[i].gpu != gpu)
                continue;
            if (!head)
                print_gpu(state, gpu);
            head = true;
            shown++;
            if (devices[i].gi >= 0)
                print_mig(state, &devices[i]);
        }
        if (!head && !list && !state->gpus[gpu].lost) {
            print_gpu(state, gpu);
            shown++;
        }
    }
    if (!shown)
        puts("No devices found.");
    return shown ? 0 : 6;
}

static int find_gpu(const char *which)
{
    int found = -1;
    node_state_t *state = state_lock(STATE_READ);
    if (!state)
        return -1;
    for (int gpu = 0; gpu < (int)state->gpu_count; gpu++)
        if (!strcasecmp(which, state->gpus[gpu].uuid) || (*which >= '0' && *which <= '9' && atoi(which) == gpu))
            found = gpu;
    state_unlock();
    return found;
}

static int reset(const char *which)
{
    int gpu = find_gpu(which);
    nvmlReturn_t rc = gpu < 0 ? NVML_ERROR_NOT_FOUND : gpu_reset(gpu);

    if (rc != NVML_SUCCESS)
        printf("GPU %s could not be reset: %s\n", which, nvmlErrorString(rc));
    else
        printf("GPU %s was successfully reset.\nAll done.\n", which);
    return rc;
}

static int usage(void)
{
    fputs("usage: fake-nvidia-smi -L | --gpu-reset -i GPU\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option names[] = { { "list-gpus", 0, NULL, 'L' }, { "gpu-reset", 0, NULL, 'r' },
                                           { "id", 1, NULL, 'i' }, { NULL, 0, NULL, 0 } };
    const char *gpu = NULL;
    bool wants_reset = false, wants_list = false;

    for (int c; (c = getopt_long(argc, argv, "Lri:", names, NULL)) != -1;) {
        if (c == 'L')
            wants_list = true;
        else if (c == 'r')
            wants_reset = true;
        else if (c == 'i')
            gpu = optarg;
        else
            return usage();
    }
    if (wants_reset)
        return gpu ? reset(gpu) : usage();
    if (!wants_list)
        return usage();
    node_state_t *state = state_lock(STATE_READ);
    if (!state) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
        return 9;
    }
    int rc = list_devices(state);
    state_unlock();
    return rc;
}
