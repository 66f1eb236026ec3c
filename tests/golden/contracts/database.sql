CREATE TABLE account (
	cluster TEXT NOT NULL, 
	account TEXT NOT NULL, 
	parent TEXT DEFAULT '' NOT NULL, 
	limits TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_account PRIMARY KEY (cluster, account)
)
 WITHOUT ROWID;

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE api_token (
	id INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	username TEXT NOT NULL, 
	cluster TEXT DEFAULT '' NOT NULL, 
	role TEXT NOT NULL, 
	label TEXT NOT NULL, 
	created_time BIGINT NOT NULL, 
	expiry_time BIGINT, 
	last_used_time BIGINT, 
	parent_id INTEGER, 
	maker TEXT DEFAULT '' NOT NULL, 
	maker_via TEXT DEFAULT '' NOT NULL, 
	maker_certificate TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_api_token PRIMARY KEY (id), 
	CONSTRAINT uq_api_token_digest UNIQUE (digest), 
	CONSTRAINT fk_api_token_parent_id FOREIGN KEY(parent_id) REFERENCES api_token (id) ON DELETE CASCADE
);

CREATE TABLE association (
	cluster TEXT NOT NULL, 
	account TEXT NOT NULL, 
	username TEXT NOT NULL, 
	role TEXT NOT NULL, 
	is_default BIGINT NOT NULL, 
	since_time BIGINT NOT NULL, 
	CONSTRAINT pk_association PRIMARY KEY (cluster, account, username, role)
)
 WITHOUT ROWID;

CREATE TABLE batch_script (
	digest TEXT NOT NULL, 
	script TEXT NOT NULL, 
	whole_bytes BIGINT NOT NULL, 
	CONSTRAINT pk_batch_script PRIMARY KEY (digest)
)
 WITHOUT ROWID;

CREATE TABLE cluster (
	name TEXT NOT NULL, 
	first_time BIGINT NOT NULL, 
	CONSTRAINT pk_cluster PRIMARY KEY (name)
);

CREATE TABLE daily_account_emissions (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	provider TEXT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	grams FLOAT NOT NULL, 
	CONSTRAINT pk_daily_account_emissions PRIMARY KEY (cluster, day, account, provider)
)
 WITHOUT ROWID;

CREATE TABLE daily_account_usage (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	jobs_started FLOAT NOT NULL, 
	jobs_ended FLOAT NOT NULL, 
	jobs_failed FLOAT NOT NULL, 
	wait_seconds FLOAT NOT NULL, 
	wall_seconds FLOAT NOT NULL, 
	cpu_allocated_seconds FLOAT NOT NULL, 
	gpu_allocated_seconds FLOAT NOT NULL, 
	memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_cpu_allocated_seconds FLOAT NOT NULL, 
	measured_gpu_allocated_seconds FLOAT NOT NULL, 
	measured_memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_memory_peak_allocated_byte_seconds FLOAT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	cpu_seconds FLOAT NOT NULL, 
	gpu_seconds FLOAT NOT NULL, 
	memory_byte_seconds FLOAT NOT NULL, 
	memory_peak_byte_seconds FLOAT NOT NULL, 
	energy_host_joules FLOAT NOT NULL, 
	energy_gpu_joules FLOAT NOT NULL, 
	CONSTRAINT pk_daily_account_usage PRIMARY KEY (cluster, day, account)
)
 WITHOUT ROWID;

CREATE TABLE daily_cluster_emissions (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	provider TEXT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	grams FLOAT NOT NULL, 
	CONSTRAINT pk_daily_cluster_emissions PRIMARY KEY (cluster, day, provider)
)
 WITHOUT ROWID;

