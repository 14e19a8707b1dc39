# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that infers nothing: health, metadata, configuration, repository, statistics, settings."""

import json
import time

from target import clients, refused, tensor, ROW

for protocol, (module, client) in clients().items():
    options = {"as_json": True} if protocol == "grpc" else {}

    def show(what, value):
        print(protocol, what, json.dumps(value, sort_keys=True))

    show("live, ready", [client.is_server_live(), client.is_server_ready()])
    show("models ready", [client.is_model_ready(m) for m in ["identity", "decoupled", "nope"]])
    show("server", client.get_server_metadata(**options))
    for model in ["identity", "add_sub", "sequence", "decoupled", "types"]:
        show(model, client.get_model_metadata(model, **options))
    refused(protocol + " metadata", lambda: client.get_model_metadata("nope"))
    config = client.get_model_config("identity", **options)
    config = config.get("config", config)
    show("config", {k: config[k] for k in ["name", "backend", "max_batch_size", "input", "output", "version_policy", "default_model_filename"]})

    index = client.get_model_repository_index(**options)
    index = index["models"] if protocol == "grpc" else index
    show("index", sorted((m["name"], m.get("version"), m.get("state")) for m in index))
    client.unload_model("half")
    while client.is_model_ready("half"):
        time.sleep(0.02)
    show("unloaded", client.is_model_ready("half"))
    client.load_model("half")
    show("loaded", client.is_model_ready("half"))
    refused(protocol + " load", lambda: client.load_model("nope"))

    def count():
        stats = client.get_inference_statistics("string", **options)["model_stats"][0]["inference_stats"]["success"]
        return int(stats.get("count", 0))

    import numpy as np

    before = count()
    for _ in range(5):
        client.infer("string", [tensor(module, "INPUT0", np.array([["a"]], np.object_))])
    until = time.time() + 30
    while count() < before + 5 and time.time() < until:
        time.sleep(0.02)
    show("counted", count() - before)

    trace = client.get_trace_settings(**options)
    show("trace", trace)
    show("log", client.get_log_settings(**options))
    client.update_log_settings({"log_verbose_level": 1})
    log = client.get_log_settings(**options)
    show("log, verbose", log)
    client.update_log_settings({"log_verbose_level": 0})
    show("trace, updated", client.update_trace_settings(settings={"trace_rate": "500"}, **options))
    show("trace, cleared", client.update_trace_settings(settings={"trace_rate": None}, **options))
    client.close()
