/* The one table of settings. A row is
 *   X(field, TYPE, "flag", "aliases", GROUP, "unit", "default", low, high, "choices", COMMANDS, "help")
 * and is all that a setting needs: the member of gm_settings, the flag, its check and its line in --help.
 *
 * TYPE: BOOL (also --no-flag), INT, HUMAN (an integer with a k/m/g/t or K/M/G/T suffix), FLOAT, STR, LIST (several words
 * or commas), JSON (one value, or dotted keys). A choice is a STR with "a|b|c". Bounds apply where low <= high. A default
 * of "" means none: 0, NULL. Words in `choices` of a number are accepted beside digits ("auto" is -1). */
#ifndef GM_BASE_OPTS_TABLE_H
#define GM_BASE_OPTS_TABLE_H

#define GM_OPT_TABLE(X)                                                                                                \
    /* model */                                                                                                        \
    X(model, STR, "model", "", MODEL, "folder", "", 1, 0, "", ANY, "checkpoint folder; also the first plain word")     \
    X(tokenizer, STR, "tokenizer", "", MODEL, "folder", "", 1, 0, "", RUN_BENCH,                                         \
      "where tokenizer.json is, if not in the checkpoint folder")                                                      \
    X(skip_tokenizer_init, BOOL, "skip-tokenizer-init", "", MODEL, "", "false", 1, 0, "", SERVE_BENCH,                       \
      "no tokenizer: prompts and answers are token ids only")                                                          \
    X(served_model_name, LIST, "served-model-name", "", MODEL, "names", "", 1, 0, "", SERVE_BENCH,                           \
      "names that requests may use; answers and metrics carry the first (default: MODEL)")                             \
    X(max_model_len, HUMAN, "max-model-len", "", MODEL, "tokens", "", -1, 1073741824, "auto", RUN,                     \
      "prompt and output of one request together; auto or -1: the most that fits the cache (default: the checkpoint's)") \
    X(dtype, STR, "dtype", "", MODEL, "", "auto", 1, 0, "auto|bfloat16|float32|float", RUN,                            \
      "precision of the model: what --kv-cache-dtype auto means (auto: bfloat16); CPUs compute in float32 either way") \
    X(activation_dtype, STR, "activation-dtype", "", MODEL, "", "auto", 1, 0, "auto|float32|bfloat16", RUN,            \
      "what enters matrix products; auto: float32; bfloat16 is faster with AVX-512 BF16 and less exact")               \
    X(load_format, STR, "load-format", "", MODEL, "", "auto", 1, 0, "auto|safetensors|dummy", RUN,                     \
      "dummy: random weights of the right shapes, only config.json and the tokenizer are read")                        \
    X(hf_overrides, JSON, "hf-overrides", "", MODEL, "JSON object", "", 1, 0, "", ALL, "merged into config.json")      \
    X(mla_norm_eps, FLOAT, "mla-norm-eps", "", MODEL, "", "", 0, 1, "", RUN,                                           \
      "epsilon of the norms of the latent query and key rows (default: rms_norm_eps; 1e-6 as in transformers for GLM-5.2)")                 \
    X(seed, INT, "seed", "", MODEL, "", "0", 1, 0, "", RUN_BENCH, "engine seed, for requests without one of their own")      \
    X(generation_config, STR, "generation-config", "", MODEL, "", "auto", 1, 0, "", RUN,                               \
      "default sampling values: auto (the checkpoint's generation_config.json), vllm (none), or a folder")             \
    X(override_generation_config, JSON, "override-generation-config", "", MODEL, "JSON object", "", 1, 0, "", RUN,     \
      "merged over the above; max_new_tokens here caps every request")                                                 \
    X(max_logprobs, INT, "max-logprobs", "", MODEL, "tokens", "20", -1, 1073741824, "", SERVE,                         \
      "most logprobs a request may ask for; -1: the whole vocabulary")                                                 \
    X(logprobs_mode, STR, "logprobs-mode", "", MODEL, "", "raw_logprobs", 1, 0, "raw_logprobs", SERVE,                 \
      "log-probabilities are those before penalties and temperature")                                                  \
    /* device */                                                                                                       \
    X(device, STR, "device", "", DEVICE, "", "cpu", 1, 0, "cpu", RUN, "where the model runs")                          \
    X(cpu_isa, STR, "cpu-isa", "", DEVICE, "", "auto", 1, 0, "auto|reference|avx2|avx512", RUN,                        \
      "instruction set of the CPU kernels; auto: the best this machine has")                                           \
    X(threads, INT, "threads", "", DEVICE, "threads", "0", 0, 4096, "", RUN,                                           \
      "worker threads of the device; 0: one for each processor we may use")                                            \
    /* parallel */                                                                                                     \
    X(tensor_parallel_size, INT, "tensor-parallel-size", "-tp", PARALLEL, "ranks", "1", 1, 65536, "", RUN,             \
      "ranks that share each layer; this version has 1")                                                                   \
    X(pipeline_parallel_size, INT, "pipeline-parallel-size", "-pp", PARALLEL, "stages", "1", 1, 65536, "", RUN,        \
      "groups of layers; this version has 1")                                                                              \
    X(data_parallel_size, INT, "data-parallel-size", "-dp", PARALLEL, "replicas", "1", 1, 65536, "", RUN,              \
      "schedulers with a cache of their own; this version has 1")                                                          \
    X(enable_expert_parallel, BOOL, "enable-expert-parallel", "-ep", PARALLEL, "", "false", 1, 0, "", RUN,             \
      "whole experts spread over the ranks; with one rank it changes nothing")                                         \
    /* scheduler */                                                                                                    \
    X(max_num_batched_tokens, HUMAN, "max-num-batched-tokens", "", SCHEDULER, "tokens", "", 1, 1073741824, "", RUN,    \
      "token budget of one step (default: 2048, at least max-num-seqs, at most what can ever be in a step)")           \
    X(max_num_seqs, INT, "max-num-seqs", "", SCHEDULER, "requests", "", 1, 65536, "", RUN,                             \
      "most requests running at once (default: 256, or as many as state slots fit)")                                   \
    X(long_prefill_token_threshold, HUMAN, "long-prefill-token-threshold", "", SCHEDULER, "tokens", "0", 0, 1073741824,\
      "", SERVE, "most new tokens of one request in one step while others wait; 0: no limit")                          \
    X(enable_chunked_prefill, BOOL, "enable-chunked-prefill", "", SCHEDULER, "", "true", 1, 0, "", SERVE,              \
      "a prompt may be cut over several steps")                                                                        \
    X(scheduling_policy, STR, "scheduling-policy", "", SCHEDULER, "", "fcfs", 1, 0, "fcfs|priority", SERVE,            \
      "order of waiting requests: first come, or lowest priority number first")                                        \
    X(scheduler_reserve_full_isl, BOOL, "scheduler-reserve-full-isl", "", SCHEDULER, "", "true", 1, 0, "", SERVE,      \
      "admit a request only when its whole prompt fits the free pages")                                                \
    X(watermark, FLOAT, "watermark", "", SCHEDULER, "share", "0.0", 0, 0.999, "", SERVE,                               \
      "share of the pages kept free when a request is admitted")                                                       \
    X(max_num_queued_reqs, INT, "max-num-queued-reqs", "", SCHEDULER, "requests", "-1", -1, 1073741824, "", SERVE,     \
      "waiting and running together; above it requests get 503; -1: no limit")                                         \
    X(max_num_queued_tokens, HUMAN, "max-num-queued-tokens", "", SCHEDULER, "tokens", "-1", -1, 1e15, "", SERVE,       \
      "prompt tokens of requests without a first token; above it requests get 503; -1: no limit")                      \
    X(stream_interval, INT, "stream-interval", "", SCHEDULER, "tokens", "1", 1, 1048576, "", SERVE,                    \
      "tokens for each streamed chunk; the first and last are never held back")                                        \
    /* cache */                                                                                                        \
    X(kv_cache_dtype, STR, "kv-cache-dtype", "", CACHE, "", "auto", 1, 0, "auto|bfloat16|float32|fp8|fp8_e4m3", RUN,   \
      "how cached rows are stored; auto: as --dtype")                                                                  \
    X(kv_cache_memory_bytes, HUMAN, "kv-cache-memory-bytes", "", CACHE, "bytes", "", 0, 1e15, "", RUN,                 \
      "size of the cache, pages and state slots together (CPU default: a quarter of the available memory, or what "    \
      "max-num-seqs requests of max-model-len need if that is less)")                                                  \
    X(num_gpu_blocks_override, INT, "num-gpu-blocks-override", "", CACHE, "pages", "", 1, 1073741824, "", RUN,         \
      "exactly so many pages")                                                                                         \
    X(gpu_memory_utilization, FLOAT, "gpu-memory-utilization", "", CACHE, "share", "0.92", 0.000001, 1, "", RUN,       \
      "share of a GPU's memory; on a CPU it has no effect (see --kv-cache-memory-bytes)")                              \
    X(block_size, INT, "block-size", "", CACHE, "tokens", "", 1, 65536, "", RUN,                                       \
      "tokens of a page; must be what the model's layout gives")                                                       \
    X(enable_prefix_caching, BOOL, "enable-prefix-caching", "", CACHE, "", "true", 1, 0, "", RUN,                      \
      "what a request computed is kept until its space is needed, and reused by prompts that begin alike")             \
    X(state_snapshot_slots, INT, "state-snapshot-slots", "", CACHE, "slots", "-1", -1, 1048576, "auto", RUN,           \
      "room for kept recurrent states beside the slots of max-num-seqs running requests, for models that have such a " \
      "state; auto or -1: as many again, within a quarter of the cache")                                               \
    X(state_snapshot_interval, HUMAN, "state-snapshot-interval", "", CACHE, "tokens", "1024", 0, 1073741824, "", RUN,  \
      "keep a recurrent state every so many tokens (whole pages), beside where prompts and turns end; 0: only there")  \
    /* frontend */                                                                                                     \
    X(host, STR, "host", "", FRONTEND, "address", "", 1, 0, "", SERVE_BENCH, "address to listen on (default: all), or to load (default: 127.0.0.1)")          \
    X(port, INT, "port", "", FRONTEND, "", "8000", 0, 65535, "", SERVE_BENCH, "TCP port; 0: one chosen by the system")       \
    X(uds, STR, "uds", "", FRONTEND, "path", "", 1, 0, "", SERVE, "listen on this Unix socket instead")                \
    X(api_key, LIST, "api-key", "", FRONTEND, "keys", "", 1, 0, "", SERVE,                                             \
      "keys, any of which opens all paths but /health, /ping, /version and /metrics")                                  \
    X(allowed_origins, JSON, "allowed-origins", "", FRONTEND, "JSON list", "[\"*\"]", 1, 0, "", SERVE, "CORS origins") \
    X(allowed_methods, JSON, "allowed-methods", "", FRONTEND, "JSON list", "[\"*\"]", 1, 0, "", SERVE, "CORS methods") \
    X(allowed_headers, JSON, "allowed-headers", "", FRONTEND, "JSON list", "[\"*\"]", 1, 0, "", SERVE, "CORS headers") \
    X(allow_credentials, BOOL, "allow-credentials", "", FRONTEND, "", "false", 1, 0, "", SERVE, "CORS credentials")    \
    X(ssl_keyfile, STR, "ssl-keyfile", "", FRONTEND, "path", "", 1, 0, "", SERVE, "TLS key (PEM), with --ssl-certfile") \
    X(ssl_certfile, STR, "ssl-certfile", "", FRONTEND, "path", "", 1, 0, "", SERVE, "TLS certificate chain (PEM)")     \
    X(root_path, STR, "root-path", "", FRONTEND, "prefix", "", 1, 0, "", SERVE, "removed from paths before routing")   \
    X(default_chat_template_kwargs, JSON, "default-chat-template-kwargs", "", FRONTEND, "JSON object", "", 1, 0, "",   \
      RUN, "merged under a request's chat_template_kwargs")                                                            \
    X(response_role, STR, "response-role", "", FRONTEND, "", "assistant", 1, 0, "", SERVE, "role of answers")          \
    X(special_tokens_in_text, BOOL, "special-tokens-in-text", "", FRONTEND, "", "false", 1, 0, "", RUN,                \
      "control tokens typed by users and tools act as such; off: they are ordinary text")                              \
    X(enable_auto_tool_choice, BOOL, "enable-auto-tool-choice", "", FRONTEND, "", "true", 1, 0, "", SERVE,             \
      "tool_choice auto is allowed; on by default here")                                                               \
    X(tool_call_parser, STR, "tool-call-parser", "", FRONTEND, "", "glm47", 1, 0, "", SERVE,                           \
      "glm45, glm47 (the same) or none; on by default when a tokenizer is loaded")                                     \
    X(reasoning_parser, STR, "reasoning-parser", "", FRONTEND, "", "glm45", 1, 0, "", SERVE,                           \
      "glm45, glm47 (the same) or none; on by default when a tokenizer is loaded")                                     \
    X(reasoning_field, STR, "reasoning-field", "", FRONTEND, "", "reasoning", 1, 0, "reasoning|both", SERVE,           \
      "both: also write reasoning_content, for older clients")                                                         \
    X(exclude_tools_when_tool_choice_none, BOOL, "exclude-tools-when-tool-choice-none", "", FRONTEND, "", "false", 1, 0,\
      "", SERVE, "with tool_choice none keep the tools out of the prompt")                                             \
    X(return_tokens_as_token_ids, BOOL, "return-tokens-as-token-ids", "", FRONTEND, "", "false", 1, 0, "", SERVE,      \
      "logprob tokens are written as token_id:N")                                                                      \
    X(clamp_max_tokens, BOOL, "clamp-max-tokens", "", FRONTEND, "", "false", 1, 0, "", SERVE,                          \
      "cut max_tokens to the rest of the context instead of refusing the request")                                     \
    X(enable_request_id_headers, BOOL, "enable-request-id-headers", "", FRONTEND, "", "false", 1, 0, "", SERVE,        \
      "send X-Request-Id back")                                                                                        \
    X(enable_prompt_tokens_details, BOOL, "enable-prompt-tokens-details", "", FRONTEND, "", "false", 1, 0, "", SERVE,  \
      "usage.prompt_tokens_details.cached_tokens")                                                                     \
    X(enable_force_include_usage, BOOL, "enable-force-include-usage", "", FRONTEND, "", "false", 1, 0, "", SERVE,      \
      "usage in every stream, at the end and in each chunk")                                                           \
    X(enable_server_load_tracking, BOOL, "enable-server-load-tracking", "", FRONTEND, "", "false", 1, 0, "", SERVE,    \
      "count requests for /load")                                                                                      \
    X(sse_keep_alive, FLOAT, "sse-keep-alive", "", FRONTEND, "seconds", "0", 0, 86400, "", SERVE,                      \
      "send a comment in silent streams this often; 0: never")                                                         \
    X(max_request_bytes, HUMAN, "max-request-bytes", "", FRONTEND, "bytes", "32M", 1024, 1e10, "", SERVE,              \
      "largest request body; above it 413")                                                                            \
    X(max_connections, INT, "max-connections", "", FRONTEND, "", "8192", 1, 1048576, "", SERVE, "most open connections") \
    X(health_step_timeout, FLOAT, "health-step-timeout", "", FRONTEND, "seconds", "30", 0, 1e6, "", SERVE,             \
      "/health answers 503 when no step ended for this long while there is work; 0: never")                            \
    X(shutdown_timeout, FLOAT, "shutdown-timeout", "", FRONTEND, "seconds", "0", 0, 1e6, "", SERVE,                    \
      "on SIGINT or SIGTERM let running requests finish for this long; a second signal ends at once")                  \
    /* logging */                                                                                                      \
    X(enable_log_requests, BOOL, "enable-log-requests", "", LOGGING, "", "false", 1, 0, "", SERVE, "one line a request") \
    X(disable_uvicorn_access_log, BOOL, "disable-uvicorn-access-log", "", LOGGING, "", "false", 1, 0, "", SERVE,       \
      "no line for each HTTP request")                                                                                 \
    X(disable_log_stats, BOOL, "disable-log-stats", "", LOGGING, "", "false", 1, 0, "", SERVE,                         \
      "no periodic line")                                                                                              \
    X(log_stats_interval, FLOAT, "log-stats-interval", "", LOGGING, "seconds", "10", 0.1, 86400, "", SERVE,            \
      "time between the periodic lines")                                                                               \
    X(uvicorn_log_level, STR, "uvicorn-log-level", "--log-level", LOGGING, "", "info", 1, 0,                           \
      "critical|error|warning|info|debug|trace", RUN, "least severe lines to show")                                    \
    /* chat */                                                                                                         \
    X(system, STR, "system", "", CHAT, "text", "", 1, 0, "", CHAT, "system message of the session")                    \
    X(prompt, STR, "prompt", "-p", CHAT, "text", "", 1, 0, "", CHAT, "ask this one question and leave")                \
    X(reasoning_effort, STR, "reasoning-effort", "", CHAT, "", "", 1, 0, "", CHAT, "passed to the template: low, high, max") \
    X(temperature, FLOAT, "temperature", "", CHAT, "", "", 0, 2, "", CHAT_BENCH, "0: greedy (default: the checkpoint's)")    \
    X(top_p, FLOAT, "top-p", "", CHAT, "", "", 0.000001, 1, "", CHAT_BENCH, "(default: the checkpoint's)")                   \
    X(max_tokens, HUMAN, "max-tokens", "", CHAT, "tokens", "", 1, 1073741824, "", CHAT,                                \
      "most tokens of one answer (default: the rest of the context)")                                                  \
    X(show_reasoning, BOOL, "show-reasoning", "", CHAT, "", "true", 1, 0, "", CHAT, "show the model's thoughts, dimmed") \
    /* bench */                                                                                                        \
    X(backend, STR, "backend", "--endpoint-type", BENCH, "", "openai", 1, 0, "openai|vllm|openai-chat", BENCH,         \
      "openai and vllm: completions; openai-chat: chat completions")                                                   \
    X(base_url, STR, "base-url", "", BENCH, "URL", "", 1, 0, "", BENCH, "server, instead of --host and --port; http or https") \
    X(endpoint, STR, "endpoint", "", BENCH, "path", "", 1, 0, "", BENCH,                                               \
      "(default: /v1/completions, or /v1/chat/completions with openai-chat)")                                          \
    X(insecure, BOOL, "insecure", "", BENCH, "", "false", 1, 0, "", BENCH, "take any TLS certificate")                 \
    X(header, LIST, "header", "", BENCH, "KEY=VALUE", "", 1, 0, "", BENCH, "headers of every request")                 \
    X(extra_body, JSON, "extra-body", "", BENCH, "JSON object", "", 1, 0, "", BENCH, "merged into every request's body") \
    X(request_id_prefix, STR, "request-id-prefix", "", BENCH, "text", "", 1, 0, "", BENCH,                             \
      "of x-request-id (default: bench-<8 hex digits>-)")                                                              \
    X(ready_check_timeout_sec, INT, "ready-check-timeout-sec", "", BENCH, "seconds", "0", 0, 1000000, "", BENCH,       \
      "first send one request, again every 5 s for this long until it is answered; 0: do not")                         \
    X(num_warmups, INT, "num-warmups", "", BENCH, "requests", "0", 0, 1000000, "", BENCH,                              \
      "requests before the clock starts; prompts of their own, the lengths of the measured ones")                      \
    X(num_prompts, INT, "num-prompts", "", BENCH, "requests", "1000", 1, 10000000, "", BENCH, "measured requests")     \
    X(max_concurrency, INT, "max-concurrency", "", BENCH, "requests", "", 1, 1000000, "", BENCH,                       \
      "most requests at the server at once (default: no limit)")                                                       \
    X(request_rate, STR, "request-rate", "", BENCH, "requests/s", "inf", 1, 0, "", BENCH, "inf: all at time 0")        \
    X(burstiness, STR, "burstiness", "", BENCH, "shape", "1.0", 1, 0, "", BENCH,                                       \
      "shape of the gamma distribution of the gaps; 1: Poisson, below 1 burstier, above 1 more even, inf: constant")   \
    X(ramp_up_strategy, STR, "ramp-up-strategy", "", BENCH, "", "", 1, 0, "linear|exponential", BENCH,                 \
      "the rate grows from --ramp-up-start-rps to --ramp-up-end-rps over the run")                                     \
    X(ramp_up_start_rps, INT, "ramp-up-start-rps", "", BENCH, "requests/s", "", 0, 1000000, "", BENCH, "rate of the first request") \
    X(ramp_up_end_rps, INT, "ramp-up-end-rps", "", BENCH, "requests/s", "", 0, 1000000, "", BENCH, "rate of the last request") \
    X(dataset_name, STR, "dataset-name", "", BENCH, "", "random", 1, 0, "random|sharegpt|custom|sonnet", BENCH,        \
      "where prompts come from")                                                                                       \
    X(dataset_path, STR, "dataset-path", "", BENCH, "file", "", 1, 0, "", BENCH, "of sharegpt, custom, sonnet")        \
    X(disable_shuffle, BOOL, "disable-shuffle", "", BENCH, "", "false", 1, 0, "", BENCH, "take the file's order")      \
    X(no_oversample, BOOL, "no-oversample", "", BENCH, "", "false", 1, 0, "", BENCH,                                   \
      "with too few samples send fewer requests, not some again")                                                      \
    X(skip_chat_template, BOOL, "skip-chat-template", "", BENCH, "", "false", 1, 0, "", BENCH,                         \
      "custom prompts are sent as they stand")                                                                         \
    X(input_len, INT, "input-len", "", BENCH, "tokens", "", 0, 100000000, "", BENCH, "of random and sonnet")           \
    X(output_len, INT, "output-len", "", BENCH, "tokens", "", -1, 100000000, "", BENCH, "of any data set")             \
    X(random_input_len, INT, "random-input-len", "", BENCH, "tokens", "1024", 0, 100000000, "", BENCH, "mean length of random prompts") \
    X(random_output_len, INT, "random-output-len", "", BENCH, "tokens", "128", 0, 100000000, "", BENCH, "mean length of their answers") \
    X(random_prefix_len, INT, "random-prefix-len", "", BENCH, "tokens", "0", 0, 100000000, "", BENCH,                  \
      "first tokens that all prompts share, beside the input length")                                                  \
    X(random_range_ratio, STR, "random-range-ratio", "", BENCH, "r", "0.0", 1, 0, "", BENCH,                           \
      "lengths are drawn from L(1-r) to L(1+r); or {\"input\": r, \"output\": r}")                                     \
    X(sharegpt_output_len, INT, "sharegpt-output-len", "", BENCH, "tokens", "", 1, 100000000, "", BENCH,               \
      "(default: as long as the recorded answer)")                                                                     \
    X(custom_output_len, INT, "custom-output-len", "", BENCH, "tokens", "256", -1, 100000000, "", BENCH,               \
      "-1: the file's output_tokens")                                                                                  \
    X(sonnet_input_len, INT, "sonnet-input-len", "", BENCH, "tokens", "550", 1, 100000000, "", BENCH, "longest sonnet prompt") \
    X(sonnet_output_len, INT, "sonnet-output-len", "", BENCH, "tokens", "150", 1, 100000000, "", BENCH, "length of sonnet answers") \
    X(sonnet_prefix_len, INT, "sonnet-prefix-len", "", BENCH, "tokens", "200", 0, 100000000, "", BENCH, "of it the lines that all share") \
    X(ignore_eos, BOOL, "ignore-eos", "", BENCH, "", "false", 1, 0, "", BENCH,                                         \
      "answers go on to the length asked for; always on with random")                                                  \
    X(top_k, INT, "top-k", "", BENCH, "", "", -1, 1073741824, "", BENCH, "into the body when given")                   \
    X(min_p, FLOAT, "min-p", "", BENCH, "", "", 0, 1, "", BENCH, "into the body when given")                           \
    X(frequency_penalty, FLOAT, "frequency-penalty", "", BENCH, "", "", -2, 2, "", BENCH, "into the body when given")  \
    X(presence_penalty, FLOAT, "presence-penalty", "", BENCH, "", "", -2, 2, "", BENCH, "into the body when given")    \
    X(repetition_penalty, FLOAT, "repetition-penalty", "", BENCH, "", "", 0, 1000, "", BENCH, "into the body when given") \
    X(logprobs, INT, "logprobs", "", BENCH, "tokens", "", 0, 1000000, "", BENCH, "into the body when given")           \
    X(use_beam_search, BOOL, "use-beam-search", "", BENCH, "", "false", 1, 0, "", BENCH, "into the body when given")   \
    X(percentile_metrics, STR, "percentile-metrics", "", BENCH, "list", "ttft,tpot,itl", 1, 0, "", BENCH,              \
      "figures to report: ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue")                      \
    X(metric_percentiles, STR, "metric-percentiles", "", BENCH, "list", "99", 1, 0, "", BENCH, "percentiles of each")  \
    X(goodput, LIST, "goodput", "", BENCH, "KEY:MS", "", 1, 0, "", BENCH,                                              \
      "limits that a good request keeps: ttft, tpot, e2el in milliseconds")                                            \
    X(save_result, BOOL, "save-result", "", BENCH, "", "false", 1, 0, "", BENCH, "write a JSON file")                  \
    X(append_result, BOOL, "append-result", "", BENCH, "", "false", 1, 0, "", BENCH, "add a line to the JSON file")    \
    X(save_detailed, BOOL, "save-detailed", "", BENCH, "", "false", 1, 0, "", BENCH, "with the figures and text of each request") \
    X(result_dir, STR, "result-dir", "", BENCH, "folder", "", 1, 0, "", BENCH, "of the JSON file; made if missing")    \
    X(result_filename, STR, "result-filename", "", BENCH, "name", "", 1, 0, "", BENCH,                                 \
      "(default: <label or backend>-<rate>qps[-concurrency<C>]-<model>-<date>.json)")                                  \
    X(label, STR, "label", "", BENCH, "text", "", 1, 0, "", BENCH, "into the JSON file and its name")                  \
    X(metadata, LIST, "metadata", "", BENCH, "KEY=VALUE", "", 1, 0, "", BENCH, "into the JSON file")                   \
    X(disable_tqdm, BOOL, "disable-tqdm", "", BENCH, "", "false", 1, 0, "", BENCH, "no progress bar")                  \
    X(profile, BOOL, "profile", "", BENCH, "", "false", 1, 0, "", BENCH,                                               \
      "POST /start_profile before the run and /stop_profile after it")                                                 \
    /* inspect */                                                                                                      \
    X(tensors, BOOL, "tensors", "", INSPECT, "", "false", 1, 0, "", INSPECT, "list every tensor")                      \
    X(context, HUMAN, "context", "", INSPECT, "tokens", "", 1, 1073741824, "", INSPECT,                                \
      "sequence length for the bytes of one sequence (default: the checkpoint's longest)")