CREATE TABLE daily_cluster_usage (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	jobs_started FLOAT NOT NULL, 
	jobs_ended FLOAT NOT NULL, 
	jobs_failed FLOAT NOT NULL, 
	wait_seconds FLOAT NOT NULL, 
	wall_seconds FLOAT NOT NULL, 
	cpu_allocated_seconds FLOAT NOT NULL, 
	gpu_allocated_seconds FLOAT NOT NULL, 
	memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_cpu_allocated_seconds FLOAT NOT NULL, 
	measured_gpu_allocated_seconds FLOAT NOT NULL, 
	measured_memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_memory_peak_allocated_byte_seconds FLOAT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	cpu_seconds FLOAT NOT NULL, 
	gpu_seconds FLOAT NOT NULL, 
	memory_byte_seconds FLOAT NOT NULL, 
	memory_peak_byte_seconds FLOAT NOT NULL, 
	energy_host_joules FLOAT NOT NULL, 
	energy_gpu_joules FLOAT NOT NULL, 
	CONSTRAINT pk_daily_cluster_usage PRIMARY KEY (cluster, day)
)
 WITHOUT ROWID;

CREATE TABLE daily_emissions (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	username TEXT NOT NULL, 
	provider TEXT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	grams FLOAT NOT NULL, 
	CONSTRAINT pk_daily_emissions PRIMARY KEY (cluster, day, account, username, provider)
)
 WITHOUT ROWID;

CREATE TABLE daily_node_coverage (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	node TEXT NOT NULL, 
	jobs_ended BIGINT NOT NULL, 
	jobs_unmeasured BIGINT NOT NULL, 
	run_seconds FLOAT NOT NULL, 
	covered_seconds FLOAT NOT NULL, 
	CONSTRAINT pk_daily_node_coverage PRIMARY KEY (cluster, day, node)
)
 WITHOUT ROWID;

CREATE TABLE daily_usage (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	username TEXT NOT NULL, 
	jobs_started FLOAT NOT NULL, 
	jobs_ended FLOAT NOT NULL, 
	jobs_failed FLOAT NOT NULL, 
	wait_seconds FLOAT NOT NULL, 
	wall_seconds FLOAT NOT NULL, 
	cpu_allocated_seconds FLOAT NOT NULL, 
	gpu_allocated_seconds FLOAT NOT NULL, 
	memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_cpu_allocated_seconds FLOAT NOT NULL, 
	measured_gpu_allocated_seconds FLOAT NOT NULL, 
	measured_memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_memory_peak_allocated_byte_seconds FLOAT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	cpu_seconds FLOAT NOT NULL, 
	gpu_seconds FLOAT NOT NULL, 
	memory_byte_seconds FLOAT NOT NULL, 
	memory_peak_byte_seconds FLOAT NOT NULL, 
	energy_host_joules FLOAT NOT NULL, 
	energy_gpu_joules FLOAT NOT NULL, 
	CONSTRAINT pk_daily_usage PRIMARY KEY (cluster, day, account, username)
)
 WITHOUT ROWID;

CREATE TABLE daily_wait (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	partition TEXT NOT NULL, 
	jobs_started BIGINT NOT NULL, 
	wait_mean_seconds FLOAT NOT NULL, 
	wait_p50_seconds FLOAT NOT NULL, 
	wait_p90_seconds FLOAT NOT NULL, 
	wait_p99_seconds FLOAT NOT NULL, 
	wait_max_seconds FLOAT NOT NULL, 
	CONSTRAINT pk_daily_wait PRIMARY KEY (cluster, day, partition)
)
 WITHOUT ROWID;

