//! What the five documents promise, promise by promise, and the test that fails when one is broken. The forms for agents
//! and capabilities (registry.27) are left out: those are files.

use std::fs;

/// `document.number promise: tests`. What begins with `web/` is tried in Chromium (`make test-web`).
const PROMISES: &str = "
holaos.1  servers have type, url, enabled, timeout_ms and headers: documents::live::holaos::a_holaos_workspace_narrows_one_server_leaves_the_other_and_reaches_no_third
holaos.2  tool_ids narrow a server: documents::live::holaos::a_holaos_workspace_narrows_one_server_leaves_the_other_and_reaches_no_third
holaos.3  a header is a literal or {env:NAME}: documents::live::holaos::a_holaos_workspace_narrows_one_server_leaves_the_other_and_reaches_no_third
holaos.4  a key in placeholder syntax is an error before the run: documents::holaos::a_literal_key_in_placeholder_syntax_is_refused
holaos.5  other servers stay as they are, mixed in one run: documents::live::holaos::a_local_server_has_its_variables_and_no_more_time_than_its_timeout
holaos.6  no list and an empty list allow all: documents::holaos::without_an_allowlist_every_discovered_tool_is_there documents::holaos::an_empty_allowlist_has_the_same_meaning
holaos.7  {env:NAME} in headers and environment, unset is an error: documents::live::holaos::a_local_server_has_its_variables_and_no_more_time_than_its_timeout packs::holaos::placeholders_resolve_or_are_refused packs::holaos::variables_of_a_child_are_resolved_and_its_command_is_not
holaos.8  a server that is not enabled takes no part: documents::live::holaos::a_holaos_workspace_narrows_one_server_leaves_the_other_and_reaches_no_third
holaos.9  the workspace's own server is not run: packs::holaos::h25_the_workspaces_own_code_is_not_run_and_its_ids_are_kept
holaos.10 the prompt names servers and tools: documents::live::holaos::a_holaos_workspace_narrows_one_server_leaves_the_other_and_reaches_no_third
holaos.11 the list is the boundary, not the prompt: mcp_product::obstacles::a_tool_outside_the_allowlist_is_refused_by_name_before_anything_is_sent
holaos.12 an edit counts from the next run: documents::live::holaos::an_edit_counts_from_the_next_run_and_a_call_under_way_ends_normally
holaos.13 a new workspace has no servers: documents::live::holaos::a_workspace_without_servers_is_an_agent_that_answers
holaos.14 timeout_ms bounds a silent local server: documents::live::holaos::a_local_server_has_its_variables_and_no_more_time_than_its_timeout

aos.1  registries, flat and aos/mcp/v1, in sub-folders: packs::aos::a1_a_file_is_one_server_or_a_registry_of_several packs::aos::a2_files_are_found_in_folders_and_sorted
aos.2  a child has a command, arguments without a shell, variables: documents::live::aos::a_child_gets_its_arguments_without_a_shell_and_its_own_variables_alone
aos.3  auth_ref is a bearer token: documents::live::aos::a_skill_is_one_call_with_a_bearer_token_and_no_model_whoever_asks_for_it
aos.4  tool_allowlist at the list and at the call: mcp_product::obstacles::a_tool_outside_the_allowlist_is_refused_by_name_before_anything_is_sent
aos.5  two servers in one file name the files to write: documents::aos::two_servers_in_one_file_are_named_with_the_two_files_to_write
aos.6  mcp_binding calls the tool with the input: documents::live::aos::a_skill_is_one_call_with_a_bearer_token_and_no_model_whoever_asks_for_it skills::rest::arguments_and_free_text_reach_the_tool_as_the_document_says
aos.7  without a model: documents::live::aos::a_skill_is_one_call_with_a_bearer_token_and_no_model_whoever_asks_for_it
aos.8  over A2A 1.0 and 0.3: documents::live::aos::a_skill_is_one_call_with_a_bearer_token_and_no_model_whoever_asks_for_it
aos.9  A2A without a skill and without a model: a2a::messages::an_agent_without_a_model_answers_for_its_skills_only
aos.10 Streamable HTTP, the version after the handshake: mcp_http::sessions::the_negotiated_revision_and_the_session_ride_on_every_request_after_the_first mcp_http::answers::an_answer_is_read_however_its_http_is_written
aos.11 a redirect keeps no credential and is judged: egress::redirects::no_credential_crosses_to_another_origin egress::redirects::five_redirects_are_followed_and_a_sixth_is_not egress::redirects::each_hop_passes_the_gate_again mcp_http::sessions::a_call_follows_no_redirect_and_the_next_one_begins_with_a_handshake
aos.12 private, loopback and internal addresses: egress::verdicts::every_url_of_the_table_gets_its_verdict egress::verdicts::an_allowlist_entry_opens_its_host_and_nothing_else
aos.13 judged again when the name is resolved: egress::one_private_address_among_public_ones_refuses_the_name egress::the_address_that_was_judged_is_the_one_that_is_dialled
aos.14 answers are capped in bytes and time: egress::a_body_is_capped_by_what_it_announces egress::a_body_is_capped_by_what_is_read egress::one_deadline_covers_the_body
aos.15 errors in the words of the original: packs::aos::a3_what_is_wrong_is_said_in_the_words_of_the_original