/* Flags of vLLM that choose a GPU library, a cache of compiled code or a process layout: accepted, one info line.
 * Y("flag", "aliases", VALUE|FLAG|LIST|JSON) */
#define GM_OPT_IGNORED(Y)                                                                                              \
    Y("attention-backend", "", VALUE)                                                                                  \
    Y("attention-config", "-ac", JSON)                                                                                 \
    Y("distributed-executor-backend", "", VALUE)                                                                       \
    Y("distributed-timeout-seconds", "", VALUE)                                                                        \
    Y("trust-remote-code", "", FLAG)                                                                                   \
    Y("compilation-config", "-cc", JSON)                                                                               \
    Y("max-cudagraph-capture-size", "", VALUE)                                                                         \
    Y("cudagraph-capture-sizes", "", LIST)                                                                             \
    Y("enforce-eager", "", FLAG)                                                                                       \
    Y("optimization-level", "-O", VALUE)                                                                               \
    Y("performance-mode", "", VALUE)                                                                                   \
    Y("all2all-backend", "", VALUE)                                                                                    \
    Y("disable-custom-all-reduce", "", FLAG)                                                                           \
    Y("async-scheduling", "", FLAG)                                                                                    \
    Y("kernel-config", "", JSON)                                                                                       \
    Y("moe-backend", "", VALUE)                                                                                        \
    Y("linear-backend", "", VALUE)                                                                                     \
    Y("revision", "", VALUE)                                                                                           \
    Y("code-revision", "", VALUE)                                                                                      \
    Y("tokenizer-revision", "", VALUE)                                                                                 \
    Y("tokenizer-mode", "", VALUE)                                                                                     \
    Y("config-format", "", VALUE)                                                                                      \
    Y("runner", "", VALUE)                                                                                             \
    Y("task", "", VALUE)                                                                                               \
    Y("download-dir", "", VALUE)                                                                                       \
    Y("disable-fastapi-docs", "", FLAG)                                                                                \
    Y("api-server-count", "-asc", VALUE)                                                                               \
    Y("h11-max-incomplete-event-size", "", VALUE)                                                                      \
    Y("h11-max-header-count", "", VALUE)                                                                               \
    Y("enable-log-outputs", "", FLAG)                                                                                  \
    Y("max-log-len", "", VALUE)                                                                                        \
    Y("chat-template-content-format", "", VALUE)                                                                       \
    Y("prefix-caching-hash-algo", "", VALUE)                                                                           \
    Y("calculate-kv-scales", "", FLAG)                                                                                 \
    Y("mamba-cache-mode", "", VALUE)                                                                                   \
    Y("mamba-block-size", "", VALUE)                                                                                   \
    Y("mamba-cache-dtype", "", VALUE)                                                                                  \
    Y("mamba-ssm-cache-dtype", "", VALUE)                                                                              \
    Y("fingerprint-mode", "", VALUE)                                                                                   \
    Y("limit-mm-per-prompt", "", JSON)                                                                                 \
    Y("mm-processor-kwargs", "", JSON)                                                                                 \
    Y("language-model-only", "", FLAG)                                                                                 \
    Y("model-impl", "", VALUE)

