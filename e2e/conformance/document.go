// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Group is a part of Triton's protocol: the cases whose names begin with its name and a slash.
type Group struct {
	Name string
	// Covers are the methods and routes, or the feature; How is what Conch does with them.
	Covers, How string
}

// Groups lists the parts in the order of docs/compatibility.md.
func Groups() []Group {
	const queued, passed, answered, all = "queued and batched, or passed through", "passed through to one partition", "answered by Conch for all partitions", "carried out on all partitions"
	return []Group{
		{"server", "ServerLive, ServerReady, ServerMetadata, grpc.health.v1 Check, unknown methods", answered + "; unknown methods " + passed},
		{"grpc", "gRPC itself: compression, metadata, health Watch, reflection", "as Triton"},
		{"bytes", "gRPC messages that are cut or no protobuf, streams past their deadline", "as Triton"},
		{"model", "ModelReady, ModelMetadata, ModelConfig", answered},
		{"infer", "ModelInfer: tensors, versions, ids, parameters, deadlines, many callers", queued},
		{"refused", "ModelInfer: what is refused, word for word", "Triton's own answer, or Conch's in its words"},
		{"typed", "typed tensor contents", "normalised to bytes where a batch needs it, else passed through"},
		{"strings", "BYTES tensors", queued},
		{"sequence", "sequence batching: numbers and text as ids, unary, on streams and over HTTP", "passed through; a sequence stays on its partition"},
		{"stream", "ModelStreamInfer, decoupled models", "queued one by one like ModelInfer, or passed through; answers keep Triton's order over all partitions"},
		{"http", "HTTP: health, metadata, config, statistics, settings, paths and methods", answered},
		{"json", "HTTP infer in JSON", queued},
		{"json refused", "HTTP infer in JSON: what is refused, status and words", "Triton's own answer, or Conch's in its words"},
		{"binary", "HTTP infer with binary tensors", queued},
		{"binary refused", "HTTP infer with binary tensors: what is refused", "Triton's own answer, or Conch's in its words"},
		{"encoding", "HTTP compression, both ways", "as Triton"},
		{"connection", "HTTP itself: chunked bodies, keep-alive, pipelining, Expect, methods, headers", "as Triton"},
		{"statistics", "ModelStatistics, /v2/models/stats, metrics", "requests as clients see them, executions summed over the partitions"},
		{"batching", "dynamic batching, seen in the statistics", "Conch's disciplines in place of Triton's batcher"},
		{"repository", "RepositoryIndex, RepositoryModelLoad, RepositoryModelUnload, and over HTTP", "orders to Conch: a load is a change of the plan"},
		{"memory", "SystemSharedMemory*, CudaSharedMemory*, and over HTTP", all + "; inference from it is passed through"},
		{"settings", "TraceSetting, LogSettings", all},
		{"classification", "the classification extension", "passed through"},
		{"generate", "/generate and /generate_stream", passed},
		{"ensemble", "ensembles", "executed step by step, each step queued and batched, or passed through"},
		{"versions", "several versions of a model", queued},
		{"priority", "priorities, queue policies, preserve_ordering", "Conch's queue keeps the policy in Triton's words; with preserve_ordering, and where driver attach finds them, " + passed},
		{"metrics", "the metrics page of a server", "Conch has its own page, with the servers' metrics on it by partition"},
	}
}

// Results are the outcomes of the suite's cases: the verdicts by target and case.
type Results struct {
	// Triton is the version of the real server.
	Triton  string                        `json:"triton"`
	Targets map[string]map[string]Verdict `json:"targets"`
}

// Check says in what the results do not fit the suite and its differences, if in anything: they are of another suite then.
func (r *Results) Check(targets []string) error {
	names := make([]string, 0, 512)
	for _, c := range Cases() {
		names = append(names, c.Name)
	}
	for _, target := range targets {
		verdicts := r.Targets[target]
		for _, name := range names {
			d := find(DifferencesOf(target), name)
			switch have := verdicts[name]; {
			case have == "":
				return fmt.Errorf("conformance: target %q has no result of case %q", target, name)
			case have == Fail:
				return fmt.Errorf("conformance: target %q failed case %q", target, name)
			case (have == Free) != (d != nil && d.Free), (have == Differs) != (d != nil && !d.Free):
				return fmt.Errorf("conformance: target %q has the result %q of case %q, which the table of differences does not say", target, have, name)
			}
		}
		for name := range verdicts {
			if !slices.Contains(names, name) {
				return fmt.Errorf("conformance: target %q has a result of case %q, which is none any more", target, name)
			}
		}
	}
	return nil
}

// Encode is the results as a file, one case a line.
func (r *Results) Encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", " ")
	return append(data, '\n'), err
}

