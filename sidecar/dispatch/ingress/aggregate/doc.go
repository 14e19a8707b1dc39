// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package aggregate answers for many partitions as one Triton server would.
//
// Clients ask a server whether it is ready, what models it has, how they are configured and what they have done. Behind
// Conch the answer lies in several Triton processes and in the route table. [Aggregate] has the methods of Triton's gRPC
// service for all of that, everything but inference, so the gRPC front delegates to it and the HTTP front renders its
// answers as JSON.
//
// The rules are: a model is ready if a partition that is up has it; batches and executions are summed over partitions;
// requests are those of clients, as the dispatcher counts them, and not the batches that partitions received; settings
// and shared-memory regions are given to every partition.
package aggregate