agent-pack.1  the anatomy, variables, headers on every request: documents::agent_pack::the_agent_pack_anatomy_loads_when_the_alternatives_are_chosen documents::live::agent_pack::everybody_shares_one_connection_and_the_first_turn_after_a_restart_has_its_tools
agent-pack.2  published packs load and work: documents::published_packs::a_published_pack_loads_and_each_section_without_effect_is_named_once documents::published_packs::a_published_pack_works_in_its_languages_with_address_token_and_model_from_variables
agent-pack.3  streamable-http, sse, stdio: mcp_product::transports::servers_over_events_and_over_a_socket_are_called_from_every_format_that_names_them mcp_stdio::a_published_server_of_the_older_era_answers
agent-pack.4  an admin-controlled server is one connection, made at the start: documents::live::agent_pack::everybody_shares_one_connection_and_the_first_turn_after_a_restart_has_its_tools
agent-pack.5  a menu of servers, connected or not: personal::chat::a_user_connects_a_server_step_by_step
agent-pack.6  prompts in the user's language: documents::published_packs::a_published_pack_works_in_its_languages_with_address_token_and_model_from_variables
agent-pack.7  AES-256-GCM in Postgres: vault::golden::what_is_sealed_opens_for_a_reader_written_from_the_specification personal::canary::a_secret_is_in_no_message_model_request_result_or_row
agent-pack.8  what is entered is tested, and kept only if it is good: personal::judged::a_wrong_token_is_refused_although_the_handshake_is_open_and_the_list_is_known personal::rest::a_token_that_the_server_refuses_is_not_kept
agent-pack.9  the tools are there at once, in the same chat: personal::chat::a_user_connects_a_server_step_by_step
agent-pack.10 no tools before; the first user's list serves the next: personal::rest::without_a_credential_a_personal_server_has_no_tools personal::rest::the_test_of_a_second_user_leaves_a_shared_catalog_as_it_is
agent-pack.11 kept over a restart: personal::rest::credentials_and_catalogs_outlive_a_restart
agent-pack.12 a personal server with the operator's token: personal::judged::the_operators_headers_discover_a_personal_server_and_go_with_no_users_call personal::judged::without_the_operators_variable_a_personal_server_waits_for_its_first_user packs::fields::without_its_variable_the_operators_header_is_a_warning
agent-pack.13 a secret is nowhere: personal::canary::a_secret_is_in_nothing_that_the_program_writes_even_at_trace
agent-pack.14 keys are rotated: keys::rotation::rotation_loses_nothing
agent-pack.15 public, none, all, roles: documents::agent_pack::the_legacy_access_model_loads documents::agent_pack::the_role_based_access_model_loads policy::every_combination_of_a_small_world_agrees_with_the_oracle
agent-pack.16 adminUsers, by a verified address only: admin::sources::an_address_makes_an_admin_only_where_it_is_verified
agent-pack.17 rolesAttribute as text, CSV, JSON text, array: documents::live::agent_pack::a_claim_names_roles_as_a_text_a_list_or_a_list_in_a_text
agent-pack.18 a denied tool is not offered and not called: turn::calls::each_user_is_offered_their_own_tools_and_told_of_no_other turn::calls::a_guest_who_asks_for_a_tool_by_name_changes_nothing
agent-pack.19 a request waits, and expires: approvals::deciding::from_its_expiry_on_nobody_can_approve_it_and_everybody_is_told documents::live::agent_pack::a_request_says_how_long_it_waits_as_its_policy_does
agent-pack.20 both roles approve themselves: approvals::asking::who_holds_an_approver_role_is_executed_at_once_and_recorded_as_self_approved
agent-pack.21 approvers have news and a badge, and decide: approvals::entry_points::approvers_and_requester_hear_of_it_here_and_on_another_replica approvals::entry_points::the_menu_counts_what_waits_for_whom approvals::entry_points::the_queue_is_worked_with_text_alone
agent-pack.22 the result is a message: approvals::deciding::an_approved_call_is_made_once_and_the_conversation_goes_on_by_itself
agent-pack.23 a request outlives a restart: approvals::executing::a_restart_between_decision_and_execution_loses_nothing
agent-pack.24 the model is told the tools by server: documents::live::holaos::a_holaos_workspace_narrows_one_server_leaves_the_other_and_reaches_no_third turn::calls::a_call_that_needs_approval_is_put_off_in_clear_words
agent-pack.25 why a tool is not shown: personal::visibility::explain_names_the_reason_of_each_tool_and_none_for_what_is_listed api::keeping::an_admin_learns_why_somebody_lacks_a_tool
agent-pack.26 a refused token is told, the user's and the operator's: personal::rest::a_revoked_token_takes_its_tools_away_and_its_user_is_told_once mcp_product::trouble::the_model_and_a_direct_call_hear_that_a_server_refuses_its_credential
agent-pack.27 a flow that ends in a warning: personal::chat::a_wrong_token_is_answered_with_the_reason_and_the_old_one_stays packs::broken::every_broken_pack_is_told_what_is_wrong_and_what_to_write
agent-pack.28 without a key the start is refused with what to do: keys::start::a_pack_with_a_personal_server_needs_a_ring
agent-pack.29 smoke: personal::smoke::a_token_that_is_entered_shows_what_each_role_sees_with_it mcp_product::smoke::names_that_fit_no_tool_are_named_wherever_the_pack_has_them
agent-pack.30 MCP_SERVERS_CONFIG: documents::live::agent_pack::mcp_servers_config_replaces_the_servers_of_the_pack_that_it_names packs::overlay::an_array_replaces_the_servers_of_every_pack packs::overlay::bad_json_refuses_the_start_and_is_not_quoted
agent-pack.31 a client that keeps what is typed gets a page: personal::link::a_client_that_keeps_what_is_typed_gets_a_page personal::link::a_link_works_once
agent-pack.32 the web client: web/test/people.test.mjs web/test/connect.test.mjs

