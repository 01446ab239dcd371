"""Lists which tests show each row of docs/reference/failure-modes.md.

A row without tests fails, as do tests of a row that is not on the page, and a test that does not exist. The tests show
what a client sees and the reason that `kubectl` shows, not every number of the row.
"""

from __future__ import annotations

from tests.named_tests import TESTS, functions_of

PAGE = TESTS.parent / "docs/reference/failure-modes.md"

SHOWN: dict[str, dict[str, str]] = {
    "The engine fails": {
        "the engine process dies":
        """api/test_end_to_end.py test_engine_killed_mid_stream api/test_lifecycle.py
            test_when_the_engine_dies_every_client_gets_an_error_and_the_server_ends operator/test_summarize.py
            test_a_failed_container_says_why""",
        "the engine stalls: no step ends within `--watchdog-timeout`":
        """engine/test_client.py test_a_stalled_engine_is_found_and_ended
            test_a_device_that_never_ends_its_step_is_a_stall
            test_time_in_which_the_watchdog_stood_still_as_well_is_no_stall engine/test_loop.py
            test_no_step_is_to_take_so_long_that_the_watchdog_ends_the_engine operator/test_summarize.py
            test_a_failed_container_says_why""",
        "one of the processes that share a model dies, or makes no progress for 3 s":
        """engine/test_tensor_parallel.py test_ranks_answer_as_one_does_until_a_process_ends
            test_a_rank_that_ends_while_idle_is_noticed engine/test_ranks.py
            test_what_a_rank_died_of_is_the_groups_error""",
        "a thread or task that the server needs ends because of a bug":
        """engine/test_client.py test_a_task_of_the_client_that_ends_is_the_engines_end
            test_a_computing_thread_that_ends_is_the_engines_end api/test_internal_faults.py
            test_a_server_without_one_of_its_parts_drains_and_ends""",
        "a bug, or a lack of memory or files, affects one connection":
        """api/test_internal_faults.py test_an_error_with_one_connection_does_not_end_accepting
            test_a_protocol_that_cannot_be_made_costs_one_connection api/test_strict_http.py
            test_an_error_of_the_parser_ends_its_connection_and_does_not_fill_the_log""",
        "the device runs out of memory in a step":
        """engine/test_client.py test_a_step_without_memory_is_computed_again_and_then_ends_the_engine
            engine/test_steps_without_memory.py test_a_request_without_memory_ends_alone
            test_a_moment_without_memory_costs_no_request_anything test_without_memory_for_anything_the_engine_ends
            test_states_are_not_advanced_twice api/test_chat.py test_failures_of_a_whole_answer""",
        "one request's logits, vector or classes are not finite, because finite weights give too large numbers":
        """engine/test_llm.py test_logits_that_are_not_finite_end_their_request_alone engine/test_without_head.py
            test_a_result_that_is_infinite_is_an_error_of_its_text_alone api/test_lifecycle.py
            test_a_request_that_the_engine_could_not_compute_is_a_500""",
        "a text worker is killed from outside (SIGKILL, SIGHUP; while it starts also SIGTERM and SIGINT), for "
        "example by the kernel when the container has no memory left":
        """api/test_expensive_prompts.py test_a_worker_that_is_killed_from_outside_is_no_fault_of_the_request
            test_signals_that_let_a_server_drain_do_not_end_its_workers""",
        "a text worker hangs, or gets so little CPU time that a request is not read within 30 s":
        """api/test_expensive_prompts.py
            test_a_task_that_takes_too_long_or_too_much_ends_in_an_error_and_harms_no_other""",
        "the disk of `--batch-storage` is full, or fails":
        """api/test_batches.py test_a_full_disk_is_503_and_leaves_nothing
            test_a_batch_whose_disk_is_full_goes_on_when_there_is_room
            test_a_batch_whose_disk_fails_for_good_is_failed_until_a_restart api/test_batch_disk.py
            test_a_batch_that_was_to_be_cancelled_is_cancelled_in_memory api/test_bounded_logs.py
            test_warnings_about_a_full_disk_are_bounded""",
    },
    "The engine does not start": {
        "a setting is wrong":
        """engine/test_exit_codes.py test_usage_is_reported_with_exit_code_2 operator/test_summarize.py
            test_a_failed_container_says_why cluster/test_llmservice_life.py
            test_an_engine_that_cannot_start_says_why""",
        "the model is not found, or is broken; a weight is infinite, is not a number, or is too large for `--dtype`":
        """engine/test_exit_codes.py test_a_broken_model_is_reported
            test_a_wrong_path_and_an_empty_folder_are_reported engine/test_weights.py test_wrong_tensors_are_named
            test_numbers_that_float16_does_not_have_are_refused_where_it_is_computed_in operator/test_summarize.py
            test_a_failed_container_says_why""",
        "the model does not fit in memory":
        """engine/test_exit_codes.py test_what_does_not_fit_is_reported_before_loading_with_exit_code_4
            engine/test_graphs.py test_memory_of_graphs_is_not_the_caches operator/test_summarize.py
            test_a_failed_container_says_why cluster/test_llmservice_life.py
            test_an_engine_that_cannot_start_says_why""",
        "a download is interrupted":
        """engine/test_s3.py test_a_killed_download_is_gone_on_with test_a_begun_file_is_gone_on_with
            operator/test_summarize.py test_phase_is_that_of_the_furthest_pod test_a_download_that_fails_says_why""",
        "the hub or the store cannot be reached":
        """engine/test_s3.py test_a_model_that_was_fetched_before_is_served_while_the_store_cannot_be_reached
            engine/test_source.py test_what_the_hub_refuses_is_reported_in_one_sentence
            cluster/test_llmservice_models.py
            test_a_download_tells_its_progress_and_a_later_pod_starts_from_the_nodes_cache""",
    },
    "Overload and limits": {
        "too many requests wait": "api/test_limits.py test_a_full_server_answers_503",
        "one key sends too much":
        """api/test_limits.py test_a_key_that_fills_its_share_gets_429 api/test_key_limits.py
            test_a_key_out_of_requests_gets_the_time_to_come_back api/test_expensive_prompts.py
            test_a_key_with_very_many_small_requests_leaves_room_for_those_of_others""",
        "KV blocks run out":
        """core/test_preemption.py test_the_least_important_is_the_victim_whatever_it_loses
            test_among_equals_the_one_that_loses_least_and_frees_enough_is_the_victim
            test_without_blocks_the_youngest_is_preempted_and_still_answered_in_full
            test_what_was_swapped_out_comes_back_as_it_was engine/test_tensor_parallel.py
            test_ranks_answer_as_one_does_until_a_process_ends""",
        "requests need more adapters than `--max-loras`":
        """engine/test_adapter_slots.py
            test_a_request_that_goes_on_for_long_gives_its_adapters_slot_up_and_gets_it_back engine/test_lora.py
            test_more_adapters_than_slots_and_than_cpu_memory_has_room_for""",
        "the source of an adapter that a client loads answers slowly, or never":
        """api/test_adapters.py test_loads_of_one_key_that_do_not_end_leave_room_for_those_of_others""",
        "a request takes longer than its timeout":
        """api/test_chat.py test_failures_of_a_whole_answer api/test_end_to_end.py
            test_a_request_that_runs_out_of_time api/test_lifecycle.py test_outcomes_tell_how_answers_ended
            api/test_expensive_prompts.py test_a_request_that_is_not_prepared_by_its_deadline_is_told_so
            api/test_deadlines.py test_a_refusal_for_its_deadline_is_counted_and_says_when""",
        "bodies, accepted requests or answers that clients have not got yet, of one key or of all, take too much "
        "memory":
        """api/test_metered_bodies.py test_bodies_have_a_budget_for_each_key_and_for_all
            api/test_expensive_prompts.py
            test_what_accepted_requests_take_is_bounded_with_a_copy_of_the_parameters_for_each_answer
            api/test_unread_answers.py
            test_outputs_that_wait_for_a_reader_take_room_and_those_of_a_reader_that_reads_are_never_refused
            test_log_probabilities_that_no_client_has_yet_are_bounded""",
        "an answer that is not streamed takes more memory than its key may have "
        "([security](../security.md#what-the-engine-defends))":
        """api/test_unread_answers.py test_log_probabilities_that_no_client_has_yet_are_bounded api/test_batches.py
            test_a_batch_is_answered_in_the_lowest_class""",
        "a key uploads or reads more than 64 files at a time, or all keys more than 128":
        """api/test_batches.py test_few_files_are_uploaded_or_read_at_a_time
            test_two_keys_that_transfer_all_they_may_leave_places_for_others""",
        "a client reads a stored file for longer than 10 minutes and a second for each 64 KiB":
        """api/test_batches.py test_a_file_must_be_read_in_time""",
        "a key has 1,000 files, those that its batches have written included, and uploads a file or creates a batch":
        """api/test_batches.py test_lists_count_until_they_are_read_and_files_of_batches_count_among_a_keys_files""",
        "all of `--max-connections` are in use":
        """api/test_silent_connections.py test_with_too_many_connections_the_one_that_is_idle_for_longest_goes
            test_a_key_that_uploads_on_all_connections_leaves_room_for_others
            test_a_connection_whose_first_request_is_not_read_yet_is_not_closed_for_the_next_one""",
    },
    "Requests that cannot be answered": {
        "prompt and `max_tokens` exceed the context": "api/test_errors.py test_context_length_says_by_how_much",
        "a prompt takes more than 5 s of CPU time, or too much memory, to be read, rendered and tokenized":
        """api/test_expensive_prompts.py
            test_a_task_that_takes_too_long_or_too_much_ends_in_an_error_and_harms_no_other""",
        "a grammar or schema is nested too deep, or it, or a request's tools together, take more than 0.25 s of CPU"
        " time to compile (on a slow machine more: ten times what a schema of 500 properties takes there)":
        """api/test_expensive_prompts.py
            test_a_grammar_that_is_nested_too_deep_is_refused_whatever_the_limit_of_the_stack_is
            test_tools_that_take_too_long_are_not_tried_in_another_form
            test_checks_of_new_grammars_have_a_budget_of_cpu_time_for_each_key structured/test_grammar.py
            test_a_grammar_that_would_take_seconds_ends_a_child_process_alone""",
        "a grammar cannot be checked, as no process can be started":
        """structured/test_grammar.py test_a_fork_that_fails_leaves_no_file_open api/test_custom_tools.py
            test_a_grammar_that_cannot_be_checked_now_is_503""",
        "a grammar or schema allows nothing, or exceeds its limits while the answer is generated":
        """structured/test_grammar_masks.py
            test_a_grammar_that_allows_nothing_or_takes_too_much_is_the_requests_own_fault
            test_a_grammar_that_fails_gives_an_error_for_its_row_alone api/test_chat.py
            test_failures_of_a_whole_answer test_failures_in_a_stream_are_error_events""",
        "a request is not strict HTTP/1.1: another version than 1.1 or 1.0, folded headers, bare LF, two lengths, "
        "Content-Length beside Transfer-Encoding, a chunk size beyond 64 bits or none, a Host that is no name or "
        "address, or a target that begins with"
        " neither `/` nor `http://HOST`":
        """api/test_strict_http.py test_what_proxies_may_read_differently_is_400_and_ends_the_connection""",
        "a body has very many small chunks (more than 1,024 and more than one for each KiB), or a line of more than"
        " 64 KiB before a chunk":
        """api/test_strict_http.py test_what_proxies_may_read_differently_is_400_and_ends_the_connection
            test_a_chunk_extension_without_end_is_400_also_for_a_client_that_writes_on""",
        "a request has more than 100 headers or 32 KiB of them, or a query of more than 8 KiB":
        """api/test_streaming.py test_too_many_headers_are_refused test_a_query_of_very_many_fields_is_refused""",
    },
    "Clients and connections": {
        "a client disconnects":
        """api/test_streaming.py test_leaving_a_stream_aborts_it engine/test_loop.py
            test_blocks_of_a_client_that_left_are_back_within_two_steps api/test_bounded_logs.py
            test_an_answer_that_is_cut_off_is_logged_as_such""",
        "a client reads its answer so slowly that it has not finished 5 s after the request's timeout":
        """api/test_unread_answers.py
            test_a_client_that_reads_a_little_now_and_then_has_no_more_time_than_its_request""",
        "a connection sends no complete head within 10 s, or does not read for 30 s":
        """api/test_silent_connections.py test_a_head_has_to_come_in_time_also_on_a_connection_that_is_kept
            test_a_head_that_comes_byte_by_byte_gets_no_more_time api/test_unread_answers.py
            test_an_answer_that_is_not_read_is_dropped_and_counts_until_then api/test_streaming.py
            test_a_client_that_does_not_read_is_dropped""",
        "clients have sent more than 32 MiB that no request has read yet: bodies that are just arriving, or "
        "requests behind one that is not answered yet":
        """api/test_clients_that_leave.py
            test_input_that_no_request_has_read_is_bounded_for_all_connections_together""",
        "a client sends a request in more than 32 pieces of less than 1 KiB on average":
        """api/test_clients_that_leave.py test_a_request_in_very_many_small_pieces_is_read_with_pauses""",
        "a client opens connections that begin like a probe, and sends nothing more":
        """api/test_scrapes.py test_half_a_probe_is_a_connection_of_the_server
            test_a_plain_probe_does_not_wait_for_the_scrapes_and_odd_probes_before_it api/test_silent_connections.py
            test_a_head_has_to_come_in_time_also_on_a_connection_that_is_kept""",
        "a client closes its sending side (`shutdown(SHUT_WR)`, as `nc -N` does) after a complete request, or sends"
        " more than 64 KiB of further requests before it is answered":
        """api/test_clients_that_leave.py test_a_client_that_sends_nothing_more_gets_its_answers
            test_a_client_that_closed_its_connection_is_not_answered_forever
            test_a_client_that_leaves_is_noticed_although_its_further_requests_fill_what_is_read_ahead""",
    },
    "Shutting down": {
        "SIGTERM or SIGINT, to the server alone or to all of its processes":
        """api/test_lifecycle.py test_drain_lets_answers_finish_and_takes_no_new_ones
            test_what_does_not_finish_in_time_gets_an_error test_a_second_signal_ends_at_once
            test_a_signal_while_loading_ends_at_once api/test_internal_faults.py
            test_an_acceptor_that_ends_hands_over_what_waits_and_closes_the_rest api/test_replicas.py
            test_a_rollout_and_a_short_drain_lose_nothing api/test_expensive_prompts.py
            test_signals_that_let_a_server_drain_do_not_end_its_workers""",
        "a client reads its answer slowly during a shutdown":
        """api/test_lifecycle.py test_drain_waits_for_a_client_that_reads_slowly
            test_clients_that_do_not_read_leave_one_line_in_the_log_of_a_server_that_ends""",
        "SIGTERM while an adapter loads, or a file is uploaded":
        """api/test_lifecycle.py test_a_signal_while_an_adapter_loads_or_a_file_comes_ends_in_an_explicit_error""",
    },
    "Pods do not start": {
        "no node has the GPUs that a pod needs":
        """operator/test_summarize.py test_lack_of_a_gpu_is_distinguished_from_other_lacks
            test_lack_of_a_gpu_says_what_is_needed_what_nodes_have_and_what_helps
            cluster/test_llmservice_reconcile.py test_no_gpu_is_reported
            test_gpus_that_others_have_are_distinguished_from_gpus_that_no_node_has""",
        "a rolling update finds no room: GPU, CPU, memory, quota, volume":
        """operator/test_rollout.py
            test_a_surge_pod_without_a_gpu_blocks_and_is_looked_at_again_when_its_time_is_over
            test_whatever_a_surge_pod_waits_for_blocks_and_goes_in_place_where_that_helps
            test_a_surge_pod_that_may_not_be_made_blocks test_after_its_time_auto_goes_on_in_place
            test_no_pod_ends_for_a_new_one_on_a_cordoned_node
            cluster/test_unhappy_cluster.py test_a_rolling_update_for_which_a_quota_has_no_room_goes_on_in_place""",
        "replicas are added during a rollout, and there is no room for them":
        """operator/test_rollout.py
            test_it_does_not_say_that_it_goes_on_in_place_where_replicas_were_added_that_have_no_room""",
        "a rollout in place comes to a pod whose node is cordoned":
        """operator/test_rollout.py test_pods_on_cordoned_nodes_end_last
            test_a_rollout_in_place_does_not_end_the_last_old_pods_on_cordoned_nodes cluster/test_nodes.py
            test_a_rollout_in_place_ends_no_pod_on_a_cordoned_node""",
        "pods are refused by a quota, a LimitRange or an admission policy, or because a PriorityClass or "
        "RuntimeClass does not exist":
        """operator/test_summarize.py test_a_refusal_of_pods_says_what_helps test_pods_that_may_not_be_made
            operator/test_rollout.py test_pods_of_a_first_rollout_that_were_refused_are_tried_again
            cluster/test_unhappy_cluster.py test_a_mutating_policy_that_fails_is_named_until_it_is_repaired""",
        "a MutatingAdmissionPolicy that pods match fails, so that they are refused, for example because it writes a "
        "value in a type that the field does not have":
        """operator/test_summarize.py test_a_mutating_policy_that_fails_is_to_be_repaired
            cluster/test_unhappy_cluster.py test_a_mutating_policy_that_fails_is_named_until_it_is_repaired""",
        "a quota or a policy refuses the ReplicaSet of a revision (`count/replicasets.apps`)":
        """operator/test_summarize.py test_a_replica_set_that_may_not_be_made operator/test_rollout.py
            test_a_revision_whose_replica_set_is_refused_blocks_and_is_tried_again cluster/test_unhappy_cluster.py
            test_a_quota_on_replica_sets_and_a_scheduler_that_does_not_run_are_said""",
        "a Secret or ConfigMap that a pod needs does not exist":
        """operator/test_summarize.py test_a_failed_container_says_why test_a_missing_volume_is_named
            test_a_config_map_that_is_waited_for_is_named_too test_a_secret_that_a_download_lacks_is_named
            cluster/test_llmservice_reconcile.py test_a_missing_secret_is_reported cluster/test_unhappy_cluster.py
            test_what_is_missing_is_named_and_when_it_is_there_the_same_pod_serves""",
        "the image cannot be pulled":
        """operator/test_summarize.py test_a_failed_container_says_why operator/test_rollout.py
            test_a_new_pod_that_fails_at_each_start_holds_the_rollout_back cluster/test_llmservice_reconcile.py
            test_an_image_that_is_not_there_is_reported""",
        "the image is built for another CPU architecture than that of the node (`exec format error`)":
        """operator/test_summarize.py test_a_failed_container_says_why""",
        "a new pod keeps crashing: the model is not found (exit code 3) or does not fit (4), its flags are "
        "wrong (2), it crashes or is killed (137)":
        """operator/test_summarize.py test_phase_is_that_of_the_furthest_pod test_a_failed_container_says_why
            test_ready_is_not_taken_away_by_a_new_pod_that_fails
            test_the_last_message_is_the_engines_own_sentence_where_it_left_one operator/test_rollout.py
            test_a_new_pod_that_fails_at_each_start_holds_the_rollout_back cluster/test_llmservice_life.py
            test_an_engine_that_cannot_start_says_why""",
        "nodes refuse or evict one pod after another: the cache exceeds `spec.cache.size`, the node's disk or "
        "memory is full, a device is broken (`UnexpectedAdmissionError`, `OutOf…`)":
        """operator/test_stalled.py test_pods_that_fail_one_after_the_other_are_stalled
            test_a_pod_that_failed_once_is_no_fault test_a_rollout_whose_pods_fail_one_after_the_other_is_blocked
            test_of_thousands_of_failed_pods_few_are_looked_at_in_a_pass
            operator/test_metrics_api.py test_pods_that_ended_are_not_even_listed""",
        "the scheduler ends a pod to make room for one of a higher priority (preemption)":
        """operator/test_disruptions.py
            test_the_pod_for_which_another_was_ended_is_named_once_its_event_is_there
            test_the_status_says_it_until_another_pod_serves""",
        "pods are evicted again and again before they serve: a descheduler or a VerticalPodAutoscaler evicts them "
        "through the API, or their node has a taint":
        """operator/test_disruptions.py
            test_pods_that_are_evicted_again_and_again_before_they_serve_are_named
            test_pods_that_have_served_may_be_evicted""",
        "pods are deleted again and again before they serve":
        """operator/test_deleted_pods.py
            test_pods_that_are_deleted_again_and_again_are_reported_until_all_serve
            test_pods_that_say_themselves_why_they_end_do_not_count""",
        "a pod's claim does not exist, or has no volume (for example because its StorageClass does not exist)":
        """operator/test_summarize.py test_volumes_are_waited_for_by_every_pod_and_reported_only_where_it_lasts
            test_a_missing_volume_is_named test_a_claim_without_a_volume_is_waited_for_and_says_what_helps
            operator/test_stalled.py test_kstatus_judges_it_so cluster/test_unhappy_cluster.py
            test_what_is_missing_is_named_and_when_it_is_there_the_same_pod_serves""",
        "a pod's volume can be attached to one node only, and another node has it (Multi-Attach error)":
        """operator/test_summarize.py
            test_a_claim_that_a_pod_on_another_node_has_is_named_unless_both_may_have_it
            operator/test_kubectl.py test_an_event_comes_with_what_helps""",
        "Kubernetes is older than a feature that the spec uses (`model.source.image` before 1.35, "
        "`accelerator.claims` before 1.34), and its feature gate is off":
        """operator/test_summarize.py test_what_the_api_server_removes_from_pods_is_reported""",
        "no scheduler looks at a pod: kube-scheduler is down, or `podTemplate` names a scheduler that does not run":
        """operator/test_stalled.py test_a_pod_without_a_scheduler_says_which_one_is_meant
            test_kstatus_judges_it_so cluster/test_unhappy_cluster.py
            test_a_quota_on_replica_sets_and_a_scheduler_that_does_not_run_are_said""",
        "a node cannot start a pod: its network fails, or it does not have the runtime of the RuntimeClass":
        """operator/test_stalled.py test_a_pod_that_its_node_cannot_start_says_where_to_look
            test_kstatus_judges_it_so""",
        "a container that `podTemplate` or a webhook has added is not ready, or a readiness gate is not met":
        """operator/test_summarize.py test_a_pod_that_is_not_ready_though_its_engine_is_says_why
            test_a_native_sidecar_is_waited_for_only_until_it_has_started
            cluster/test_unhappy_cluster.py test_a_native_sidecar_that_is_not_ready_is_named_and_hides_no_phase""",
        "kube-controller-manager is down, hangs, or cannot act on the Deployment (for example because another "
        "client has added annotations of nearly 256 KiB)":
        """operator/test_stalled.py test_a_deployment_that_its_controller_does_not_look_at
            operator/test_reconciler.py
            test_what_no_controller_acts_on_is_reported_once_it_lasts_and_no_longer_when_one_does""",
    },
    "Nodes, volumes and other objects": {
        "a node does not answer (NotReady)":
        """operator/test_summarize.py test_a_pod_that_is_not_ready_though_its_engine_is_says_why
            test_a_lost_node_is_named_before_the_pod_that_finds_none operator/test_metrics_api.py
            test_only_pods_in_which_an_engine_runs_are_asked cluster/test_nodes.py
            test_a_lost_node_costs_a_replica_until_another_pod_takes_its_place""",
        "the volume of the cache's claim is deleted":
        """operator/test_summarize.py test_a_cache_whose_volume_is_gone_is_reported_before_its_pods_end
            cluster/test_llmservice_reconcile.py test_a_cache_whose_volume_was_deleted_is_reported""",
        "the cache's claim is to grow and its storage cannot":
        """operator/test_summarize.py test_a_cache_that_cannot_grow_is_reported_while_its_pods_serve""",
        "the cache's claim is deleted while pods use it":
        """operator/test_deletion.py test_what_kubernetes_itself_holds_is_not_to_lose_its_finalizer
            test_a_child_that_is_about_to_go_is_waited_for_and_reported_if_it_stays""",
        "the cache's claim is made larger by others, such as an administrator or an autoresizer":
        """operator/test_drift.py test_a_claim_that_others_have_enlarged_stays_as_large
            cluster/test_unhappy_cluster.py test_a_claim_that_another_client_enlarges_stays_as_large""",
        "a child object is changed or deleted by hand":
        """cluster/test_llmservice_reconcile.py test_drift_is_mended cluster/test_operator_drift.py
            test_what_is_changed_by_hand_is_changed_back test_what_is_deleted_by_hand_comes_again""",
        "a child object is deleted again and again":
        """operator/test_field_conflicts.py test_a_child_that_is_deleted_comes_again_but_not_all_the_time
            test_a_deployment_that_is_deleted_again_and_again_is_stalled
            operator/test_endpoints.py test_a_service_that_leads_to_no_ready_pod_is_not_ready""",
        "an object with the name of a child exists, and belongs to something else":
        """operator/test_names_of_others.py test_the_owner_of_a_taken_name_is_reported
            test_an_autoscaler_never_scales_a_deployment_of_another_owner
            test_no_pod_writes_to_a_claim_of_another_owner""",
        "another field manager keeps changing a field of a child object, or adds another field of the same mapping "
        "each time":
        """operator/test_field_conflicts.py test_drift_is_reverted_at_once_and_a_conflict_once_a_minute
            test_a_manager_that_adds_another_field_each_time_is_a_conflict_too
            test_a_contested_pod_template_is_reverted_less_and_less_often
            test_replicas_that_another_autoscaler_sets_are_changed_back_less_and_less_often
            test_the_replicas_of_an_autoscaler_that_was_deleted_are_changed_back_soon
            test_a_conflict_ends_with_an_autoscaler_that_is_deleted_before_it_changes_the_number_again
            cluster/test_unhappy_cluster.py
            test_replicas_hold_again_once_an_autoscaler_of_others_is_deleted""",
        "another client changes the pod template before each rollout has ended, such as its labels or annotations "
        "(`kubectl rollout restart` in a loop)":
        """operator/test_changed_templates.py
            test_a_template_that_changes_before_each_rollout_has_ended_is_reported_until_one_has
            test_a_client_that_sets_another_label_each_time_stalls_the_rollout""",
        "an admission webhook or policy changes the number of replicas":
        """operator/test_autoscaled_replicas.py
            test_replicas_that_admission_changes_are_reported_and_not_written_again""",
        "a quota of objects or of storage, or an admission policy, refuses a child object (`count/services`, "
        "`requests.storage`, `services.nodeports`)":
        """operator/test_reconciler.py test_a_refusal_is_reported_and_tried_again
            test_a_refused_child_stops_no_other operator/test_stalled.py test_kstatus_judges_it_so
            operator/test_summarize.py test_a_refusal_of_pods_says_what_helps""",
        "other clients' annotations of a child object leave no room for the operator's (256 KiB in all)":
        """operator/test_summarize.py test_annotations_that_leave_no_room_are_to_be_taken_off_what_has_them
            operator/test_reconciler.py test_a_refused_child_stops_no_other""",
        "the Service is changed so that it has no ready endpoint":
        """operator/test_endpoints.py test_a_service_that_leads_to_no_ready_pod_is_not_ready
            test_what_others_have_changed_in_the_service_is_named cluster/test_unhappy_cluster.py
            test_ready_is_what_a_client_reaches monitoring/test_operator_rules.py test_what_fires""",
        "a NetworkPolicy of the namespace, or a mesh's mutual TLS, keeps the operator from asking a model's pods":
        """operator/test_loading.py test_a_pod_that_serves_and_cannot_be_reached_is_named_until_it_answers
            operator/test_memory_fit.py test_a_pod_that_cannot_be_asked_is_named_where_its_answer_is_missing""",
        "a Service of type LoadBalancer gets no address, as where nothing in the cluster makes load balancers":
        """operator/test_reconciler.py test_a_load_balancer_that_gets_no_address_is_reported_once_it_lasts""",
        "an EndpointSlice of another manager (label `kubernetes.io/service-name`) sends a part of the Service's "
        "requests elsewhere":
        """operator/test_foreign_objects.py test_an_endpoint_slice_of_another_manager_that_leads_elsewhere_is_named
            test_the_conditions_name_them test_they_are_found_for_the_service_that_they_name_and_gone_when_they_are
            cluster/test_unhappy_cluster.py test_what_acts_for_a_service_without_being_part_of_it_is_named_and_stays""",
        "pods of another workload have all labels that the Service selects, as those of a copied Deployment do":
        """operator/test_foreign_objects.py
            test_pods_of_another_workload_with_all_labels_are_named_once_and_are_none_of_the_services
            test_they_are_found_for_the_service_that_they_name_and_gone_when_they_are test_the_conditions_name_them""",
        "a pod should have ended and is still there: its node is lost, or a finalizer holds it":
        """operator/test_stalled.py test_a_pod_that_should_have_ended_long_ago_is_named""",
        "another PodDisruptionBudget covers a model's pods beside the operator's own":
        """operator/test_foreign_objects.py test_a_budget_of_others_that_covers_a_pod_beside_its_own_is_named
            test_they_are_found_for_the_service_that_they_name_and_gone_when_they_are""",
        "a label of a model's pod is taken off or changed, so that the Deployment makes another pod":
        """operator/test_foreign_objects.py test_a_pod_that_left_its_deployment_is_named_with_what_to_do
            test_they_are_found_for_the_service_that_they_name_and_gone_when_they_are
            cluster/test_unhappy_cluster.py test_what_acts_for_a_service_without_being_part_of_it_is_named_and_stays""",
        "an admission policy or webhook takes such a label off each new pod, so that the ReplicaSet makes pods "
        "without end":
        """operator/test_foreign_objects.py
            test_many_pods_that_left_their_deployment_are_one_problem_and_what_changes_labels_is_to_be_found""",
        "the Service is created again by another client without an address (`clusterIP: None`), or gets fields of a "
        "load balancer, `internalTrafficPolicy: Local`, or the label `service.kubernetes.io/service-proxy-name`":
        """operator/test_drift.py test_a_service_that_another_client_has_made_headless_is_made_anew
            test_harmless_fields_that_others_add_to_a_service_stay
            operator/test_added_fields.py
            test_a_label_by_which_kube_proxy_ignores_the_service_is_added_and_other_labels_are_not""",
        "a child object is being deleted and a finalizer holds it":
        """operator/test_deletion.py test_a_child_that_is_about_to_go_is_waited_for_and_reported_if_it_stays""",
        "an LLMService is deleted, and a finalizer of another program holds it":
        """operator/test_deletion.py test_a_service_that_anothers_finalizer_holds_is_reported_as_it_is
            cluster/test_unhappy_cluster.py test_an_llmservice_that_anothers_finalizer_holds_says_so""",
        "an LLMService is deleted with `--cascade=foreground`, and a finalizer of a child or pod holds it":
        """operator/test_deletion.py
            test_a_finalizer_of_a_child_that_holds_a_deletion_in_the_foreground_is_reported_once_it_lasts""",
    },
    "Autoscaling": {
        "the metrics API is down, or a pod that has or accepts requests reports no load for 30 s":
        """operator/test_autoscaling.py test_a_metrics_api_that_is_down_is_reported_in_its_own_words
            operator/test_direct_scaling.py test_without_a_load_it_holds_and_says_why operator/test_metrics_api.py
            test_a_pod_that_falls_silent_counts_as_before_for_a_while_and_then_there_is_no_number
            test_a_pod_that_falls_silent_with_requests_is_overloaded_and_not_idle
            cluster/test_llmservice_autoscaling.py
            test_without_a_pod_that_reports_its_load_the_message_says_that_replicas_are_held""",
        "another autoscaler, such as a user's HorizontalPodAutoscaler, scales the Deployment too":
        """operator/test_autoscaling.py test_of_several_autoscalers_one_is_to_be_kept
            operator/test_direct_scaling.py test_the_operator_backs_off_while_another_client_scales_and_reports_it
            test_when_the_autoscaler_that_interfered_is_deleted_the_operator_scales_again_at_once""",
    },
    "The operator and the control plane": {
        "the operator is down":
        """cluster/test_llmservice_reconcile.py test_deletion_needs_no_operator cluster/test_llmservice_upgrade.py
            test_a_model_answers_while_the_chart_comes_and_goes""",
        "the leading operator dies or hangs":
        """cluster/test_operator_ha.py test_a_leader_that_is_killed_is_followed_by_another
            test_a_leader_that_hangs_is_followed_and_ends_without_another_write""",
        "each answer of the API server takes seconds (seen with 2 to 5 s)":
        """operator/test_lease.py test_a_replica_leads_and_keeps_leading_where_each_answer_takes_seconds""",
        "the API server is unreachable, or refuses all writes, as where etcd is full":
        """operator/test_lease.py test_a_leader_that_cannot_renew_stops_before_another_may_lead
            test_who_gets_no_answer_stops_in_time test_a_follower_says_once_what_keeps_it_from_the_lease""",
        "objects are deleted while the API server restarts, so that no watch reports it":
        """operator/test_reopening.py test_what_is_deleted_while_no_watch_is_open_is_noticed_at_the_next_list
            operator/test_resync.py test_what_the_watches_missed""",
        "a proxy or webhook answers requests for one object with 429 or 503, and a long `Retry-After`":
        """operator/test_limiter.py
            test_who_asks_for_a_day_holds_back_its_own_request_for_a_minute_and_others_for_a_moment
            test_a_request_that_is_refused_again_while_others_are_answered_holds_back_no_other
            test_a_request_that_is_held_back_is_not_sent_and_keeps_no_worker""",
        "events of a watch are lost on their way, as by a proxy, or a watch stops without an error":
        """operator/test_resync.py
            test_an_llmservice_whose_event_was_lost_is_found_at_the_next_look_at_llmservices
            test_a_change_of_another_kind_is_found_the_sooner_the_fewer_objects_there_are
            operator/test_reopening.py
            test_watches_that_have_missed_a_new_llmservice_are_opened_again_in_the_same_process""",
        "a status keeps changing, as where a node is ready and not ready in turns":
        """operator/test_status_writes.py
            test_a_status_that_keeps_changing_is_written_every_10_s_and_of_a_new_spec_at_once""",
        "the operator lacks a right: to a kind, verb or subresource":
        """operator/test_rights.py test_every_refused_right_is_named
            test_a_refusal_of_a_right_says_which_rule_gives_it
            test_a_missing_right_that_a_service_does_not_need_does_not_degrade_it cluster/test_lost_namespace.py
            test_a_missing_right_stops_nothing_else_and_is_named monitoring/test_operator_rules.py test_what_fires""",
        "the operator's ServiceAccount is deleted, also if it is created again":
        """operator/test_limiter.py test_credentials_that_are_not_accepted_are_said
            monitoring/test_operator_rules.py test_what_fires""",
        "a watched namespace cannot be read (deleted, with its Role)":
        """operator/test_lost_namespace.py test_a_namespace_that_cannot_be_read_does_not_stop_the_others
            test_what_cannot_be_read_is_a_metric cluster/test_lost_namespace.py
            test_a_lost_namespace_stops_nothing_in_the_others monitoring/test_operator_rules.py test_what_fires""",
        "a namespace is being deleted, and something holds it, such as a finalizer or a policy that denies deletions":
        """operator/test_reconciler.py
            test_a_namespace_that_is_being_deleted_is_reported_and_nothing_is_tried_again operator/test_rights.py
            test_only_the_api_servers_own_cause_says_that_a_namespace_is_being_deleted""",
        "objects of another project's kind cannot be listed, for example ServiceMonitors whose CRD has a conversion"
        " webhook that does not answer":
        """operator/test_lost_namespace.py test_a_foreign_kind_that_always_fails_stops_nothing
            test_a_foreign_kind_whose_list_fails_for_a_later_object_is_not_watched""",
        "LLMServices cannot be listed, for example since the webhook that converts them between versions does not "
        "answer":
        """operator/test_operator_metrics.py test_healthz_says_what_cannot_be_listed_though_the_first_object_can
            operator/test_resync.py
            test_a_kind_that_cannot_be_listed_is_reported_once_it_lasts_and_others_are_compared
            monitoring/test_operator_rules.py test_what_fires""",
        "an admission webhook does not answer":
        """operator/test_reconciler.py test_a_failure_that_should_pass_and_lasts_is_reported
            operator/test_status_writes.py test_a_webhook_that_hangs_is_reported_after_the_first_pass_that_it_takes
            test_a_webhook_that_hangs_on_statuses_is_reported_by_an_event_within_half_a_minute
            test_a_new_service_is_made_where_a_webhook_hangs_on_statuses operator/test_queue.py
            test_a_namespace_in_which_nothing_answers_leaves_half_of_the_workers_to_the_others""",
        "an admission webhook changes the status at each write":
        """operator/test_status_writes.py test_a_status_that_a_webhook_changes_at_each_write_is_written_once""",
        "an admission webhook or policy adds a container to the pods, or a port to the Service":
        """cluster/test_operator_drift.py test_what_admission_adds_or_changes_is_no_conflict operator/test_drift.py
            test_what_admission_changes_is_tried_again_once_a_minute""",
        "an admission webhook or policy renames the engine's container in the pods":
        """operator/test_summarize.py test_an_engine_whose_container_admission_has_renamed_is_found_by_its_port""",
        "an admission webhook or policy changes the selector, the port or the label `octavo.dev/llmservice` of the "
        "Service, or the Deployment's replicas, image or nodeSelector":
        """operator/test_endpoints.py test_what_others_have_changed_in_the_service_is_named
            operator/test_autoscaled_replicas.py
            test_replicas_that_admission_changes_are_reported_and_not_written_again operator/test_drift.py
            test_what_admission_changes_is_tried_again_once_a_minute operator/test_summarize.py
            test_a_failed_container_says_why""",
        "an admission webhook or policy removes the owner of a child object, or the label "
        "`octavo.dev/llmservice` of one":
        """operator/test_drift.py test_what_admission_removes_from_a_child_is_said_while_it_does
            test_what_admission_changes_is_tried_again_once_a_minute""",
        "another client changes an LLMService or its objects many times a second":
        """operator/test_queue.py test_a_key_that_changes_without_end_takes_turns_at_its_pace""",
        "a second operator, with other settings, manages the same LLMServices":
        """operator/test_status_writes.py
            test_a_second_operator_that_sees_things_otherwise_begins_no_war_over_the_status
            operator/test_field_conflicts.py test_drift_is_reverted_at_once_and_a_conflict_once_a_minute
            test_another_operator_of_octavo_is_reported_as_such""",
        "a second operator, with the same settings, manages the same LLMServices":
        """operator/test_status_writes.py
            test_a_second_operator_that_sees_things_otherwise_begins_no_war_over_the_status
            monitoring/test_operator_rules.py test_what_fires""",
        "the CRD is deleted":
        """operator/test_reopening.py test_a_crd_that_is_deleted_is_waited_for_and_the_operator_goes_on
            operator/test_operator_metrics.py
            test_a_missing_crd_is_said_once_in_the_log_and_by_healthz_while_it_lasts cluster/test_unhappy_cluster.py
            test_a_crd_that_is_deleted_and_made_again_is_noticed_by_the_operator_as_it_runs""",
        "the CRD is older than the operator":
        """operator/test_status_writes.py test_a_crd_that_is_older_than_the_operator_stops_nothing
            cluster/test_unhappy_cluster.py test_a_crd_that_goes_back_changes_nothing_for_what_serves""",
        "the CRD has lost its subresource status, for example by an edit":
        """operator/test_status_writes.py test_a_crd_without_statuses_is_said_and_children_are_made
            cluster/test_unhappy_cluster.py test_a_crd_that_goes_back_changes_nothing_for_what_serves""",
        "an LLMService has a stored status that does not fit the schema, for example after the CRD was edited":
        """operator/test_status_writes.py test_a_status_that_another_schema_has_let_others_write_is_written_anew""",
        "etcd is restored from an older snapshot":
        """operator/test_rights.py test_a_history_that_has_gone_back_is_noticed""",
        "the clock of the operator's node is wrong":
        """operator/test_server_clock.py test_a_machine_whose_clock_is_wrong_goes_by_the_api_servers
            test_a_clock_that_is_set_right_is_believed_again""",
    },
}  # fmt: skip
"""For each section, the first cell of each row, with files below tests/ and functions in the file before them."""


def rows_of_page() -> list[str]:
    """Return the section and the first cell of each row."""
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, *lines = section.splitlines()
        table = [line for line in lines if line.startswith("| ")]
        found += [f"{title}: {line.split(' | ')[0].removeprefix('| ')}" for line in table[2:]]
    return found


def test_the_rows_are_those_of_the_page() -> None:
    assert [f"{section}: {row}" for section, rows in SHOWN.items() for row in rows] == rows_of_page()


def test_each_row_has_its_tests() -> None:
    for row, words in (each for rows in SHOWN.values() for each in rows.items()):
        file, named = "", 0
        for word in words.split():
            if word.endswith(".py"):
                file = word
            else:
                assert word.startswith("test_") and word in functions_of(file), f"{file} has no {word}, for: {row}"
                named += 1
        assert named, f"no test shows: {row}"
