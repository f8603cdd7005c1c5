# The test cluster (tests/testbed/README.md). CLUSTER=FILE boots another one; T=... chooses tests.
TESTBED := tests/testbed/testbed
TESTBED_OPTIONS = $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(KEEP_LOGS),--keep-logs $(KEEP_LOGS))

.PHONY: testbed test-cluster test-testbed

testbed: ## Build the root of the test cluster
	$(TESTBED) build

# Each group has a cluster of its own: what one learns, breaks or leaves behind is no other's starting point.
T_GROUPS := testbed+slices+whole_gpus+refusals+job_kinds outages+faults+node_faults crowd+demo+install chaos_short \
    pools+flex+mig_verbs rounds isolation+hostile plugin_real
# Random faults want hetsched's waits short, as in the campaign.
CLUSTER_chaos_short := --cluster tests/chaos/cluster.toml
group_files = $(patsubst %,tests/cluster/test_%.py,$(subst +, ,$(1)))

test-cluster: testbed ## Tests on real Slurm daemons; T=tests/cluster/test_x.py for some of them
	@listed="$(sort $(foreach group,$(T_GROUPS),$(call group_files,$(group))))"; \
	    there=$$(echo tests/cluster/test_*.py); \
	    [ "$$listed" = "$$there" ] || { echo "T_GROUPS must list each of: $$there" >&2; exit 1; }
	$(if $(T),$(TESTBED) run $(TESTBED_OPTIONS) -- python -m pytest -q $(T),\
	    failed=; $(foreach group,$(T_GROUPS),$(TESTBED) run $(or $(CLUSTER_$(group)),$(TESTBED_OPTIONS)) -- \
	    python -m pytest -q $(call group_files,$(group)) || failed="$$failed $(group)";) \
	    $(TESTBED) run --without-hetsched -- python -m pytest -q tests/cluster/test_plugin_real.py || \
	    failed="$$failed plugin_real-without-hetsched"; \
	    [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; })

test-testbed: venv testbed ## Tests of the test cluster from outside
	$(PY) -m pytest -q tests/testbed
