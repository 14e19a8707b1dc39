// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy is the contract between Conch and a scheduling policy: the
// messages ([Snapshot], [Plan], [Description]), the interface [Policy], the way
// to serve one as a process ([Serve]) and to call one ([Client]), and what every
// policy otherwise writes again: l(b, p) by interpolation, look-ups by name,
// memory of a partition, the operator's rules, counted refusals.
//
// It imports nothing of Conch, so that a third-party policy needs this package
// alone. README.md explains how to write one, in Go or in any language.
//
// The messages are generated from policy.proto; the methods in the other files
// are pure and never change a message.
package policy
