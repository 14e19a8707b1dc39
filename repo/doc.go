// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package repo keeps Triton model repositories. An operator's directory is
// read, never written: Import copies it into a content-addressed store and
// makes a Revision of it, with author, reason, time and what changed. A
// rollback is a revision too. Stage makes the directory that one Triton
// process serves from, out of copies: a server that writes to its model changes
// no revision and no other partition. Verify looks for content that changed.
//
// A config.pbtxt is read into Triton's own message and edited as text with its
// comments, order and unknown fields kept: what a newer Triton knows and we do
// not survives.
package repo