/* Flags of vLLM that ask for something glimmer does not have: refused by name. */
#define GM_OPT_ABSENT                                                                                                  \
    "quantization -q enable-sleep-mode enable-lora lora-modules max-loras max-lora-rank middleware chat-template "     \
    "trust-request-chat-template ssl-ca-certs ssl-cert-reqs ssl-ciphers enable-ssl-refresh tool-parser-plugin "        \
    "reasoning-parser-plugin tool-server enable-per-request-metrics enable-tokenizer-info-endpoint headless "          \
    "disable-access-log-for-endpoints enable-scale-out max-num-active-seqs max-num-scheduled-tokens "                  \
    "long-prefill-token-threshold-adaptive max-num-partial-prefills max-long-partial-prefills "                        \
    "prefill-schedule-interval kv-cache-dtype-skip-layers prefix-match-unit prefix-cache-retention-interval "          \
    "enable-mamba-shared-prefix-checkpoint kv-offloading-size kv-offloading-backend cpu-offload-gb swap-space "        \
    "enable-eplb eplb-config expert-placement-strategy nnodes node-rank master-addr master-port "                      \
    "data-parallel-size-local -dpl data-parallel-address -dpa data-parallel-rpc-port -dpp data-parallel-start-rank "   \
    "-dpr data-parallel-rank -dpn data-parallel-backend -dpb data-parallel-hybrid-lb -dph data-parallel-external-lb "  \
    "-dpe data-parallel-multi-port-external-lb -dpm speculative-config -sc spec-method spec-tokens spec-model "        \
    "structured-outputs-config guided-decoding-backend kv-transfer-config kv-events-config ec-transfer-config "        \
    "enable-dbo decode-context-parallel-size -dcp prefill-context-parallel-size -pcp ray-workers-use-nsight "          \
    "disable-sliding-window enable-prompt-embeds otlp-traces-endpoint collect-detailed-traces kv-cache-metrics "       \
    "show-hidden-metrics-for-version profiler-config additional-config worker-cls scheduler-cls io-processor-plugin "  \
    "logits-processors override-attention-dtype enable-return-routed-experts reasoning-config grpc "                  \
    "disable-cascade-attn disable-hybrid-kv-cache-manager weight-transfer-config model-loader-extra-config "           \
    "plot-timeline timeline-itl-thresholds plot-dataset-stats probe-request-rate lora-assignment self-timed "            \
    "ignore-patterns hf-config-path hf-token allowed-local-media-path allowed-media-domains "

#endif