// Document is docs/compatibility.md.
func (r *Results) Document() string {
	var b strings.Builder
	targets := slices.Sorted(maps.Keys(r.Targets))
	fmt.Fprintf(&b, "# Compatibility\n\n"+
		"Generated by `make compatibility` from e2e/conformance/testdata/compatibility.json; do not edit.\n\n"+
		"Conch speaks Triton's protocol. The suite `e2e/conformance` with its %d cases tests that. Every expected value is what a real\n"+
		"tritonserver %s answers, errors word for word, and the suite runs against that server too. [What differs](#what-differs) is listed\n"+
		"with the reason. Every other case that applies to a target has to pass, and a listed difference that goes away fails the suite.\n\n", len(Cases()), r.Triton)

	b.WriteString("## Targets\n\n| target | as Triton | differs as listed | free | does not apply |\n|---|---|---|---|---|\n")
	for _, t := range targets {
		n := map[Verdict]int{}
		for _, v := range r.Targets[t] {
			n[v]++
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", described(t), n[Pass], n[Differs], n[Free], n[Skipped])
	}

	b.WriteString("\nA *free* case may differ: it is about which requests a server executes together, which Conch decides by other rules. A case *does not apply* to a target\n" +
		"that lacks what the case asks for, such as the metrics page of a single server.\n")
	b.WriteString("\n## What is covered\n\nThe number of cases that every Conch answers as Triton does, of all cases.\n\n| part | what Conch does | cases |\n|---|---|---|\n")
	for _, g := range Groups() {
		total, same := 0, 0
		for _, c := range Cases() {
			if !strings.HasPrefix(c.Name, g.Name+"/") {
				continue
			}
			total++
			if r.sameEverywhere(targets, c.Name) {
				same++
			}
		}
		if total > 0 {
			fmt.Fprintf(&b, "| %s | %s | %d of %d |\n", g.Covers, g.How, same, total)
		}
	}

	b.WriteString("\n## What differs\n\n| case | what you see | why |\n|---|---|---|\n")
	for _, d := range Differences() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", d.Case, d.Docs, d.Reason)
	}
	b.WriteString(notes)
	return b.String()
}

// sameEverywhere reports whether every Conch answers a case as Triton does.
func (r *Results) sameEverywhere(targets []string, name string) bool {
	for _, t := range targets {
		if v := r.Targets[t][name]; strings.HasPrefix(t, "conch ") && v != Pass {
			return false
		}
	}
	return true
}

// described is a target in words.
func described(target string) string {
	words := strings.Fields(target)
	switch {
	case words[0] != "conch":
		return target
	case words[1] == "attach":
		return "Conch attached to one tritonserver, mode " + words[2]
	case words[2] == "1":
		return "Conch over one " + words[1]
	default:
		return "Conch over " + words[2] + " partitions of " + words[1]
	}
}

const notes = `
Requests that share an execution reach the model as one request with all their rows. A model that looks at single requests, and not at
rows, sees fewer requests. Requests with different parameters never share an execution.

A python model that is not decoupled may answer by its ResponseSender, and mark the end apart from the answer. Conch sends its requests to the
server as calls of ModelInfer, also those on streams and over HTTP, so that they can share executions:

| the model sends | Triton | Conch |
|---|---|---|
| an answer, and the end apart from it | on a stream, triton_final_response false | on a stream, triton_final_response true |
| an error | to ModelInfer, an empty message with status OK; elsewhere the error | to ModelInfer, the same as Triton; on a stream and over HTTP (status 500), an error: the server lost the model's text. A small request over HTTP that runs alone gets the model's text. The request counts as failed |
| a second answer | to ModelInfer, the error "expected a single response, got 2"; on a stream the first answer; over HTTP the first answer with status 500 and the error behind it | the error that ModelInfer gives, everywhere (over HTTP with status 500) |

Triton's metrics (nv_*) are at Conch's metrics address, with a label that names the partition. Their requests are executions there.

## Clients

The official clients work with Conch unmodified, and print the same as with a real server: tritonclient 2.51.0 over gRPC
and HTTP, synchronous, with callbacks and futures, asyncio; streams, sequences, decoupled models, ensembles, system shared memory, classification,
compression, repository control, statistics and settings (e2e/clients). perf_analyzer 2.51.0 runs through Conch with closed loops, Poisson
arrivals, streams, sequences, ensembles and shared memory, over gRPC and HTTP.

## What Conch refuses and Triton does not

These requests crash a tritonserver 2.51.0, or make older servers read memory that is not the request's. Conch answers them with INVALID_ARGUMENT
(HTTP: 400) and sends nothing to a server, whether the model is batched or passed through:

- a tensor whose shape has a byte size of 2^63 or more, such as dimensions near +-2^63;
- an offset or a byte size in a shared memory region that is negative, or a sum of the two of 2^63 or more;
- the classification of an output of datatype BYTES;
- a text as sequence id that is longer than the tensor that Triton writes it into.

## What is not covered

- CUDA shared memory with data in it: it needs a GPU. Registration and its refusals are covered.
- Backends other than python, and servers other than 2.51.0.
- Response parameters that a model sets itself: this server's python backend has none.
- Requests that break HTTP itself: without Host, with two lengths, with a length and chunks. Conch refuses all of them; Triton answers some.
- Metadata forwarded to models (--grpc-header-forward-pattern): Conch passes metadata on for requests that run alone.
`
