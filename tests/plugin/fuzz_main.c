/*
 * fuzz_main.c - writes the seed, repeats an input, or mutates the seed where there is no libFuzzer
 *
 * fuzz seed FILE         writes the seed input
 * fuzz try FILE...       runs these inputs
 * fuzz mutate S NUMBER   runs mutations of the seed for S seconds, the same ones for the same NUMBER
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fuzz.h"

#define INPUT_MAX 65536

static uint8_t seed[INPUT_MAX], input[INPUT_MAX];
static uint64_t state;

static uint64_t draw(uint64_t below) /* xorshift64* (Vigna 2016) */
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * 0x2545f4914f6cdd1dULL % below;
}

static size_t mutate(size_t size)
{
	size_t at = draw(size), run = 1 + draw(8);

	switch (draw(6)) {
	case 0:
		input[at] ^= (uint8_t) (1u << draw(8));
		break;
	case 1:
		input[at] = (uint8_t) draw(256);
		break;
	case 2: /* a number that lengths and counts dislike */
		input[at] = (const uint8_t[]) {0, 1, 0x7f, 0x80, 0xfe, 0xff}[draw(6)];
		break;
	case 3: /* take some out */
		run = run < size - at ? run : size - at;
		memmove(input + at, input + at + run, size - at - run);
		return size - run ? size - run : 1;
	case 4: /* say some twice */
		if (size + run > INPUT_MAX || at + run > size)
			break;
		memmove(input + at + run, input + at, size - at);
		return size + run;
	case 5:
		return 1 + draw(size);
	}
	return size;
}

static void run_mutations(long seconds, size_t seed_size)
{
	long count = 0;

	for (time_t end = time(NULL) + seconds; time(NULL) < end; count++) {
		size_t size = seed_size;
		memcpy(input, seed, seed_size);
		for (uint64_t n = 1 + draw(8); n; n--)
			size = mutate(size);
		LLVMFuzzerTestOneInput(input, size);
	}
	printf("%ld inputs\n", count);
}

static int run_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	if (!file) {
		perror(path);
		return EXIT_FAILURE;
	}
	size_t size = fread(input, 1, sizeof(input), file);
	fclose(file);
	return LLVMFuzzerTestOneInput(input, size);
}

int main(int argc, char **argv)
{
	size_t size = fuzz_seed(seed, sizeof(seed));
	int rc = EXIT_SUCCESS;

	if (argc == 3 && !strcmp(argv[1], "seed")) {
		FILE *file = fopen(argv[2], "wb");
		if (!file || fwrite(seed, 1, size, file) != size || fclose(file))
			rc = EXIT_FAILURE;
	} else if (argc >= 3 && !strcmp(argv[1], "try")) {
		for (int i = 2; i < argc; i++)
			rc |= run_file(argv[i]);
	} else if (argc == 4 && !strcmp(argv[1], "mutate")) {
		state = strtoull(argv[3], NULL, 10) | 1;
		run_mutations(strtol(argv[2], NULL, 10), size);
	} else {
		fprintf(stderr, "usage: %s seed FILE | try FILE... | mutate SECONDS NUMBER\n", argv[0]);
		rc = 2;
	}
	return rc;
}
