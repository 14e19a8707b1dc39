// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package admin serves the operators' API of a running conch: HTTP and JSON,
// events as server-sent events, on a unix socket unless configured otherwise. Its
// types are those of sidecar/admin/api: what operators are shown is made here, of
// what control lets look at (control.Look and its kin).
package admin
