#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_MAGIC 0x6c6d766e656b6166ull /* "fakenvml" */

typedef struct {
    uint64_t magic;
    uint64_t size; /* of this struct: a file of another build is refused */
    _Atomic uint32_t live;
    node_state_t copy[2];
} state_file_t;

static struct {
    const char *dir, *node;
    char host[NODE_NAME_SIZE];
    int fd;
    pid_t pid; /* that opened fd: a forked child must not share its flock */
    bool writable;
    enum lock lock;
    state_file_t *map;
    dev_t device;
    ino_t inode;
} self = { .fd = -1 };

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

void state_select(const char *dir, const char *node)
{
    self.dir = dir;
    self.node = node;
}

const char *state_dir(void)
{
    const char *dir = self.dir ? self.dir : getenv("FAKE_NVML_DIR");
    return dir && *dir ? dir : "/run/fakenvml";
}

const char *state_node(void)
{
    const char *node = self.node ? self.node : getenv("FAKE_NVML_NODE");
    if (!node || !*node)
        node = getenv("SLURMD_NODENAME");
    if (node && *node)
        return node;
    if (gethostname(self.host, sizeof(self.host)))
        return "localhost";
    self.host[sizeof(self.host) - 1] = '\0';
    self.host[strcspn(self.host, ".")] = '\0';
    return self.host;
}

void state_path(char *path, size_t size, const char *suffix)
{
    snprintf(path, size, "%s/%s.%s", state_dir(), state_node(), suffix);
}

static void state_close(void)
{
    if (self.map)
        munmap(self.map, sizeof(*self.map));
    if (self.fd >= 0)
        close(self.fd);
    self.map = NULL;
    self.fd = -1;
}

static int map_file(const struct stat *status)
{
    int protection = self.writable ? PROT_READ | PROT_WRITE : PROT_READ;

    if (status->st_size != (off_t)sizeof(state_file_t)) {
        errno = EINVAL;
        return -1;
    }
    self.map = mmap(NULL, sizeof(*self.map), protection, MAP_SHARED, self.fd, 0);
    if (self.map == MAP_FAILED) {
        self.map = NULL;
        return -1;
    }
    if (self.map->magic != STATE_MAGIC || self.map->size != sizeof(state_file_t)) {
        errno = EINVAL;
        return -1;
    }
    self.device = status->st_dev;
    self.inode = status->st_ino;
    self.pid = getpid();
    return 0;
}

/* Opens the file, again when it was replaced or when this process is a fork. */
static int state_open(void)
{
    char path[512];
    struct stat status;

    state_path(path, sizeof(path), "state");
    if (self.fd >= 0 && self.pid == getpid() && !stat(path, &status) && status.st_dev == self.device
        && status.st_ino == self.inode)
        return 0;
    state_close();
    self.writable = true;
    self.fd = open(path, O_RDWR | O_CLOEXEC);
    if (self.fd < 0 && (errno == EACCES || errno == EROFS)) {
        self.writable = false;
        self.fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (self.fd < 0)
        return -1;
    if (fstat(self.fd, &status) || map_file(&status)) {
        int reason = errno;
        state_close();
        errno = reason;
        return -1;
    }
    return 0;
}

static int lock_file(enum lock lock)
{
    int rc;
    do
        rc = flock(self.fd, lock == STATE_WRITE ? LOCK_EX : LOCK_SH);
    while (rc && errno == EINTR);
    return rc;
}

node_state_t *state_lock(enum lock lock)
{
    pthread_mutex_lock(&threads);
    if (state_open() || lock_file(lock)) {
        int reason = errno;
        pthread_mutex_unlock(&threads);
        errno = reason;
        return NULL;
    }
    if (lock == STATE_WRITE && !self.writable) {
        state_unlock();
        errno = EACCES;
        return NULL;
    }
    self.lock = lock;
    unsigned int live = atomic_load_explicit(&self.map->live, memory_order_acquire) & 1;
    if (lock == STATE_READ)
        return &self.map->copy[live];
    node_state_t *next = &self.map->copy[!live];
    memcpy(next, &self.map->copy[live], sizeof(*next));
    return next;
}

void state_publish(void)
{
    if (self.lock == STATE_WRITE) {
        unsigned int live = atomic_load_explicit(&self.map->live, memory_order_relaxed) & 1;
        atomic_store_explicit(&self.map->live, !live, memory_order_release);
    }
}

void state_unlock(void)
{
    flock(self.fd, LOCK_UN);
    pthread_mutex_unlock(&threads);
}

void state_commit(void)
{
    state_publish();
    state_unlock();
}

/* A finished file is renamed into place, so nobody ever maps half of one. */
static int write_fresh_file(const char *path)
{
    char temporary[520];
    snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    uint64_t head[2] = { STATE_MAGIC, sizeof(state_file_t) };

    if (fd < 0)
        return -1;
    /* Jobs of ordinary users register their processes here: not the umask's business. */
    if (fchmod(fd, 0666) || ftruncate(fd, sizeof(state_file_t)) || write(fd, head, sizeof(head)) != sizeof(head)
        || rename(temporary, path)) {
        int reason = errno;
        close(fd);
        unlink(temporary);
        errno = reason;
        return -1;
    }
    return close(fd);
}

/* Every user's processes append to these. */
static int empty_log(const char *suffix)
{
    char path[512];
    state_path(path, sizeof(path), suffix);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || fchmod(fd, 0666))
        return -1;
    return close(fd);
}

node_state_t *state_create(void)
{
    char path[512];

    if (mkdir(state_dir(), 0755) && errno != EEXIST)
        return NULL;
    state_path(path, sizeof(path), "state");
    if (write_fresh_file(path) || empty_log("calls") || empty_log("uses"))
        return NULL;
    return state_lock(STATE_WRITE);
}

void state_append(const char *suffix, const char *format, ...)
{
    char path[512], line[512];
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    if (length >= (int)sizeof(line))
        length = sizeof(line) - 1;
    state_path(path, sizeof(path), suffix);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    ssize_t written = write(fd, line, (size_t)length);
    (void)written;
    close(fd);
}