registry.1  five routes: registry::api::an_entry_is_created_read_listed_updated_and_deleted registry::api::an_entry_in_use_is_not_deleted_and_its_users_are_named registry::api::another_tenant_sees_none_of_it documents::live::registry::what_a_reader_of_an_entry_gets_may_be_written_back
registry.2  every printed entry is accepted: documents::registry::entries_are_taken_as_they_stand
registry.3  what a schema says of a key: registry::api::an_entry_is_created_read_listed_updated_and_deleted registry::api::what_cannot_be_an_entry_is_refused_with_its_field
registry.4  examples 1 to 4: runs::document::example_1_the_model_has_the_tools_and_a_guest_of_the_agent_has_none runs::document::example_2_atlassian_is_told_its_key_and_projects_and_the_model_is_not runs::document::example_3_a_child_has_the_scope_in_every_mode_and_so_has_its_own_child runs::document::example_4_three_agents_share_a_server_and_see_their_own_part_of_it
registry.5  the last level wins, null removes: documents::live::registry::the_last_level_wins_and_each_run_brings_its_own_values registry::reached::the_view_says_where_each_value_is_from
registry.6  the chain ends in headers: documents::live::registry::the_last_level_wins_and_each_run_brings_its_own_values
registry.7  a missing required value is 400: runs::registry::a_run_without_a_required_value_is_the_documents_400_and_nothing_is_created
registry.8  a missing optional value is left out: registry::document::a_missing_optional_value_leaves_its_key_out
registry.9  sources by level: registry::packs::mistakes_are_named_with_file_line_and_remedy registry::values::internal_keys_are_filled_by_the_program
registry.10 types become headers: documents::live::registry::the_last_level_wins_and_each_run_brings_its_own_values registry::values::types_are_checked_when_a_run_knows_the_values
registry.11 an entry is reached over HTTP, never a command: registry::api::what_cannot_be_an_entry_is_refused_with_its_field
registry.12 the scope is invisible: runs::canary::what_only_servers_may_know_is_in_nothing_that_the_program_writes_even_at_trace
registry.13 the scope is not kept: documents::live::registry::the_last_level_wins_and_each_run_brings_its_own_values runs::scope::a_session_does_not_keep_the_scope_of_its_runs
registry.14 children inherit it, no model sets it: runs::registry::a_child_has_the_scope_of_its_parent_at_a_server_of_the_registry runs::scope::a_model_cannot_name_a_scope_for_its_child
registry.15 start_agent: runs::orchestrator::the_two_names_of_a_tool_are_one_tool_for_every_rule
registry.16 start_session and resume_session: runs::starting::the_documents_request_is_run_and_its_params_are_read_by_the_model runs::starting::a_session_is_gone_on_with_and_remembers
registry.17 async_callback: runs::callbacks::an_idle_session_is_resumed_when_its_child_ends runs::callbacks::a_program_names_the_session_that_is_told runs::starting::a_strangers_session_is_not_found_and_neither_is_nonsense
registry.18 params are checked and seen: runs::starting::what_cannot_be_run_is_refused_with_a_sentence_and_creates_nothing
registry.19 run_id and the orchestrator's address: registry::values::internal_keys_are_filled_by_the_program runs::orchestrator::an_agent_that_names_the_orchestrator_has_its_seven_tools
registry.20 secrets are masked, variables are granted: registry::sensitive::a_sensitive_value_is_masked_wherever_it_could_be_read registry::reached::a_tenants_server_is_sent_no_variable_that_was_not_granted
registry.21 client credentials, $secret, scope_schema: registry::tokens::a_token_is_asked_for_once_and_used_by_every_request registry::sensitive::secrets_are_written_and_only_their_names_are_read registry::limits::a_scope_schema_tells_whoever_starts_runs_what_to_give
registry.22 a scope is any object: runs::registry::a_run_without_a_required_value_is_the_documents_400_and_nothing_is_created
registry.23 the dashboard lists entries: web/test/admin.test.mjs
registry.24 a form to create and change: web/test/admin.test.mjs
registry.25 an editor of keys: web/test/admin.test.mjs
registry.26 a sensitive value is a password field: web/test/admin.test.mjs
registry.28 the levels of each value are shown: registry::reached::the_view_says_where_each_value_is_from web/test/admin.test.mjs
registry.29 what a run would have: runs::document::example_1_the_model_has_the_tools_and_a_guest_of_the_agent_has_none runs::document::example_4_three_agents_share_a_server_and_see_their_own_part_of_it
registry.30 entries as files: registry::reached::an_entry_beside_the_pack_is_the_operators_and_no_tenant_changes_it

