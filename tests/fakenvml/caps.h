/* The tree of MIG capabilities: proc entries, device nodes, the list of minors.
 *
 * Under the state's caps_root:
 *   proc/driver/nvidia/capabilities/mig/{config,monitor}
 *   proc/driver/nvidia/capabilities/gpuN/mig/giG/access, .../ciC/access
 *   proc/driver/nvidia-caps/mig-minors
 *   dev/nvidia-caps/nvidia-capM, dev/nvidiaN, dev/nvidiactl, dev/nvidia-uvm
 * N is the GPU's device minor, not its index. */
#ifndef FAKENVML_CAPS_H
#define FAKENVML_CAPS_H

#include "state.h"

/* nvidia-caps minors: 1 and 2 for mig/config and mig/monitor, 135 a GPU after. */
enum { CAPS_MINORS_PER_GPU = 135, CAPS_MINORS_PER_GI = 9, CAPS_FIRST_MINOR = 3, CAPS_MAX_GPUS = 32 };

unsigned int caps_gi_minor(unsigned int gpu_minor, int gi);
unsigned int caps_ci_minor(unsigned int gpu_minor, int gi, int ci);

/* Makes the tree agree with the state; nothing to do without a caps_root. */
void caps_sync(const node_state_t *state);

/* 0 if this process may open the device nodes of an instance, else errno.
 * ci = gi = -1 asks for the GPU's own node. */
int caps_open(const node_state_t *state, int gpu, int gi, int ci);

#endif
