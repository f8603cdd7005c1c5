/* Preloaded into slurmd and slurmstepd: they see a machine with cgroup v2 alone.
 *
 * Slurm refuses a host that mounts hierarchies of v1 beside v2, of which it learns from /proc/PID/cgroup. Here that
 * file has the line of v2 only; where nothing of v1 is mounted it is as it was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#define SUFFIX "/cgroup"

typedef int open_function(const char *path, int flags, ...);

static bool names_cgroup_of_process(const char *path)
{
    size_t length = strlen(path);
    return !strncmp(path, "/proc/", 6) && length > sizeof(SUFFIX) && !strcmp(path + length - sizeof(SUFFIX) + 1, SUFFIX);
}

static int without_v1(open_function *real, const char *path)
{
    char text[16384];
    int from = real(path, O_RDONLY | O_CLOEXEC), to;
    ssize_t size;

    if (from < 0)
        return from;
    size = read(from, text, sizeof(text) - 1);
    close(from);
    text[size > 0 ? size : 0] = '\0';
    to = memfd_create("cgroup", MFD_CLOEXEC);
    for (char *line = strtok(text, "\n"); to >= 0 && line; line = strtok(NULL, "\n")) {
        if (!strncmp(line, "0::", 3))
            dprintf(to, "%s\n", line);
    }
    lseek(to, 0, SEEK_SET);
    return to;
}

static int open_by(const char *name, const char *path, int flags, mode_t mode)
{
    open_function *real = (open_function *)dlsym(RTLD_NEXT, name);
    return names_cgroup_of_process(path) ? without_v1(real, path) : real(path, flags, mode);
}

static mode_t mode_of(int flags, va_list arguments)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_by("open", path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_by("open64", path, flags, mode);
}
