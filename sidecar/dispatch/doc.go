// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package dispatch is the request path: from a client's inference request to the
// partition that runs it and back.
//
// dispatch.go is a request, read top-down: Begin looks the model up in the
// route table, asks batch.Rules whether it may share an execution, and queues it or
// passes it through. What happens to it then is in the files beside
// it: ticket.go (what every request has, from its front to its outcome), call.go (what
// one for inference has), admission.go (what may come in), queues.go (the queue and its
// alarm), executors.go (what the queue knows of partitions),
// workers.go, attempt.go and passthrough.go (one execution on one place, in the queue and
// outside it), decide.go and pieces.go (what becomes of its calls), verdict.go (how it is
// counted), table.go (the route table in force), profile.go (how l(b) reaches the queue).
// Package router owns the partitions.
//
// The request path reads one immutable table through an atomic pointer, and Swap
// replaces it. It waits for that only at the lock of the queues, which Swap holds
// while it gives the scheduler what the table changes.
//
// # Goroutines
//
// A call and an attempt have none of their own. Whoever reads a request from a client
// takes it to the queue, begins what the scheduler decides on at once, and goes on
// reading. Whoever reads the server's answer ends the attempt, begins the next one on
// that place, and hands each call its answer (call.then); so does the alarm, and the
// end of a caller's context (call.abandon). None of these may wait. What may is done
// by workers: loads, requests that pass through, copies into shared memory. What a
// goroutine sends meanwhile leaves at the end of its wire.Turn.
//
// # Streams
//
// A request on a ModelStreamInfer call takes the same path as a unary one:
// stream.go takes them one by one, stream_order.go returns their answers in
// Triton's order, and stream_upstream.go passes through those that cannot be
// queued.
//
// # What runs outside the queue
//
// A partition runs one batch at a time, as far as the queue decides. Requests that
// must not be batched (sequences, decoupled models, shared memory, models without
// a batch dimension, ...) do not wait for that: they go at once to the partition
// with the fewest calls under way. Triton, or the emulated GPU, then runs the two
// in turns. The batch that was slowed has a longer execution time, from which the
// profile learns. A partition that must keep its profile should not also serve a
// model that passes through; a policy can see which ones do (Model.Batchable).
package dispatch
