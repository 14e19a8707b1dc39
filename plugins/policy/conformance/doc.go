// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance is the suite that every policy has to pass, of any author
// and in any language: it describes itself the same way every time,
// answers the snapshot that it was asked, gives equal snapshots equal plans, in
// time, names only what exists, obeys memory and the operator, and says why a
// model has no place.
//
// It judges with an oracle of its own ([Check]) and not with the code by which
// Conch validates plans, so that each keeps the other honest. A policy's test
// calls [Run], with a policy value or with [Process].
package conformance
