#include "caps.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PROC_CAPS "proc/driver/nvidia/capabilities"
#define NVIDIA_MAJOR 195 /* /dev/nvidiaN; nvidia-caps has a dynamic one */
#define PATH_SIZE 768

unsigned int caps_gi_minor(unsigned int gpu_minor, int gi)
{
    return CAPS_FIRST_MINOR + CAPS_MINORS_PER_GPU * gpu_minor + CAPS_MINORS_PER_GI * (unsigned int)gi;
}

unsigned int caps_ci_minor(unsigned int gpu_minor, int gi, int ci)
{
    return caps_gi_minor(gpu_minor, gi) + 1 + (unsigned int)ci;
}

static void make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
}

static void write_text(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return;
    ssize_t written = write(fd, text, strlen(text));
    (void)written;
    close(fd);
}

/* A character device, or a plain file where devices cannot be made. */
static void make_device(const node_state_t *state, const char *name, unsigned int major, unsigned int minor,
                        mode_t mode)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/dev/%s", state->caps_root, name);
    if (!access(path, F_OK))
        return;
    make_parents(path);
    if (state->policy.caps_files || mknod(path, S_IFCHR | mode, makedev(major, minor)))
        write_text(path, "", mode);
    chmod(path, mode); /* whatever the caller's umask */
}

static void make_capability(const node_state_t *state, const char *proc_name, unsigned int minor, mode_t mode)
{
    char path[PATH_SIZE], text[128], name[32];

    snprintf(path, sizeof(path), "%s/%s/%s", state->caps_root, PROC_CAPS, proc_name);
    if (access(path, F_OK)) {
        make_parents(path);
        snprintf(text, sizeof(text), "DeviceFileMinor: %u\nDeviceFileMode: %u\nDeviceFileModify: 1\n", minor,
                 (unsigned int)mode);
        write_text(path, text, mode);
    }
    snprintf(name, sizeof(name), "nvidia-caps/nvidia-cap%u", minor);
    make_device(state, name, state->policy.caps_major, minor, mode);
}

static void drop_capability(const node_state_t *state, const char *proc_name, unsigned int minor)
{
    char path[PATH_SIZE];

    snprintf(path, sizeof(path), "%s/dev/nvidia-caps/nvidia-cap%u", state->caps_root, minor);
    if (!state->policy.keep_caps)
        unlink(path);
    /* The directory goes last: while it is there, the next sync finishes what was begun. */
    snprintf(path, sizeof(path), "%s/%s/%s", state->caps_root, PROC_CAPS, proc_name);
    if (!unlink(path)) {
        *strrchr(path, '/') = '\0';
        rmdir(path);
    }
}

static void sync_capability(const node_state_t *state, bool wanted, const char *proc_name, unsigned int minor)
{
    if (wanted)
        make_capability(state, proc_name, minor, 0444);
    else
        drop_capability(state, proc_name, minor);
}

static bool gi_directory(const node_state_t *state, unsigned int minor, int gi)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/%s/gpu%u/mig/gi%d", state->caps_root, PROC_CAPS, minor, gi);
    return !access(path, F_OK);
}

/* `gpu` is NULL for a minor that no GPU has any more. */
static void sync_instances(const node_state_t *state, unsigned int minor, const gpu_t *gpu)
{
    static const gi_t none;
    char name[96];

    for (int gi = 0; gi < MAX_GI; gi++) {
        const gi_t *instance = gpu ? &gpu->gi[gi] : &none;
        if (!instance->serial && !gi_directory(state, minor, gi))
            continue;
        for (int ci = 0; ci < MAX_CI; ci++) {
            snprintf(name, sizeof(name), "gpu%u/mig/gi%d/ci%d/access", minor, gi, ci);
            sync_capability(state, instance->serial && instance->ci[ci].serial, name, caps_ci_minor(minor, gi, ci));
        }
        snprintf(name, sizeof(name), "gpu%u/mig/gi%d/access", minor, gi);
        sync_capability(state, instance->serial != 0, name, caps_gi_minor(minor, gi));
    }
}

static void sync_minor(const node_state_t *state, unsigned int minor)
{
    char path[PATH_SIZE], name[32];

    snprintf(name, sizeof(name), "nvidia%u", minor);
    for (unsigned int i = 0; i < state->gpu_count; i++) {
        if (state->gpus[i].minor == minor) {
            make_device(state, name, NVIDIA_MAJOR, minor, 0666);
            sync_instances(state, minor, &state->gpus[i]);
            return;
        }
    }
    snprintf(path, sizeof(path), "%s/dev/%s", state->caps_root, name);
    if (!unlink(path))
        sync_instances(state, minor, NULL);
}

/* Written once: it lists what the minors mean, whether or not the instances exist. */
static void write_minors(const node_state_t *state)
{
    char path[PATH_SIZE];

    snprintf(path, sizeof(path), "%s/proc/driver/nvidia-caps/mig-minors", state->caps_root);
    if (!access(path, F_OK))
        return;
    make_parents(path);
    FILE *file = fopen(path, "we");
    if (!file)
        return;
    fputs("config 1\nmonitor 2\n", file);
    for (unsigned int gpu = 0; gpu < CAPS_MAX_GPUS; gpu++) {
        for (int gi = 0; gi < MAX_GI; gi++) {
            fprintf(file, "gpu%u/gi%d/access %u\n", gpu, gi, caps_gi_minor(gpu, gi));
            for (int ci = 0; ci < MAX_CI; ci++)
                fprintf(file, "gpu%u/gi%d/ci%d/access %u\n", gpu, gi, ci, caps_ci_minor(gpu, gi, ci));
        }
    }
    fclose(file);
}

void caps_sync(const node_state_t *state)
{
    if (!state->caps_root[0])
        return;
    write_minors(state);
    make_capability(state, "mig/config", 1, 0400);
    make_capability(state, "mig/monitor", 2, 0444);
    make_device(state, "nvidiactl", NVIDIA_MAJOR, 255, 0666);
    make_device(state, "nvidia-uvm", NVIDIA_MAJOR + 1, 0, 0666);
    for (unsigned int minor = 0; minor < CAPS_MAX_GPUS; minor++)
        sync_minor(state, minor);
}

/* A device without a driver answers ENXIO once the permission checks have passed. */
static int open_device(const node_state_t *state, const char *name, int flags)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/dev/%s", state->caps_root, name);
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        return errno == ENXIO || errno == ENODEV ? 0 : errno;
    close(fd);
    return 0;
}

int caps_open(const node_state_t *state, int gpu, int gi, int ci)
{
    char name[64];
    unsigned int minor = state->gpus[gpu].minor;

    if (!state->caps_root[0])
        return 0;
    snprintf(name, sizeof(name), "nvidia%u", minor);
    int rc = open_device(state, name, O_RDWR);
    if (rc || gi < 0)
        return rc;
    snprintf(name, sizeof(name), "nvidia-caps/nvidia-cap%u", caps_gi_minor(minor, gi));
    rc = open_device(state, name, O_RDONLY);
    snprintf(name, sizeof(name), "nvidia-caps/nvidia-cap%u", caps_ci_minor(minor, gi, ci));
    return rc ? rc : open_device(state, name, O_RDONLY);
}