CREATE TABLE job (
	id INTEGER NOT NULL, 
	cluster TEXT NOT NULL, 
	jobid TEXT NOT NULL, 
	submit_time BIGINT NOT NULL, 
	state TEXT DEFAULT '' NOT NULL, 
	state_word TEXT DEFAULT '' NOT NULL, 
	source TEXT DEFAULT '' NOT NULL, 
	run BIGINT NOT NULL, 
	record_id TEXT DEFAULT '' NOT NULL, 
	sluid TEXT DEFAULT '' NOT NULL, 
	username TEXT DEFAULT '' NOT NULL, 
	uid BIGINT, 
	groupname TEXT DEFAULT '' NOT NULL, 
	account TEXT DEFAULT '' NOT NULL, 
	partition TEXT DEFAULT '' NOT NULL, 
	qos TEXT DEFAULT '' NOT NULL, 
	name TEXT DEFAULT '' NOT NULL, 
	reservation TEXT DEFAULT '' NOT NULL, 
	priority BIGINT, 
	expected_start_time FLOAT, 
	eligible_time FLOAT, 
	start_time FLOAT, 
	end_time FLOAT, 
	elapsed_seconds FLOAT, 
	suspended_seconds BIGINT, 
	time_limit_seconds BIGINT, 
	exit_code BIGINT, 
	exit_signal BIGINT, 
	exit_code_or_128_more BIGINT, 
	derived_exit_code BIGINT, 
	derived_exit_signal BIGINT, 
	reason TEXT DEFAULT '' NOT NULL, 
	cancelled_by TEXT DEFAULT '' NOT NULL, 
	restarts BIGINT, 
	requested_cpus BIGINT, 
	requested_memory_bytes BIGINT, 
	requested_gpus BIGINT, 
	requested_nodes BIGINT, 
	requested_resources TEXT DEFAULT '' NOT NULL, 
	allocated_cpus FLOAT, 
	allocated_memory_bytes BIGINT, 
	allocated_gpus BIGINT, 
	allocated_nodes BIGINT, 
	resized_cpu_seconds FLOAT, 
	resized_gpu_seconds FLOAT, 
	resized_memory_byte_seconds FLOAT, 
	allocated_resources TEXT DEFAULT '' NOT NULL, 
	node_list TEXT DEFAULT '' NOT NULL, 
	array_jobid TEXT DEFAULT '' NOT NULL, 
	array_index BIGINT, 
	het_jobid TEXT DEFAULT '' NOT NULL, 
	het_offset BIGINT, 
	dependencies TEXT DEFAULT '' NOT NULL, 
	submit_line TEXT DEFAULT '' NOT NULL, 
	work_dir TEXT DEFAULT '' NOT NULL, 
	stdout_path TEXT DEFAULT '' NOT NULL, 
	tool TEXT DEFAULT '' NOT NULL, 
	parameters TEXT DEFAULT '' NOT NULL, 
	error TEXT DEFAULT '' NOT NULL, 
	result_type TEXT DEFAULT '' NOT NULL, 
	cpu_at_least BIGINT, 
	user_cpu_seconds FLOAT, 
	system_cpu_seconds FLOAT, 
	cpu_seconds FLOAT, 
	peak_memory_bytes BIGINT, 
	energy_joules BIGINT, 
	update_time BIGINT NOT NULL, 
	caveats TEXT DEFAULT '' NOT NULL, 
	usage_due_time BIGINT, 
	CONSTRAINT pk_job PRIMARY KEY (id), 
	CONSTRAINT uq_job_cluster_jobid_submit_time_run UNIQUE (cluster, jobid, submit_time, run)
);

