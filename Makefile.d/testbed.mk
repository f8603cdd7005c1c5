# The test cluster (tests/testbed/README.md). CLUSTER=FILE boots another one; T=... chooses tests.
TESTBED := tests/testbed/testbed
TESTBED_OPTIONS = $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(KEEP_LOGS),--keep-logs $(KEEP_LOGS))

.PHONY: testbed test-cluster test-testbed

testbed: ## Build the root of the test cluster
	$(TESTBED) build

test-cluster: testbed ## Tests on real Slurm daemons; T=tests/cluster/test_x.py for some of them
	$(TESTBED) run $(TESTBED_OPTIONS) -- python -m pytest -q $(or $(T),tests/cluster)
	$(if $(T),,$(TESTBED) run --without-hetsched -- python -m pytest -q tests/cluster/test_plugin_real.py)

test-testbed: venv testbed ## Tests of the test cluster from outside
	$(PY) -m pytest -q tests/testbed