holodeck.1  every snippet loads: documents::holodeck::the_schema_names_only_fields_that_exist documents::no_snippet_of_the_documents_is_forgotten
holodeck.2  npx, config, ${workspaceFolder}, MCP_CONFIG: documents::holodeck::example_1_files mcp_product::transports::an_agent_yaml_starts_a_package_with_npx_and_hands_it_its_configuration
holodeck.3  envFile: packs::holodeck::d6_an_env_file_stays_in_the_folder_and_env_wins packs::holodeck::d6_an_env_file_of_another_editor_is_read_like_any
holodeck.4  npx, uvx and docker alone, in the contract's sentences: packs::holodeck::d1_to_d4_the_sentences_of_the_contract
holodeck.5  sse, websocket, http: mcp_product::transports::servers_over_events_and_over_a_socket_are_called_from_every_format_that_names_them documents::live::holodeck::headers_go_with_every_request_and_a_session_ends_as_terminate_on_close_says
holodeck.6  headers with variables: documents::live::holodeck::headers_go_with_every_request_and_a_session_ends_as_terminate_on_close_says
holodeck.7  timeout: documents::live::holodeck::timeout_bounds_a_silent_port_and_request_timeout_a_slow_call
holodeck.8  sse_read_timeout: documents::live::holodeck::sse_read_timeout_of_holodeck_bounds_the_stream_that_answers_a_call
holodeck.9  request_timeout: documents::live::holodeck::timeout_bounds_a_silent_port_and_request_timeout_a_slow_call
holodeck.10 terminate_on_close: documents::live::holodeck::headers_go_with_every_request_and_a_session_ends_as_terminate_on_close_says
holodeck.11 load_tools: documents::live::holodeck::load_tools_and_load_prompts_of_holodeck_are_two_switches
holodeck.12 load_prompts: documents::live::holodeck::load_tools_and_load_prompts_of_holodeck_are_two_switches prompts::the_reference_servers_prompts_work
holodeck.13 encoding: documents::live::holodeck::a_child_of_npx_speaks_its_encoding_and_an_entry_without_a_command_runs_too mcp_stdio::text::text_survives_both_ways_in_every_encoding
holodeck.14 an entry without a command: documents::live::holodeck::a_child_of_npx_speaks_its_encoding_and_an_entry_without_a_command_runs_too documents::holodeck::a_legacy_entry_runs_by_npx_and_is_deprecated
holodeck.15 github, postgres, python, docker, cloud: documents::holodeck::example_2_github documents::holodeck::example_3_postgres documents::holodeck::example_4_python documents::holodeck::example_5_docker documents::holodeck::example_6_cloud
holodeck.16 unset variables, schemes, empty servers: packs::holodeck::d1_to_d4_the_sentences_of_the_contract packs::holodeck::d5_variables_are_replaced_in_every_text_and_must_be_set
holodeck.17 agents of the shipped product load: documents::holodeck::an_agent_of_the_shipped_product_loads_and_what_is_foreign_is_named documents::holodeck::each_provider_of_the_product_has_its_endpoint_and_its_key