CREATE TABLE job_emissions (
	job_id INTEGER NOT NULL, 
	provider TEXT NOT NULL, 
	grams FLOAT NOT NULL, 
	CONSTRAINT pk_job_emissions PRIMARY KEY (job_id, provider), 
	CONSTRAINT fk_job_emissions_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE job_gpu (
	job_id INTEGER NOT NULL, 
	node TEXT NOT NULL, 
	uuid TEXT NOT NULL, 
	gpu_instance TEXT NOT NULL, 
	gpu TEXT DEFAULT '' NOT NULL, 
	utilization_ratio FLOAT, 
	memory_peak_bytes BIGINT, 
	samples BIGINT, 
	observed_seconds FLOAT, 
	shared_seconds FLOAT, 
	mps_seconds FLOAT, 
	memory_total_bytes BIGINT, 
	profiled_seconds FLOAT, 
	sm_active_ratio FLOAT, 
	sm_active_peak_ratio FLOAT, 
	sm_occupancy_ratio FLOAT, 
	sm_occupancy_peak_ratio FLOAT, 
	tensor_active_ratio FLOAT, 
	tensor_active_peak_ratio FLOAT, 
	dram_active_ratio FLOAT, 
	dram_active_peak_ratio FLOAT, 
	CONSTRAINT pk_job_gpu PRIMARY KEY (job_id, node, uuid, gpu_instance), 
	CONSTRAINT fk_job_gpu_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE job_node (
	job_id INTEGER NOT NULL, 
	node TEXT NOT NULL, 
	cpus FLOAT, 
	memory_bytes BIGINT, 
	gpus BIGINT, 
	until_time FLOAT, 
	cluster TEXT NOT NULL, 
	start_time FLOAT, 
	CONSTRAINT pk_job_node PRIMARY KEY (job_id, node), 
	CONSTRAINT fk_job_node_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE job_node_usage (
	job_id INTEGER NOT NULL, 
	node TEXT NOT NULL, 
	cpus FLOAT, 
	cpu_seconds FLOAT, 
	memory_peak_bytes BIGINT, 
	memory_without_cache_bytes BIGINT, 
	memory_limit_bytes BIGINT, 
	CONSTRAINT pk_job_node_usage PRIMARY KEY (job_id, node), 
	CONSTRAINT fk_job_node_usage_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE job_reallocation (
	job_id INTEGER NOT NULL, 
	until_time FLOAT NOT NULL, 
	cpus FLOAT, 
	memory_bytes BIGINT, 
	gpus BIGINT, 
	CONSTRAINT pk_job_reallocation PRIMARY KEY (job_id, until_time), 
	CONSTRAINT fk_job_reallocation_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE job_script (
	job_id INTEGER NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_job_script PRIMARY KEY (job_id), 
	CONSTRAINT fk_job_script_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE job_step (
	job_id INTEGER NOT NULL, 
	step TEXT NOT NULL, 
	state TEXT DEFAULT '' NOT NULL, 
	state_word TEXT DEFAULT '' NOT NULL, 
	name TEXT DEFAULT '' NOT NULL, 
	start_time BIGINT, 
	end_time BIGINT, 
	elapsed_seconds BIGINT, 
	exit_code BIGINT, 
	exit_signal BIGINT, 
	exit_code_or_128_more BIGINT, 
	nodes BIGINT, 
	node_list TEXT DEFAULT '' NOT NULL, 
	tasks BIGINT, 
	cpus BIGINT, 
	gpus BIGINT, 
	user_cpu_seconds FLOAT, 
	system_cpu_seconds FLOAT, 
	cpu_seconds FLOAT, 
	peak_task_memory_bytes BIGINT, 
	memory_bytes BIGINT, 
	read_bytes BIGINT, 
	written_bytes BIGINT, 
	energy_joules BIGINT, 
	submit_line TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_job_step PRIMARY KEY (job_id, step), 
	CONSTRAINT fk_job_step_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE job_usage (
	job_id INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	measured_time BIGINT NOT NULL, 
	until_time BIGINT NOT NULL, 
	samples BIGINT NOT NULL, 
	dropped_series BIGINT NOT NULL, 
	nodes BIGINT NOT NULL, 
	coverage FLOAT NOT NULL, 
	caveats TEXT DEFAULT '' NOT NULL, 
	user_cpu_seconds FLOAT, 
	system_cpu_seconds FLOAT, 
	throttled_seconds FLOAT, 
	memory_peak_bytes BIGINT, 
	memory_peak_node_bytes BIGINT, 
	memory_limit_bytes BIGINT, 
	swap_peak_bytes BIGINT, 
	memory_average_bytes FLOAT, 
	working_set_average_bytes FLOAT, 
	io_read_bytes BIGINT, 
	io_written_bytes BIGINT, 
	process_io_read_bytes BIGINT, 
	process_io_written_bytes BIGINT, 
	network_received_bytes BIGINT, 
	network_sent_bytes BIGINT, 
	major_page_faults BIGINT, 
	memory_limit_hits BIGINT, 
	oom_kills BIGINT, 
	threads_peak BIGINT, 
	cpu_waiting_seconds FLOAT, 
	memory_waiting_seconds FLOAT, 
	io_waiting_seconds FLOAT, 
	gpus BIGINT, 
	gpu_utilization_ratio FLOAT, 
	gpu_busy_seconds FLOAT, 
	gpu_observed_seconds FLOAT, 
	gpu_memory_peak_bytes BIGINT, 
	gpu_sm_active_ratio FLOAT, 
	gpu_sm_occupancy_ratio FLOAT, 
	gpu_tensor_active_ratio FLOAT, 
	gpu_dram_active_ratio FLOAT, 
	energy_host_active_joules FLOAT, 
	energy_host_idle_joules FLOAT, 
	energy_gpu_active_joules FLOAT, 
	energy_gpu_idle_joules FLOAT, 
	CONSTRAINT pk_job_usage PRIMARY KEY (job_id), 
	CONSTRAINT fk_job_usage_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);

CREATE TABLE login (
	username TEXT NOT NULL, 
	groups TEXT NOT NULL, 
	login_time BIGINT NOT NULL, 
	CONSTRAINT pk_login PRIMARY KEY (username)
)
 WITHOUT ROWID;

CREATE TABLE login_session (
	id INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	username TEXT NOT NULL, 
	subject TEXT DEFAULT '' NOT NULL, 
	provider_session TEXT DEFAULT '' NOT NULL, 
	created_time BIGINT NOT NULL, 
	expiry_time BIGINT NOT NULL, 
	CONSTRAINT pk_login_session PRIMARY KEY (id), 
	CONSTRAINT uq_login_session_digest UNIQUE (digest)
);

CREATE TABLE message_site (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_message_site PRIMARY KEY (name)
)
 WITHOUT ROWID;

CREATE TABLE monthly_account_emissions (
	cluster TEXT NOT NULL, 
	month BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	provider TEXT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	grams FLOAT NOT NULL, 
	CONSTRAINT pk_monthly_account_emissions PRIMARY KEY (cluster, month, account, provider)
)
 WITHOUT ROWID;

CREATE TABLE monthly_account_usage (
	cluster TEXT NOT NULL, 
	month BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	jobs_started FLOAT NOT NULL, 
	jobs_ended FLOAT NOT NULL, 
	jobs_failed FLOAT NOT NULL, 
	wait_seconds FLOAT NOT NULL, 
	wall_seconds FLOAT NOT NULL, 
	cpu_allocated_seconds FLOAT NOT NULL, 
	gpu_allocated_seconds FLOAT NOT NULL, 
	memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_cpu_allocated_seconds FLOAT NOT NULL, 
	measured_gpu_allocated_seconds FLOAT NOT NULL, 
	measured_memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_memory_peak_allocated_byte_seconds FLOAT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	cpu_seconds FLOAT NOT NULL, 
	gpu_seconds FLOAT NOT NULL, 
	memory_byte_seconds FLOAT NOT NULL, 
	memory_peak_byte_seconds FLOAT NOT NULL, 
	energy_host_joules FLOAT NOT NULL, 
	energy_gpu_joules FLOAT NOT NULL, 
	CONSTRAINT pk_monthly_account_usage PRIMARY KEY (cluster, month, account)
)
 WITHOUT ROWID;

CREATE TABLE monthly_user_emissions (
	cluster TEXT NOT NULL, 
	month BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	username TEXT NOT NULL, 
	provider TEXT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	grams FLOAT NOT NULL, 
	CONSTRAINT pk_monthly_user_emissions PRIMARY KEY (cluster, month, account, username, provider)
)
 WITHOUT ROWID;

CREATE TABLE monthly_user_usage (
	cluster TEXT NOT NULL, 
	month BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	username TEXT NOT NULL, 
	jobs_started FLOAT NOT NULL, 
	jobs_ended FLOAT NOT NULL, 
	jobs_failed FLOAT NOT NULL, 
	wait_seconds FLOAT NOT NULL, 
	wall_seconds FLOAT NOT NULL, 
	cpu_allocated_seconds FLOAT NOT NULL, 
	gpu_allocated_seconds FLOAT NOT NULL, 
	memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_cpu_allocated_seconds FLOAT NOT NULL, 
	measured_gpu_allocated_seconds FLOAT NOT NULL, 
	measured_memory_allocated_byte_seconds FLOAT NOT NULL, 
	measured_memory_peak_allocated_byte_seconds FLOAT NOT NULL, 
	measured_energy_cpu_allocated_seconds FLOAT NOT NULL, 
	cpu_seconds FLOAT NOT NULL, 
	gpu_seconds FLOAT NOT NULL, 
	memory_byte_seconds FLOAT NOT NULL, 
	memory_peak_byte_seconds FLOAT NOT NULL, 
	energy_host_joules FLOAT NOT NULL, 
	energy_gpu_joules FLOAT NOT NULL, 
	CONSTRAINT pk_monthly_user_usage PRIMARY KEY (cluster, month, account, username)
)
 WITHOUT ROWID;

CREATE TABLE node_pace (
	cluster TEXT NOT NULL, 
	node TEXT NOT NULL, 
	pace FLOAT NOT NULL, 
	jobs_compared BIGINT NOT NULL, 
	CONSTRAINT pk_node_pace PRIMARY KEY (cluster, node)
)
 WITHOUT ROWID;

CREATE TABLE outbox (
	id INTEGER NOT NULL, 
	username TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	event TEXT NOT NULL, 
	cause TEXT NOT NULL, 
	channel TEXT NOT NULL, 
	target TEXT DEFAULT '' NOT NULL, 
	quiet_hours TEXT DEFAULT '' NOT NULL, 
	account TEXT DEFAULT '' NOT NULL, 
	state TEXT DEFAULT '' NOT NULL, 
	detail TEXT DEFAULT '' NOT NULL, 
	job_id INTEGER, 
	created_time BIGINT NOT NULL, 
	due_time BIGINT NOT NULL, 
	next_time BIGINT NOT NULL, 
	tries BIGINT NOT NULL, 
	batch BIGINT, 
	done_time BIGINT, 
	CONSTRAINT pk_outbox PRIMARY KEY (id), 
	CONSTRAINT uq_outbox UNIQUE (cause, username, channel, target), 
	CONSTRAINT fk_outbox_job_id FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);

CREATE TABLE poll_state (
	cluster TEXT NOT NULL, 
	source TEXT NOT NULL, 
	watermark TEXT DEFAULT '' NOT NULL, 
	success_time BIGINT, 
	error_time BIGINT, 
	error TEXT DEFAULT '' NOT NULL, 
	rows BIGINT, 
	seconds FLOAT, 
	CONSTRAINT pk_poll_state PRIMARY KEY (cluster, source)
)
 WITHOUT ROWID;

CREATE TABLE quarantine (
	cluster TEXT NOT NULL, 
	source TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	time BIGINT NOT NULL, 
	reason TEXT NOT NULL, 
	raw TEXT NOT NULL, 
	rule TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_quarantine PRIMARY KEY (cluster, source, digest)
);

CREATE TABLE rollup_due (
	cluster TEXT NOT NULL, 
	day BIGINT NOT NULL, 
	CONSTRAINT pk_rollup_due PRIMARY KEY (cluster, day)
)
 WITHOUT ROWID;

CREATE TABLE subscription (
	id INTEGER NOT NULL, 
	username TEXT NOT NULL, 
	event TEXT NOT NULL, 
	channel TEXT NOT NULL, 
	target TEXT DEFAULT '' NOT NULL, 
	cluster TEXT DEFAULT '' NOT NULL, 
	jobid TEXT DEFAULT '' NOT NULL, 
	account TEXT DEFAULT '' NOT NULL, 
	quiet_hours TEXT DEFAULT '' NOT NULL, 
	threshold BIGINT NOT NULL, 
	created_time BIGINT NOT NULL, 
	CONSTRAINT pk_subscription PRIMARY KEY (id), 
	CONSTRAINT uq_subscription UNIQUE (username, event, channel, target, cluster, jobid, account)
);

CREATE TABLE usual_wait (
	cluster TEXT NOT NULL, 
	partition TEXT NOT NULL, 
	username TEXT NOT NULL, 
	account TEXT NOT NULL, 
	jobs_started BIGINT NOT NULL, 
	wait_p50_seconds FLOAT NOT NULL, 
	wait_p90_seconds FLOAT NOT NULL, 
	computed_time BIGINT NOT NULL, 
	CONSTRAINT pk_usual_wait PRIMARY KEY (cluster, partition, username, account)
)
 WITHOUT ROWID;

CREATE INDEX ix_api_token_parent_id ON api_token (parent_id);

CREATE INDEX ix_daily_account_emissions_account ON daily_account_emissions (cluster, account, day);

CREATE INDEX ix_daily_account_usage_account ON daily_account_usage (cluster, account, day);

CREATE INDEX ix_daily_usage_account ON daily_usage (cluster, account, day);

CREATE INDEX ix_daily_usage_user ON daily_usage (cluster, username, day);

CREATE INDEX ix_job_account_time ON job (cluster, account, start_time, id);

CREATE INDEX ix_job_array_jobid ON job (cluster, array_jobid) WHERE array_jobid != '';

CREATE INDEX ix_job_end_time ON job (cluster, end_time, id) WHERE end_time IS NOT NULL;

CREATE INDEX ix_job_failed ON job (cluster, end_time, start_time, state, username) WHERE state IN ('FAILED', 'TIMEOUT', 'OUT_OF_MEMORY', 'NODE_FAIL', 'BOOT_FAIL', 'DEADLINE') AND start_time IS NOT NULL;

CREATE INDEX ix_job_het_jobid ON job (cluster, het_jobid) WHERE het_jobid != '';

CREATE INDEX ix_job_node_node_time ON job_node (cluster, node, start_time, job_id);

CREATE INDEX ix_job_over_day ON job (cluster, start_time) WHERE end_time - start_time > 86400;

CREATE INDEX ix_job_over_week ON job (cluster, start_time) WHERE end_time - start_time > 604800;

CREATE INDEX ix_job_script_digest ON job_script (digest);

CREATE INDEX ix_job_start_time ON job (cluster, start_time, id);

CREATE INDEX ix_job_unfinished ON job (cluster, state, username) WHERE end_time IS NULL;

CREATE INDEX ix_job_usage_due ON job (cluster, usage_due_time) WHERE usage_due_time IS NOT NULL;

CREATE INDEX ix_job_user_time ON job (cluster, username, start_time, id);

CREATE INDEX ix_login_session_username ON login_session (username);

CREATE INDEX ix_monthly_account_emissions_account ON monthly_account_emissions (cluster, account, month);

CREATE INDEX ix_monthly_account_usage_account ON monthly_account_usage (cluster, account, month);

CREATE INDEX ix_monthly_user_emissions_account ON monthly_user_emissions (cluster, account, month);

CREATE INDEX ix_monthly_user_emissions_user ON monthly_user_emissions (cluster, username, month);

CREATE INDEX ix_monthly_user_usage_account ON monthly_user_usage (cluster, account, month);

CREATE INDEX ix_monthly_user_usage_user ON monthly_user_usage (cluster, username, month);

CREATE INDEX ix_outbox_job_id ON outbox (job_id);

CREATE INDEX ix_outbox_state ON outbox (state, cluster, batch);

