/* Which devices a process sees: CUDA_VISIBLE_DEVICES as CUDA reads it. */
#ifndef FAKENVML_VISIBLE_H
#define FAKENVML_VISIBLE_H

#include "state.h"

enum { MAX_VISIBLE = 128 };

typedef struct {
    int gpu, gi, ci; /* gi = ci = -1: the whole GPU */
} visible_t;

/* Devices in the order of `list`; NULL means the variable is not set and gives all
 * there are.  An entry that names nothing ends the list, as it does for CUDA; `*bad`
 * then points at it, else it is NULL.  A GPU in MIG mode named by index or UUID
 * stands for its first MIG device. */
unsigned int visible_devices(const node_state_t *state, const char *list, visible_t *out, const char **bad);

const char *visible_uuid(const node_state_t *state, const visible_t *device);

#endif
