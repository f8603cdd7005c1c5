# Benchmarks that need no cluster; each prints a table and writes it to build/bench/.
.PHONY: bench-mig

bench-mig: venv ## Steering around holes and planning across GPUs (build/bench/mig.json; BENCH_HOURS=, BENCH_SEEDS=)
	@mkdir -p build/bench
	$(PY) tests/bench/mig.py
