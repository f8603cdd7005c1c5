# make chaos CHAOS_SEED= CHAOS_FAULTS= CHAOS_MINUTES=10
.PHONY: chaos
chaos: ## Inject random faults for CHAOS_MINUTES (10) or CHAOS_FAULTS; CHAOS_SEED replays
	@mkdir -p build/chaos
	@tests/testbed/testbed run --cluster tests/chaos/cluster.toml --keep-logs build/chaos/daemons -- \
	    env CHAOS_SEED=$(CHAOS_SEED) CHAOS_FAULTS=$(CHAOS_FAULTS) CHAOS_MINUTES=$(CHAOS_MINUTES) \
	    CHAOS_LOGS=build/chaos python3 tests/chaos/campaign.py
