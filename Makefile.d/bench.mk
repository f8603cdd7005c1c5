# Benchmarks that need no cluster; each prints a table and writes it to build/bench/.
.PHONY: bench-mig bench-steering

bench-mig: venv ## Steering around holes and planning across GPUs (build/bench/mig.json; BENCH_HOURS=, BENCH_SEEDS=)
	@mkdir -p build/bench
	$(PY) tests/bench/mig.py

bench-steering: testbed ## The ways around MIG holes on the real cluster (build/bench/steering_cluster.json)
	@$(TESTBED) run -- python tests/bench/steering_cluster.py
