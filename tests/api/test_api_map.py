"""Lists which test proves which promise of the API to its clients.

`TRAPS` are the sixteen places where servers of OpenAI's API have broken its clients; `CONTRACT` is what Octavo promises
besides. A test that is named here and does not exist fails; promises without a test elsewhere are tested below.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.server.openai.answers.content_logprobs import content_logprobs
from octavo_engine.text.logprobs import prompt_logprobs, text_logprobs
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.served import Served
from tests.named_tests import functions_of

TRAPS = {
    "1 order of chunks; no empty choices unless usage is asked for": """api/test_chat.py
        test_order_and_shape_of_chunks test_no_usage_and_no_empty_choices_unless_asked_for""",
    "2 the end in a chunk of its own, one for each choice": """api/test_chat.py
        test_order_and_shape_of_chunks test_several_choices_streamed""",
    "3 the same id, created, model on all chunks; usage as it goes": """api/test_chat.py
        test_order_and_shape_of_chunks api/test_known_fields.py test_a_stream_counts_as_it_goes_where_that_is_asked_for
        api/test_completions.py test_aliases api/test_adapters.py
        test_a_loaded_adapter_is_a_model_until_it_is_unloaded""",
    "4 reasons to end; a named call ends with stop": """api/test_tools.py test_calls_beside_content
        test_a_demanded_call_is_held_to_its_schema api/test_chat.py test_failures_of_a_whole_answer""",
    "5 deltas of calls: index, id and name once, exact JSON": """api/test_tools.py
        test_streamed_calls_are_the_same test_calls_alone_have_no_content""",
    "6 reasoning under both names, there and back": """api/test_tools.py
        test_reasoning_is_apart_from_content_and_its_tokens_are_counted api/test_messages_of_chats.py
        test_an_earlier_answer""",
    "7 errors in a stream, and their shape and codes elsewhere (an error is a stream's only end: no [DONE] follows)":
        """api/test_chat.py test_failures_in_a_stream_are_error_events api/test_errors.py test_bad_values_are_named
        test_codes_are_openais test_unknown_model test_context_length_says_by_how_much api/test_limits.py
        test_a_full_server_answers_503 api/test_key_limits.py test_a_key_out_of_requests_gets_the_time_to_come_back""",
    "8 stop strings over borders of tokens": """text/test_detokenizer.py
        test_every_cut_of_every_text_agrees_with_a_plain_search test_a_stop_within_the_first_min_tokens_does_not_count
        test_the_stop_string_complete_first_wins_and_ties_go_by_order api/test_chat.py
        test_stop_string_across_tokens_ends_and_aborts test_a_stop_token_is_shown_where_stops_are_to_be
        test_a_held_beginning_of_a_stop_string_is_flushed""",
    "9 characters over borders of tokens": """text/test_detokenizer.py test_random_ids_equal_decode
        test_broken_utf8_neither_blocks_nor_grows test_unfinished_character_is_flushed_at_the_end api/test_streaming.py
        test_a_thousand_streams_of_cut_characters_have_no_replacement_and_equal_the_text""",
    "10 log probabilities: shapes, bytes, the chosen token, no infinity": """api/test_chat.py test_logprobs
        test_logprobs_of_a_stream_are_complete_though_text_is_held_back api/test_completions.py
        test_logprobs_are_parallel_lists engine/test_sampler.py
        test_logprobs_are_the_models_own_and_hold_the_chosen_token api/test_api_map.py test_json_has_no_infinity""",
    "11 echo and scoring; prompts of every kind in order": """api/test_completions.py
        test_an_echo_is_scored_as_lm_eval_asks test_choices_are_ordered_by_prompt_and_each_prompt_counts_once
        test_prompts_of_every_kind test_echo_of_token_ids_and_of_a_stream""",
    "12 several choices: seeds, usage, bounds": """api/test_chat.py test_several_choices
        test_as_many_choices_as_openai_allows api/test_turns.py test_choices_fork_from_the_first_of_their_prompt
        test_usage_counts_a_prompt_and_what_was_cached_of_it_once""",
    "13 a client that leaves": """api/test_streaming.py test_leaving_a_stream_aborts_it
        test_leaving_before_a_whole_answer_aborts_it test_a_finished_answer_is_not_aborted""",
    "14 fields: two names of max_tokens, ignored ones, null, parts, roles": """api/test_chat.py
        test_max_tokens_in_both_spellings test_default_is_all_the_room_there_is test_what_other_clients_send_is_accepted
        test_parts_of_a_message_and_chat_template_kwargs test_the_prompt_is_the_rendered_template
        test_ignore_eos_and_null_means_absent api/test_tools.py test_the_prompt_has_tools_calls_and_results""",
    "15 headers of streams, comments, request ids": """api/test_streaming.py test_headers_of_a_stream
        test_the_sdk_skips_comments api/test_errors.py test_request_id_is_echoed_when_it_is_one api/test_api_map.py
        test_two_requests_may_have_one_id""",
    "16 /v1/models: adapters too, and only when ready": """api/test_completions.py test_models
        api/test_adapters.py test_a_loaded_adapter_is_a_model_until_it_is_unloaded api/test_lifecycle.py
        test_while_loading_probes_and_metrics_answer""",
}  # fmt: skip

CONTRACT = {
    "every path but the open ones needs a key, judged by the raw path": """api/test_auth.py
        test_every_path_but_the_open_ones_needs_a_key test_the_host_header_opens_nothing test_no_header_opens_anything
        api/test_playground.py test_the_page_is_open_and_everything_else_still_needs_a_key""",
    "errors have one shape, whatever went wrong": """api/test_errors.py test_broken_bodies test_what_is_not_there
        test_what_does_not_act_yet_is_refused_not_ignored api/test_random_bodies.py
        test_no_body_is_an_internal_error api/test_methods.py test_a_method_that_a_path_does_not_take""",
    "413, 429 for a key, 503 for us, all with when to come back": """api/test_streaming.py
        test_body_limit_while_streaming_and_by_its_length api/test_key_limits.py
        test_answers_say_what_is_left_of_a_keys_limits api/test_limits.py test_a_key_that_fills_its_share_gets_429
        api/test_lifecycle.py test_drain_lets_answers_finish_and_takes_no_new_ones""",
    "the fields beside OpenAI's act, or are refused by name": """api/test_chat.py
        test_sampling_parameters_reach_the_engine api/test_known_fields.py
        test_what_would_change_the_answer_is_refused_by_name test_tokens_and_words_that_are_allowed_or_not
        api/test_token_ids.py test_a_chat_has_the_tokens_of_its_prompt_and_its_choices api/test_turns.py
        test_a_priority_that_would_not_act_is_refused api/test_deadlines.py
        test_the_smallest_timeout_counts api/test_structured_outputs.py
        test_each_way_to_ask_is_one_grammar structured/test_grammar.py
        test_formats_are_exact_wherever_they_stand""",
    "embeddings, scores, ranks, responses, messages, batches": """api/test_pooling.py
        test_inputs_of_every_kind_by_the_sdk test_documents_are_ranked api/test_responses.py
        test_the_events_of_a_stream test_what_is_refused_is_named api/test_messages.py test_the_events_of_a_stream
        test_what_is_wrong_is_reported_in_anthropics_shape api/test_batches.py
        test_a_batch_is_answered_in_the_lowest_class test_a_restart_repeats_nothing_and_loses_nothing""",
    "adapters are loaded and unloaded; 404 and 400": """api/test_adapters.py
        test_a_load_that_cannot_be_is_refused_and_harms_no_other test_a_server_without_enable_lora_says_so""",
    "metrics from the start, with the promised names and closed labels": """api/test_lifecycle.py
        test_metrics_exist_from_the_start_and_their_labels_are_closed test_vllm_names_can_be_left_out
        test_metrics_count_what_happened""",
    "exit codes": "engine/test_exit_codes.py",
}


@pytest.mark.parametrize("promise", [*TRAPS, *CONTRACT])
def test_each_promise_has_its_tests(promise: str) -> None:
    known: frozenset[str] = frozenset()
    for word in (TRAPS | CONTRACT)[promise].split():
        if word.endswith(".py"):
            known = functions_of(word)
        else:
            assert word in known


def test_json_has_no_infinity(tokenizer: Tokenizer) -> None:
    impossible = TokenLogprobs(5, -math.inf, 1000, ((5, -math.inf), (6, -0.5)))
    assert text_logprobs([impossible], tokenizer).token_logprobs == [-9999.0]
    [content] = content_logprobs([impossible], tokenizer)
    assert [content.logprob, *(top.logprob for top in content.top_logprobs)] == [-9999.0, -9999.0, -0.5]
    of_prompt = prompt_logprobs([impossible], tokenizer, 2)[1]
    assert of_prompt is not None and of_prompt["5"].logprob == -9999.0


def test_two_requests_may_have_one_id(server: Served) -> None:
    server.play("one two", gap=0.05)
    with ThreadPoolExecutor(2) as pool:
        asked = {"prompt": "x"}, {"prompt": "y", "stop": " two"}
        answers = [
            pool.submit(server.http.post, "/v1/completions", json=body, headers={"X-Request-Id": "same"})
            for body in asked
        ]
        found = [answer.result() for answer in answers]
    assert [answer.json()["choices"][0]["text"] for answer in found] == ["one two", "one"]
    assert {answer.headers["x-request-id"] for answer in found} == {"same"}
    assert len({request.request_id for request in server.engine.requests}) == 2
