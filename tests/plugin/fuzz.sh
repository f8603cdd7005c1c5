#!/bin/sh
# Fuzzes both targets: fuzz.sh FOLDER_OF_THE_PROGRAMS SECONDS. With libFuzzer where clang was found, else with
# the mutations of fuzz_main.c. What fails is left in the folder as crash-*.
set -eu

programs=$(cd "${1:?usage: fuzz.sh FOLDER SECONDS}" && pwd)
seconds=${2:?usage: fuzz.sh FOLDER SECONDS}

for target in reply request; do
    corpus=$programs/corpus_$target
    mkdir -p "$corpus"
    "$programs/fuzz_$target" seed "$corpus/seed"
    if [ -x "$programs/libfuzz_$target" ]; then
        "$programs/libfuzz_$target" -max_total_time="$seconds" -max_len=8192 -verbosity=0 -print_final_stats=1 \
            -artifact_prefix="$programs/" "$corpus"
    else
        "$programs/fuzz_$target" mutate "$seconds" 1
    fi
done
