// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostile lists requests that must never reach a Triton server.
//
// Each is known to kill a server or a backend process of some version, to read
// or write memory or files that are not the caller's, or to be no message at
// all. Source says where it is known from: "measured" means that a tritonserver
// 2.51 or its python backend was seen to die of it. The requests ask models of
// the conformance suite (package e2e/conformance): identity, string, add_sub
// and unbatched.
package hostile
