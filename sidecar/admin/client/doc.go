// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package client is the typed Go client of a running conch's admin API
// (HTTP and JSON, by default on a unix socket). Its types are the API: the
// server in sidecar/admin encodes them and tritonctl prints them, so a field
// has one name from the wire to the screen.
package client
