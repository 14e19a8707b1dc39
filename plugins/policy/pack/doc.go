// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package pack is what placement policies share: the state of a packing and the rules that hold for every policy. A [Floor] has the hosts
// that may be used (GPUs, and CPUs of nodes), partitions on them, and instances in those. It says why a model may not go somewhere
// ([Floor.Refuse]): memory, share, latency, the operator's constraints, what an ensemble calls. It keeps what the operator pinned, gives
// every model a place that the policy had no opinion about ([Floor.Rest]), and writes the plan with names that stay while a partition means
// the same, with reasons and with counted refusals ([Floor.Plan]).
//
// What a policy is, the order of models and the choice of share, batch and host, is not here.
package pack
