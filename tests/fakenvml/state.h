/* The state of one node's GPUs, shared by all processes through one file.
 *
 * The file holds two copies of the state and the number of the live one.  A
 * writer copies the live one over the other, changes that, and then flips the
 * number: one aligned store.  A process killed at any instant therefore leaves
 * the state before or after its change, never one between.  flock() keeps
 * writers apart and is dropped by the kernel when its holder dies. */
#ifndef FAKENVML_STATE_H
#define FAKENVML_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    MAX_GPUS = 16,
    MAX_GI = 15, /* GI ids 0..14 */
    MAX_CI = 8,
    MAX_PROCESSES = 512,
    MAX_FAULTS = 128,
    UUID_SIZE = 48,
    NODE_NAME_SIZE = 64,
    JOB_NAME_SIZE = 32,
    CALL_NAME_SIZE = 64,
};

typedef struct {
    uint32_t serial; /* 0: no instance here; never used twice on a node */
    uint32_t profile; /* NVML_COMPUTE_INSTANCE_PROFILE_* = CI profile id */
    uint32_t start, size;
    int32_t mig_index;
    char uuid[UUID_SIZE];
} ci_t;

typedef struct {
    uint32_t serial;
    uint32_t profile; /* index in the model's profiles */
    uint32_t start;
    ci_t ci[MAX_CI];
} gi_t;

typedef struct {
    uint32_t model;
    uint32_t mode_current, mode_pending;
    uint32_t minor;
    uint32_t lost;
    uint32_t utilization; /* percent, without MIG */
    char uuid[UUID_SIZE];
    gi_t gi[MAX_GI];
} gpu_t;

enum {
    PROCESS_HIDDEN = 1, /* makes its instance busy but is not listed */
    PROCESS_STICKY = 2, /* need not exist as a process */
};

typedef struct {
    int32_t pid; /* 0: free entry */
    uint32_t uid;
    uint64_t start_ticks; /* from /proc, against reused pids */
    int32_t gpu, gi, ci;  /* gi = ci = -1: the whole GPU */
    uint32_t serial;      /* of the compute instance; 0 on a whole GPU */
    uint32_t flags;
    uint64_t memory_mib;
    uint64_t expires_ns; /* CLOCK_MONOTONIC; 0: never */
    char job[JOB_NAME_SIZE];
} process_t;

enum fault_action { FAULT_FAIL = 1, FAULT_STALL, FAULT_KILL_BEFORE, FAULT_KILL_AFTER, FAULT_NOOP, FAULT_LOSE };

typedef struct {
    char call[CALL_NAME_SIZE]; /* "" : free entry; "*": any call */
    int32_t gpu;               /* -1: any */
    uint32_t action;
    int32_t code;
    uint32_t stall_ms; /* before the action */
    uint32_t skip;  /* calls to let pass first */
    uint32_t count; /* calls to hit */
} fault_t;

enum choice { CHOOSE_LOW, CHOOSE_HIGH };
enum permission { PERMISSION_AUTO, PERMISSION_ALLOW, PERMISSION_DENY };

typedef struct {
    uint32_t start_order;  /* enum choice: start of a GI created without placement */
    uint32_t gi_id_order;  /* enum choice: GI id within its range */
    uint32_t fresh_uuids;  /* a recreated instance gets another UUID */
    uint32_t permission;   /* enum permission */
    uint32_t self_reset;   /* SetMigMode resets an idle Ampere by itself */
    uint32_t query_off;    /* profile queries work with MIG mode off (field 199) */
    uint32_t shift_minor;  /* a mode change gives the GPU another minor */
    uint32_t log_calls;
    uint32_t latency_init_us, latency_create_us, latency_destroy_us, latency_mode_us, latency_other_us;
    uint32_t keep_caps;    /* device nodes outlive their instance */
    uint32_t caps_files;   /* regular files in place of character devices */
    uint32_t caps_major;
} policy_t;

typedef struct {
    char node[NODE_NAME_SIZE];
    char driver[32];
    char caps_root[256]; /* "": no capability tree */
    uint32_t gpu_count;
    uint32_t next_serial;
    uint32_t boots;
    uint32_t fault_count; /* entries in use: the common case, none, costs one load */
    policy_t policy;
    gpu_t gpus[MAX_GPUS];
    process_t processes[MAX_PROCESSES];
    fault_t faults[MAX_FAULTS];
} node_state_t;

enum lock { STATE_READ, STATE_WRITE };

/* Directory and node name from the environment; see README.md. */
const char *state_dir(void);
const char *state_node(void);
void state_select(const char *dir, const char *node); /* NULL: from the environment */

/* Path of a file of this node, `suffix` such as "state" or "calls". */
void state_path(char *path, size_t size, const char *suffix);

/* Makes the file with a zeroed state and leaves it open and locked for writing. */
node_state_t *state_create(void);

/* Locks the state; NULL with errno set if there is none. */
node_state_t *state_lock(enum lock lock);

/* Makes a writer's changes the live state, still under the lock. */
void state_publish(void);

/* Unlocks; a writer's changes that were not published are lost. */
void state_unlock(void);

/* Publishes and unlocks. */
void state_commit(void);

/* Appends one line to a file of this node, by one write(). */
void state_append(const char *suffix, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
