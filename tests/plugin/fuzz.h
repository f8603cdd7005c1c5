/*
 * fuzz.h - what a fuzz target offers to libFuzzer and to fuzz_main.c
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Writes an input that reaches far to `bytes`; its size, 0 if there is no room. */
size_t fuzz_seed(uint8_t *bytes, size_t room);

#endif