all.1  check judges WebSocket addresses: packs::imported::check_judges_the_addresses_of_web_sockets_as_a_connection_would
all.2  a text under an unknown name is a warning: documents::published_packs::a_text_that_nobody_asks_for_is_said_with_the_nearest_name
all.3  bunx is among the commands: packs::imported::check_names_what_is_not_started_or_called_and_import_what_moves
all.4  a typed call says its result once: documents::live::agent_pack::a_typed_call_has_its_result_once_in_the_history_and_at_the_terminal openai::clients::what_a_typed_call_gives_is_shown_once api::keeping::what_a_server_says_is_the_servers_in_history_answers_and_export
all.5  a call that waits says so once, in the user's language: documents::live::agent_pack::a_skill_that_waits_for_consent_says_so_once_in_the_language_of_its_user approvals::entry_points::a_typed_call_that_waits_is_told_once_and_to_the_person
all.6  a child has the variables that the operator passes on: mcp_stdio::a_child_gets_the_variables_that_the_operator_passes_on_and_no_setting_of_ours
";

/// Whether the test is in the file of its module.
fn is_there(test: &str) -> bool {
    let Some((module, name)) = test.rsplit_once("::") else {
        return fs::exists(test).unwrap_or_default();
    };
    let file = format!("tests/it/{}.rs", module.replace("::", "/"));
    let text = fs::read_to_string(file).unwrap_or_default();
    text.contains(&format!("fn {name}() {{"))
}

#[test]
fn every_promise_has_a_test_that_is_there() {
    let lines = PROMISES.lines().filter(|line| !line.is_empty());
    let promises: Vec<_> = lines
        .map(|line| {
            line.rsplit_once(": ")
                .unwrap_or_else(|| panic!("no test: {line}"))
        })
        .collect();
    for (document, count) in [
        ("holaos", 14),
        ("aos", 15),
        ("agent-pack", 32),
        ("registry", 29),
        ("holodeck", 17),
    ] {
        let prefix = format!("{document}.");
        let of_it = promises
            .iter()
            .filter(|(promise, _)| promise.starts_with(&prefix));
        assert_eq!(of_it.count(), count, "{document}");
    }
    for (promise, tests) in promises {
        for test in tests.split(' ') {
            assert!(is_there(test), "{promise}: {test}");
        }
    }
}
