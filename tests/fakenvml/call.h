/* Every exported function goes through here: state, faults, latency, log.
 *
 *     nvmlReturn_t nvmlDeviceGetX(nvmlDevice_t device, int *x)
 *     {
 *         CALL(STATE_READ, device, get_x(call.state, device, x));
 *     }
 */
#ifndef FAKENVML_CALL_H
#define FAKENVML_CALL_H

#include "nvml_abi.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

enum handle_kind { HANDLE_GPU = 1, HANDLE_MIG, HANDLE_GI, HANDLE_CI };

/* What a handle names.  `serial` tells a destroyed instance from its successor. */
typedef struct {
    enum handle_kind kind;
    int gpu, gi, ci;
    uint32_t serial;
} handle_t;

void *handle_pack(handle_t handle);

/* False for anything that is not a handle of a GPU of this node or of a live instance. */
bool handle_open(const node_state_t *state, const void *opaque, enum handle_kind kind, handle_t *handle);
enum handle_kind handle_kind(const void *opaque);

void *gpu_handle(int gpu);
void *mig_handle(const node_state_t *state, int gpu, int gi, int ci);
void *gi_handle(const node_state_t *state, int gpu, int gi);
void *ci_handle(const node_state_t *state, int gpu, int gi, int ci);

typedef struct {
    const char *name;
    enum lock lock;
    int gpu;
    nvmlReturn_t rc;
    node_state_t *state; /* locked between call_enter and call_leave, else NULL */
    bool kill_after;
    bool log;
    uint64_t start_ns;
} call_t;

/* True if the body shall run, with call->state locked. */
bool call_enter(call_t *call, const char *name, enum lock lock, const void *handle);
nvmlReturn_t call_leave(call_t *call);

#define CALL(lock, handle, body)                          \
    do {                                                  \
        call_t call;                                      \
        if (call_enter(&call, __func__, (lock), (handle))) \
            call.rc = (body);                             \
        return call_leave(&call);                         \
    } while (0)

/* References held by nvmlInit; calls without one answer UNINITIALIZED. */
int initialized_add(int references);

/* CAP_SYS_ADMIN, or what the node's policy says. */
bool may_configure(const node_state_t *state);

/* Fills a caller's buffer; INSUFFICIENT_SIZE if `length` bytes are too few. */
nvmlReturn_t copy_text(char *out, unsigned int length, const char *text);

#endif
