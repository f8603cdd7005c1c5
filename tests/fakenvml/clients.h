/* Processes that use an instance: registered, listed, and remembered. */
#ifndef FAKENVML_CLIENTS_H
#define FAKENVML_CLIENTS_H

#include "state.h"

uint64_t monotonic_ns(void);

/* Start time of a process as /proc tells it; 0 if it cannot be read. */
uint64_t process_start_ticks(pid_t pid);

/* Registers a process; 0, or -1 if the table is full.
 * Writes to the node's "uses" file: "open" with what the process is and holds,
 * "conflict" when a live process of another job holds the same instance, and
 * "gone" for each process found dead that never said "close". */
int client_add(node_state_t *state, const process_t *process);

/* Takes all entries of a process off, or all there are if pid is 0. */
void client_remove(node_state_t *state, pid_t pid);

#endif
