/* fake-nvml-ctl: the hand that plays the machine room. */
#ifndef FAKENVML_CTL_H
#define FAKENVML_CTL_H

#include "state.h"

/* Arguments of one verb, taken off one by one. */
typedef struct {
    int count;
    char **words;
} words_t;

/* Takes "--name VALUE" off wherever it stands; NULL if it is not there. */
const char *take_option(words_t *words, const char *name);
bool take_flag(words_t *words, const char *name);
int take_number(words_t *words, const char *name, int otherwise);

/* Ends the program with a message if words are left over. */
void expect_no_more(const words_t *words);

/* Prints to stderr and exits with status 1. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Locks the node's state, or dies saying which file is missing. */
node_state_t *lock_or_die(enum lock lock);

/* The GPU that --gpu names, checked against the state. */
int gpu_or_die(const node_state_t *state, int gpu);

void verb_init(words_t *words);
void verb_policy(words_t *words);
void verb_fault(words_t *words);
void verb_reboot(words_t *words);
void verb_reset(words_t *words);
void verb_mode(words_t *words);
void verb_lost(words_t *words);
void verb_util(words_t *words);
void verb_hold(words_t *words);
void verb_unhold(words_t *words);
void verb_show(words_t *words);
void verb_uses(words_t *words);
void verb_times(words_t *words);

#endif
